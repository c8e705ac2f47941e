"""News on their way to the other members: what to send next, and when it has been sent enough."""

from collections.abc import Iterable
from math import ceil, log10

from gossip.datagrams.codec import record_size
from gossip.members.record import Record

__all__ = ["Updates", "transmissions"]

_LOOK_AT = 64
"""Most entries looked at for one message; more do not fit into it."""


class Updates:
    """At most one piece of news per member, so never more than there are members."""

    def __init__(self) -> None:
        self._by_sent: list[dict[str, Record]] = [{}]
        """News that were sent 0 times, once, twice; in each the oldest first."""
        self._sent: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, record: Record) -> None:
        """Spread this from now on; it takes the place of older news of the same member."""
        self.drop(record.name)
        self._put(record, 0)

    def drop(self, name: str) -> None:
        """Spread nothing of a member any more."""
        sent = self._sent.pop(name, None)
        if sent is not None:
            del self._by_sent[sent][name]

    def take(self, room: int, limit: int, first: Iterable[Record] = ()) -> tuple[Record, ...]:
        """Choose news of at most `room` bytes: `first` of all, then what was sent least.

        Counts them as sent; what was sent `limit` times is news no longer.
        """
        chosen: dict[str, Record] = {}
        for record in first:
            room = _choose(record, room, chosen)
        looked_at = 0
        for entries in self._by_sent:
            for record in entries.values():
                looked_at += 1
                if looked_at > _LOOK_AT:
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
    """Take a record if it fits; returns the room that is left."""
    size = record_size(record)
    if size > room:
        return room
    chosen[record.name] = record
    return room - size


def transmissions(factor: int, members: int) -> int:
    """How often news must be sent so that nearly surely everybody hears them."""
    return factor * max(1, ceil(log10(members + 1)))
