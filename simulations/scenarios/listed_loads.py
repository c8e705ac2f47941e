"""Loads that list their checks one by one, which shrunk scenarios use.

Each line has the time in seconds since the start of the load, the client and the key. A cost other
than 1 follows, for example `1.25 client-0 k3 cost=2`.
"""

import re
from collections.abc import Iterable, Iterator

from simulations.scenarios.loads import Arrival
from simulations.scenarios.scenario import Load

__all__ = ["LISTED", "format_checks", "listed_arrivals", "parse_checks"]

LISTED = "listed"
"""Shape of a load that lists its checks."""
_LINE = re.compile(
    r"(?P<at>\d+(?:\.\d+)?) client-(?P<client>\d+) (?P<key>\S+)(?: cost=(?P<cost>\d+))?"
)
_NUMBERED = re.compile(r"k\d+")
"""Key in a batch, which also has the keys with the next numbers."""


def format_checks(arrivals: Iterable[Arrival]) -> str:
    """Format checks as the argument `checks` of a load; times are rounded to milliseconds."""
    return "\n".join(
        f"{each.at:.3f} client-{each.client} {each.key}"
        + (f" cost={each.cost}" if each.cost != 1 else "")
        for each in arrivals
    )


def parse_checks(text: str) -> list[Arrival]:
    """Parse the argument `checks` of a load. Raises `ValueError` for an invalid line."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"line of a listed load must be 'SECONDS client-NUMBER KEY [cost=UNITS]', "
                f"got {line!r}"
            )
        found.append(
            Arrival(float(match["at"]), int(match["client"]), match["key"], int(match["cost"] or 1))
        )
    return sorted(found, key=lambda each: each.at)


def listed_arrivals(load: Load, seconds: float, clients: int) -> Iterator[Arrival]:
    """Return the checks of a listed load in `[0, seconds)`. Raises `ValueError` for an invalid
    list or an unknown client."""
    unknown = sorted(load.args.keys() - {"checks"})
    if unknown:
        raise ValueError(f"argument of load shape 'listed' must be checks, got {unknown[0]!r}")
    found = parse_checks(str(load.args.get("checks", "")))
    for each in found:
        if each.client >= clients:
            raise ValueError(
                f"client of a listed load must be client-0 to client-{clients - 1}, "
                f"got client-{each.client}"
            )
        if load.batch > 1 and not _NUMBERED.fullmatch(each.key):
            raise ValueError(
                f"key of a listed load with batch must be k and a number, got {each.key!r}"
            )
    return (each for each in found if each.at < seconds)
