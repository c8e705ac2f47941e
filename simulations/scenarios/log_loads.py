"""Loads that replay an access log, compressed into the duration of a run."""

from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from random import Random

from node.replay.logs import read_log
from simulations.scenarios.listed_loads import LISTED, listed_arrivals
from simulations.scenarios.loads import Arrival, arrivals, replayed
from simulations.scenarios.scenario import Load

__all__ = ["load_arrivals"]

_BUNDLED = "semicomplete-2015-05.log.gz"
_LINES = 3000


def load_arrivals(load: Load, seconds: float, clients: int, random: Random) -> Iterator[Arrival]:
    """Return the arrivals of a load in `[0, seconds)`, in order of time.

    Shape `log` replays an access log. Argument `file` is its path; the default is the bundled log.
    `lines` limits its length. Shape `listed` contains its checks, see `listed_loads`. Raises
    `ValueError` as `arrivals` does, and `ConfigError` for a file that is not an access log.
    """
    if load.shape == LISTED:
        return listed_arrivals(load, seconds, clients)
    if load.shape != "log":
        return arrivals(load, seconds, clients, random)
    unknown = sorted(load.args.keys() - {"file", "lines"})
    if unknown:
        raise ValueError(f"argument of load shape 'log' must be file or lines, got {unknown[0]!r}")
    lines = load.args.get("lines", _LINES)
    if not isinstance(lines, int) or lines < 1:
        raise ValueError(
            f"lines of load shape 'log' must be an integer of at least 1, got {lines!r}"
        )
    return replayed(_entries(str(load.args.get("file", "")), lines), seconds, clients)


@lru_cache(1)
def _entries(path: str, lines: int) -> list[tuple[float, str]]:
    if path:
        return _read(Path(path), lines)
    with as_file(files("node.demo") / _BUNDLED) as bundled:
        return _read(bundled, lines)


def _read(path: Path, lines: int) -> list[tuple[float, str]]:
    with closing(read_log(path)) as entries:
        return [(entry.time_ns / 1e9, entry.client) for entry in islice(entries, lines)]
