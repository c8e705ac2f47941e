"""Entries of a log in order of time, in bounded memory.

Servers write a line when a request ends, so real logs are slightly out of order. Holding some lines
back puts them right; a line that comes later still stays where it is, and its reader notices.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter

from node.replay.logs import Entry

__all__ = ["in_order"]

_HELD = 65_536
"""Lines held back: how many newer lines may stand before a line that is put right."""
_time_of = itemgetter(Entry._fields.index("time_ns"))


def in_order(batches: Iterable[list[Entry]], held: int = _HELD) -> Iterator[list[Entry]]:
    """Sort by time, those of one instant in the order they came, as far as `held` lines reach.

    Holds at most twice `held` entries and a batch.
    """
    waiting: list[Entry] = []
    for batch in batches:
        waiting += batch
        if len(waiting) >= 2 * held:
            waiting.sort(key=_time_of)
            ready = len(waiting) - held
            yield waiting[:ready]
            del waiting[:ready]
    waiting.sort(key=_time_of)
    yield waiting
