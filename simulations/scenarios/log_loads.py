"""Loads that replay a real access log, squeezed into the time of a run."""

from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from random import Random

from node.replay.logs import read_log
from simulations.scenarios.loads import Arrival, arrivals, replayed
from simulations.scenarios.scenario import Load

__all__ = ["arrivals_of"]

_BUNDLED = "semicomplete-2015-05.log.gz"
_LINES = 3000


def arrivals_of(load: Load, seconds: float, clients: int, random: Random) -> Iterator[Arrival]:
    """Everything that a load asks for in `[0, seconds)`, in order.

    Shape `log` replays an access log: argument `file` is its path, else the bundled one is taken;
    `lines` is how many of it. Raises `ValueError` as `arrivals`, and `ConfigError` for a file that
    is no log.
    """
    if load.shape != "log":
        return arrivals(load, seconds, clients, random)
    unknown = sorted(load.args.keys() - {"file", "lines"})
    if unknown:
        raise ValueError(f"load shape 'log' has no {unknown[0]!r}; known are file, lines")
    entries = _entries(str(load.args.get("file", "")), int(load.args.get("lines", _LINES)))
    return replayed(entries, seconds, clients)


@lru_cache(1)
def _entries(path: str, lines: int) -> list[tuple[float, str]]:
    if path:
        return _read(Path(path), lines)
    with as_file(files("node.demo") / _BUNDLED) as bundled:
        return _read(bundled, lines)


def _read(path: Path, lines: int) -> list[tuple[float, str]]:
    with closing(read_log(path)) as entries:
        return [(entry.time_ns / 1e9, entry.client) for entry in islice(entries, lines)]
