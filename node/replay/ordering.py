"""Sorting of log entries by time, in bounded memory.

Servers write a line when a request ends, so real logs are slightly out of order. A buffer of lines
restores the order. A line that is later than the buffer permits keeps its place, and the replay
counts it as late.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter

from node.replay.log_formats import Entry

__all__ = ["in_order"]

_HELD = 65_536
"""Size of the buffer: a line may come after this many newer lines and is still sorted."""
_time_of = itemgetter(Entry._fields.index("time_ns"))


def in_order(batches: Iterable[list[Entry]], held: int = _HELD) -> Iterator[list[Entry]]:
    """Sort entries by time within a buffer of `held` lines; equal times keep their order.

    It stores at most twice `held` entries and a batch. The result does not depend on the sizes of
    the batches.
    """
    entries = chain.from_iterable(batches)
    waiting = sorted(islice(entries, 2 * held), key=_time_of)
    while len(waiting) == 2 * held:
        yield waiting[:held]
        waiting = sorted(chain(waiting[held:], islice(entries, held)), key=_time_of)
    yield waiting
