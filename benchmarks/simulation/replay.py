"""`ringfence replay` of a file, beside a plain Python loop that parses and counts the same lines.

Both run as separate programs in turns, so each includes its start-up. Times are processor time;
memory is the maximum resident size. Every round checks that both deny equally often. The log
repeats the bundled log: a day of a site with twelve requests a second. The busiest clients stay the
same in all copies, and the other clients change.
"""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from benchmarks.reporting.figure import Figure, figure, interleaved, ratio
from benchmarks.simulation.replay_loop import LIMIT

__all__ = ["log_lines", "run"]

LINES = 1_000_000
_LONGER = 4
"""Factor between the lengths of the two logs whose memory is compared."""
_PER_SECOND = 11.6
_BEGIN = 1_700_000_000
_BUSY = 20
"""Clients with at least this many lines in the bundled log stay the same in all copies."""
_RULES = f"""\
domain: log
descriptors:
  - key: client
    rate_limit: {{requests_per_unit: {LIMIT}, unit: minute}}
"""
_ROOT = Path(__file__).parents[2]


class _Ran(Struct, frozen=True):
    """Processor time and memory that a program used."""

    cpu_s: float
    peak_bytes: int
    summary: dict[str, Any]


def run(rounds: int, lines: int = LINES) -> Iterator[Figure]:
    """Yield the time relative to two plain Python loops, seconds per million lines, and the growth
    of memory."""
    with TemporaryDirectory() as directory:
        home = Path(directory)
        log, rules = home / "access.log", home / "rules.yaml"
        rules.write_text(_RULES, "utf-8")
        with log.open("wb") as file:
            file.writelines(log_lines(lines))
        found = interleaved(
            {
                "replay": lambda: _replay(str(log), rules),
                "loop": lambda: _loop(log, "expression"),
                "split": lambda: _loop(log, "split"),
            },
            rounds,
        )
        summary = {
            (ran.summary["checks"], ran.summary["denied"])
            for rans in found.values()
            for ran in rans
        }
        assert len(summary) == 1, f"the loops and the replay decide differently: {summary}"
        log.unlink()
        longer = _replay("-", rules, lines=log_lines(_LONGER * lines))
        assert longer.summary["checks"] == _LONGER * lines
    cpu = {name: [ran.cpu_s for ran in rans] for name, rans in found.items()}
    peaks = [float(ran.peak_bytes) for ran in found["replay"]]
    yield ratio("replay.vs_plain_loop", cpu["replay"], cpu["loop"])
    yield ratio("replay.vs_split_loop", cpu["replay"], cpu["split"])
    million = lines / 1e6
    for name, figure_name in [
        ("replay", "replay.cpu_s_per_million_lines"),
        ("loop", "replay.plain_loop_cpu_s_per_million_lines"),
        ("split", "replay.split_loop_cpu_s_per_million_lines"),
    ]:
        yield figure(figure_name, "s", [taken / million for taken in cpu[name]])
    yield figure("replay.peak_rss_bytes", "B", peaks)
    yield figure("replay.peak_rss_growth", "x", [longer.peak_bytes / peak for peak in peaks])


def log_lines(lines: int) -> Iterator[bytes]:
    """Return a log with the given number of lines; equal arguments give equal logs."""
    with gzip.open(str(files("node.demo") / "semicomplete-2015-05.log.gz")) as packed:
        bundled = [_parts(line) for line in packed]
    often = Counter(client for client, _, _ in bundled)
    random = Random(1)
    now = float(_BEGIN)
    for number in range(lines):
        copy, place = divmod(number, len(bundled))
        client, before, after = bundled[place]
        if often[client] < _BUSY and copy:
            client = b"10.%d.%d.%d" % tuple(Random(f"{client!r} {copy}").randbytes(3))
        now += random.expovariate(_PER_SECOND)
        stamp = datetime.fromtimestamp(now, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        yield b"%s %s[%s]%s" % (client, before, stamp.encode(), after)


def _parts(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a line of an access log into its client, and the texts before and after its time."""
    head, _, rest = line.partition(b"[")
    client, _, before = head.partition(b" ")
    return client, before, rest.partition(b"]")[2]


def _replay(log: str, rules: Path, lines: Iterator[bytes] | None = None) -> _Ran:
    words = ("node.entry", "replay", log, "--rules", str(rules), "--local", "--json")
    return _run(words, lines)


def _loop(log: Path, how: str) -> _Ran:
    return _run(("benchmarks.simulation.replay_loop", str(log), how), None)


def _run(words: tuple[str, ...], lines: Iterator[bytes] | None) -> _Ran:
    """Run a module as a program with an input; return the last line of its output."""
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL if lines is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        if program.stdin is not None:
            program.stdin.writelines(lines or ())
            program.stdin.close()
        assert program.stdout is not None
        said = program.stdout.read()
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 0, f"{words}: ended with {program.returncode}"
    return _Ran(
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
        json.loads(said.splitlines()[-1]),
    )
