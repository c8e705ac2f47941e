"""Queue of membership updates that are piggybacked on messages; the least transmitted come
first.
"""

from collections.abc import Iterable
from math import ceil, log10

from gossip.datagrams.codec import record_size
from gossip.members.record import Record

__all__ = ["Updates", "transmissions"]

_MAX_SCANNED = 64
"""Maximum number of entries tried for one message; more would not fit."""


class Updates:
    """Queue of membership updates, with at most one update per member."""

    def __init__(self) -> None:
        self._by_sent: list[dict[str, Record]] = [{}]
        """Updates by number of transmissions; in each group the oldest first."""
        self._sent: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, record: Record) -> None:
        """Queue an update; it replaces an older update of the same member."""
        self.drop(record.name)
        self._put(record, 0)

    def drop(self, name: str) -> None:
        """Remove the update about a member."""
        sent = self._sent.pop(name, None)
        if sent is not None:
            del self._by_sent[sent][name]

    def take(self, room: int, limit: int, first: Iterable[Record] = ()) -> tuple[Record, ...]:
        """Return updates of at most `room` bytes: the records `first`, then the least transmitted
        updates.

        Counts a transmission of each update. An update leaves the queue after `limit`
        transmissions.
        """
        chosen: dict[str, Record] = {}
        for record in first:
            room = _choose(record, room, chosen)
        tried = 0
        for entries in self._by_sent:
            for record in entries.values():
                tried += 1
                if tried > _MAX_SCANNED:
                    break
                if record.name not in chosen:
                    room = _choose(record, room, chosen)
        for record in chosen.values():
            self._count(record, limit)
        return tuple(chosen.values())

    def _count(self, record: Record, limit: int) -> None:
        sent = self._sent.get(record.name)
        if sent is None or self._by_sent[sent][record.name] is not record:
            return
        self.drop(record.name)
        if sent + 1 < limit:
            self._put(record, sent + 1)

    def _put(self, record: Record, sent: int) -> None:
        while len(self._by_sent) <= sent:
            self._by_sent.append({})
        self._by_sent[sent][record.name] = record
        self._sent[record.name] = sent


def _choose(record: Record, room: int, chosen: dict[str, Record]) -> int:
    """Add a record to those chosen for a message if it fits; return the remaining room in bytes."""
    size = record_size(record)
    if size > room:
        return room
    chosen[record.name] = record
    return room - size


def transmissions(factor: int, members: int) -> int:
    """Return how often an update must be sent to reach all members almost surely."""
    return factor * max(1, ceil(log10(members + 1)))
