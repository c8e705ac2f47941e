"""A plain Python loop, the baseline of the benchmark `replay`: parse a line, count, decide.

It uses the arithmetic of the default algorithm: a sliding window of two counters, 30 requests a
minute per client. As a program, it parses the named log by a regular expression. With `split` it
splits lines at blanks, without any validation.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

__all__ = ["LIMIT", "PERIOD", "decided"]

LIMIT = 30
PERIOD = 60
_LINE = re.compile(
    r'(\S+) [^\[]*\[([^\]]+)\] "[^"\\]*(?:\\.[^"\\]*)*" (?:\d{3}|-)(?: |$)', re.ASCII
)


def decided(requests: Iterable[tuple[str, int]]) -> tuple[int, Counter[str]]:
    """Count requests, each given as client and second; return the denials per client."""
    counts: dict[str, tuple[int, int, int]] = {}
    denied: Counter[str] = Counter()
    checks = 0
    for client, now in requests:
        checks += 1
        window = now // PERIOD
        latest, current, before = counts.get(client, (window, 0, 0))
        if latest != window:
            current, before = 0, current if latest == window - 1 else 0
        if current + before * ((window + 1) * PERIOD - now) // PERIOD + 1 > LIMIT:
            denied[client] += 1
        else:
            counts[client] = window, current + 1, before
    return checks, denied


def _by_expression(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    seconds: dict[str, int] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is not None:
            client, stamp = match.groups()
            if stamp not in seconds:
                seconds[stamp] = _seconds(stamp)
            yield client, seconds[stamp]


def _by_split(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    seconds: dict[str, int] = {}
    for line in lines:
        client, _, _, stamp, _ = line.split(" ", 4)
        if stamp not in seconds:
            seconds[stamp] = _seconds(f"{stamp[1:]} +0000")
        yield client, seconds[stamp]


def _seconds(stamp: str) -> int:
    return round(datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").timestamp())


def _main(path: str, how: str) -> None:
    parse = _by_split if how == "split" else _by_expression
    with open(path, encoding="utf-8", errors="backslashreplace") as lines:
        checks, denied = decided(parse(lines))
    print(json.dumps({"checks": checks, "denied": denied.total()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
