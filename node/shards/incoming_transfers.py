"""Shards on their way to this node, each gathered part by part until it is whole.

Decides which message holds the next part of a transfer. `handoff` asks for the parts, and
`ownership` counts a shard once it is whole. Nothing here waits.
"""

from collections.abc import Iterator

from hashring import shard_of
from ringfence.limiter import Snapshot
from ringfence.wire import DecidedCheck, Pulled, ShardGroup

__all__ = ["IncomingTransfer", "transfers_of"]


class IncomingTransfer:
    """One shard of a reply, with the parts of it that have arrived."""

    __slots__ = ("about", "counts", "decided", "next_part", "shard", "tallies")

    def __init__(
        self, shard: int, about: ShardGroup, counts: Snapshot, tallies: list[list[int]]
    ) -> None:
        """`about` is the group of the first part, which holds `counts` and `tallies`."""
        self.shard = shard
        self.about = about
        self.counts = counts
        self.tallies = tallies
        self.decided: list[DecidedCheck] = []
        """Checks of the shard that may be asked again."""
        self.next_part = 1

    @property
    def is_whole(self) -> bool:
        """Whether every part has arrived."""
        return self.next_part >= self.about.parts

    def add(self, reply: Pulled) -> bool:
        """Add the next part; return False when the reply is not the next part of this transfer."""
        if len(reply.groups) != 1 or not self._continues(reply.groups[0]):
            return False
        part = next(transfers_of(reply))
        mine, more = self.counts, part.counts
        if mine.remote_counts or more.remote_counts:
            remote_counts = mine.remote_counts or [{} for _ in mine.keys]
            mine.remote_counts = remote_counts + (more.remote_counts or [{} for _ in more.keys])
        if self.next_part == 1:
            mine.limits = mine.limits.copy()  # All shards of the first reply share these.
        mine.which += [which + len(mine.limits) for which in more.which]
        mine.limits += more.limits
        mine.keys += more.keys
        mine.states += more.states
        self.tallies += part.tallies
        self.decided += part.decided
        self.next_part += 1
        return True

    def _continues(self, group: ShardGroup) -> bool:
        about = self.about
        return (
            group.shards == [self.shard]
            and group.gift == about.gift
            and group.parts == about.parts
            and group.hold is about.hold
        )


def transfers_of(reply: Pulled) -> Iterator[IncomingTransfer]:
    """Go through the shards of a reply, each with the part of it that the reply holds."""
    decided: dict[int, list[DecidedCheck]] = {}
    for check in reply.decided:
        decided.setdefault(shard_of(check.key), []).append(check)
    start = 0
    for group in reply.groups:
        for shard, size in zip(group.shards, group.sizes, strict=True):
            transfer = IncomingTransfer(shard, group, *_slice(reply, start, start + size))
            transfer.decided = decided.get(shard, [])
            yield transfer
            start += size


def _slice(reply: Pulled, start: int, stop: int) -> tuple[Snapshot, list[list[int]]]:
    if start == stop:  # So it is with nearly all of thousands.
        return Snapshot([], [], [], [], []), []
    counts = reply.counts
    chosen = Snapshot(
        counts.keys[start:stop],
        counts.states[start:stop],
        counts.limits,
        counts.which[start:stop],
        counts.remote_counts[start:stop] if counts.remote_counts else [],
    )
    return chosen, reply.tallies[start:stop] if reply.tallies else [[] for _ in chosen.keys]
