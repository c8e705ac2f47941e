"""Sorting of log entries by time, in bounded memory.

Servers write a line when a request ends, so real logs are slightly out of order. A buffer of lines
restores the order. A line that is later than the buffer permits keeps its place, and the replay
counts it as late.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter

from node.replay.logs import Entry

__all__ = ["in_order"]

_HELD = 65_536
"""Size of the buffer: a line may come after this many newer lines and is still sorted."""
_time_of = itemgetter(Entry._fields.index("time_ns"))


def in_order(batches: Iterable[list[Entry]], held: int = _HELD) -> Iterator[list[Entry]]:
    """Sort entries by time within a buffer of `held` lines; equal times keep their order.

    It stores at most twice `held` entries and a batch.
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
