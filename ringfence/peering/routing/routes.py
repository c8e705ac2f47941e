"""Routes: the member that decides each key, and the link to that member."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import Struct, field

from hashring import SHARDS, NodeId, Ring, pick, shard_of
from ringfence.peering.target import SingleCheckTarget, Target
from ringfence.wire import MAX_KEYS, Batch

__all__ = ["Routes", "split_by_member"]


class Routes(Struct, frozen=True):
    """Hash ring of a data center, with the links by which its members are reached."""

    ring: Ring
    targets: Mapping[NodeId, Target]
    elsewhere: Mapping[bytes, Ring] = field(default_factory=dict)
    """Rings that decide the keys of some rules, by the rule's id: the first 8 bytes of a key."""

    def owner(self, key: bytes) -> NodeId | None:
        """Return the member that decides a key; None when the hash ring is empty."""
        owners = self._ring_of(key).owner_by_shard
        return owners[shard_of(key)] if owners else None

    def owners(self, keys: Sequence[bytes]) -> list[NodeId | None]:
        """Return the member that decides each key, as `owner` does."""
        owners = self.ring.owner_by_shard
        if self.elsewhere or not owners:
            return [self.owner(key) for key in keys]
        return pick(keys, owners)

    def standby(self, key: bytes) -> NodeId | None:
        """Return the member that decides a key when its owner is unreachable."""
        ring = self._ring_of(key)
        return ring.standby(shard_of(key)) if ring.owner_by_shard else None

    def single_check_targets(self) -> list[SingleCheckTarget | None]:
        """Return, for each shard, the target to which single checks of its keys are sent.

        The entry is None where no member decides the shard, or where the deciding member also
        depends on the rule of the key.
        """
        owners = self.ring.owner_by_shard
        if self.elsewhere or not owners:
            return [None] * SHARDS
        joinable = {
            name: target
            for name, target in self.targets.items()
            if isinstance(target, SingleCheckTarget)
        }
        return list(map(joinable.get, owners))

    def _ring_of(self, key: bytes) -> Ring:
        return self.elsewhere.get(key[:8], self.ring) if self.elsewhere else self.ring


def split_by_member(
    routes: Routes, batch: Batch, rows: Sequence[int], *, as_standby: bool
) -> list[tuple[Sequence[int], Target]]:
    """Split the rows of a batch by the owner or standby of their keys. Each part fits into a
    frame."""
    keys = batch.keys if len(rows) == len(batch.keys) else [batch.keys[row] for row in rows]
    members = [routes.standby(key) for key in keys] if as_standby else routes.owners(keys)
    first = members[0] if members else None
    if first is not None and len(keys) <= MAX_KEYS and members.count(first) == len(keys):
        target = routes.targets.get(first)
        return [] if target is None else [(rows, target)]
    by_member: defaultdict[NodeId | None, list[int]] = defaultdict(list)
    for row, member in zip(rows, members, strict=True):
        by_member[member].append(row)
    return [
        (chunk, routes.targets[member])
        for member, its_rows in by_member.items()
        if member is not None and member in routes.targets
        for chunk in _chunks(batch, its_rows)
    ]


def _chunks(batch: Batch, rows: list[int]) -> list[list[int]]:
    """Cut the rows of a batch into parts of at most `MAX_KEYS`, but never inside an
    all-or-nothing group. No group is longer than that."""
    if len(rows) <= MAX_KEYS:
        return [rows]
    chunks: list[list[int]] = [[]]
    for _, run in groupby(rows, key=batch.group_numbers().__getitem__):
        group = list(run)
        if len(chunks[-1]) + len(group) > MAX_KEYS:
            chunks.append([])
        chunks[-1] += group
    return chunks
