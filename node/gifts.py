"""What this node has given away of its shards, kept until the takers say that they count it.

Decides how long a gift and its taker are remembered, and how an answer to a pull is laid out. When
something is given is `holdings`' affair.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hashring import NodeId
from ringfence.limiter import Snapshot
from ringfence.wire import Counts, DecidedCheck, Hold, Pulled, Shards

__all__ = ["NOTHING", "Gifts", "Given", "Part", "Reply", "append_row"]

_GIFT_KEPT_NS = 90_000_000_000
"""How long a shard that was given away is kept, unless the taker says that it has it: longer than
two sides of a split need to find each other again."""
_TAKER_KNOWN_NS = 15_000_000_000
"""How long is remembered who has a shard that was given away."""
_MOVED_KEPT_NS = 3_000_000_000
"""How long a shard that was given away is sought at the taker, although the own ring says no."""


class _About(NamedTuple):
    """What the shards of one group have in common, as in `Shards`."""

    hold: Hold
    parts: int = 1
    moved_to: str = ""
    taken_from: str = ""
    gift: int = 0
    is_from_before: bool = False


@dataclass(slots=True)
class Part:
    """Counters of one shard, as many as go into one message."""

    counts: Snapshot = field(default_factory=lambda: Snapshot([], [], [], [], []))
    tallies: list[list[int]] = field(default_factory=list)
    decided: list[DecidedCheck] = field(default_factory=list)
    """Checks of the shard that may be asked again; of its first part alone."""


NOTHING = Part()
"""Of a shard without any counter; shared by all of them, so never added to."""


@dataclass(frozen=True, slots=True)
class Given:
    """A shard that was given away."""

    to: NodeId
    at: int
    number: int
    """The gift's: the same for all shards of one answer."""
    parts: list[Part]
    """Empty from when the taker has said that it counts them."""
    taken_from: str
    is_from_before: bool = False
    ask: str = ""
    """Who may have a copy of what was taken over without any; empty when there was one."""

    @property
    def _forgotten_at(self) -> int:
        return self.at + (_GIFT_KEPT_NS if self.parts else _TAKER_KNOWN_NS)


class Gifts:
    """What was given away, by shard."""

    def __init__(self) -> None:
        self._given: dict[int, Given] = {}
        self._unconfirmed: dict[int, None] = {}
        self._look_at = 0
        """No gift is to be forgotten before this instant."""

    def add(self, shards: Sequence[int], given: Given) -> None:
        """Remember that shards were given away, each as `given`."""
        self._given.update(dict.fromkeys(shards, given))
        self._look_at = min(self._look_at, given._forgotten_at)
        if given.parts:
            self._unconfirmed.update(dict.fromkeys(shards))
        else:
            for shard in shards:
                self._unconfirmed.pop(shard, None)

    def confirm(self, shards: Iterable[int], taker: NodeId) -> None:
        """The taker counts them: they need not be kept any more."""
        by_gift: dict[tuple[int, int], list[int]] = {}
        for shard in shards:
            given = self._given.get(shard)
            if given is not None and given.to == taker:
                by_gift.setdefault((given.at, given.number), []).append(shard)
        for (at, number), confirmed in by_gift.items():
            self.add(confirmed, Given(taker, at, number, [], ""))

    def get(self, shard: int) -> Given | None:
        """What was given last of a shard, as long as that is remembered."""
        return self._given.get(shard)

    def moved_to(self, shard: int, now: int) -> NodeId | None:
        """Who was given the shard just now."""
        given = self._given.get(shard)
        return given.to if given and now - given.at < _MOVED_KEPT_NS else None

    def unconfirmed(self) -> list[tuple[int, NodeId]]:
        """The shards that were given away without a word that they arrived, and to whom."""
        return [(shard, self._given[shard].to) for shard in self._unconfirmed]

    @property
    def are_confirmed(self) -> bool:
        """Whether whoever was given something has said that it has it."""
        return not self._unconfirmed

    def drop(self, shard: int) -> None:
        """Forget a gift: its shard is counted here again."""
        self._given.pop(shard, None)
        self._unconfirmed.pop(shard, None)

    def expire(self, now: int) -> None:
        """Forget what was given away long ago."""
        if now <= self._look_at:
            return
        for shard, given in list(self._given.items()):
            if now > given._forgotten_at:
                self.drop(shard)
        known = self._given.values()
        self._look_at = min([each._forgotten_at for each in known], default=now)


class Reply:
    """The answer to a `Pull` as it grows."""

    def __init__(self) -> None:
        self.keys = 0
        self.numbers = 0
        self._groups: dict[_About, list[tuple[int, Part]]] = {}

    def add_given(self, shards: Sequence[int], given: Given, part: int) -> None:
        """Give a part of each of the shards, which were given as one and the same."""
        about = _About(
            Hold.HELD,
            len(given.parts),
            given.ask,
            taken_from=given.taken_from,
            gift=given.number,
            is_from_before=given.is_from_before,
        )
        self._add(about, shards, given.parts[part])

    def add_copy(self, shard: int, moved_to: str, counts: Snapshot, whose: str) -> None:
        """Give a copy of a shard that is not held here, but by whoever sent the copy."""
        tallies: list[list[int]] = [[] for _ in counts.keys]
        about = _About(Hold.COPY, moved_to=moved_to, taken_from=whose)
        self._add(about, [shard], Part(counts, tallies))

    def add_nothing(self, shard: int, moved_to: str) -> None:
        """Say that nothing is here, and who was given it."""
        about = _About(Hold.NOTHING, moved_to=moved_to)
        self._groups.setdefault(about, []).append((shard, NOTHING))

    def pulled(self, seq: int) -> Pulled:
        """Lay out the answer."""
        counts = Counts([], [], [], [], [])
        tallies: list[list[int]] = []
        decided: list[DecidedCheck] = []
        groups = []
        for about, found in self._groups.items():
            found.sort(key=lambda each: each[0])
            shards = [shard for shard, _ in found]
            sizes = [len(part.counts.keys) for _, part in found]
            groups.append(Shards(shards, sizes, *about))
            for _, part in found:
                for at in range(len(part.counts.keys)):
                    append_row(counts, part.counts, at)
                tallies += part.tallies
                decided += part.decided
        return Pulled(seq, groups, counts, tallies if any(tallies) else [], decided)

    def _add(self, about: _About, shards: Sequence[int], part: Part) -> None:
        self._groups.setdefault(about, []).extend([(shard, part) for shard in shards])
        if part is NOTHING:
            return
        self.keys += len(part.counts.keys)
        self.numbers += sum(map(len, part.counts.states)) + sum(map(len, part.tallies))


def append_row(target: Snapshot | Counts, source: Snapshot, at: int) -> None:
    """Add one row of a snapshot to another."""
    limit = source.limits[source.which[at]]
    if limit not in target.limits:
        target.limits.append(limit)
    target.keys.append(source.keys[at])
    target.states.append(source.states[at])
    target.which.append(target.limits.index(limit))
    target.heard.append(source.heard[at] if source.heard else {})
