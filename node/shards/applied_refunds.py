"""Refunds and resets that this node applied: the units that they removed, and undoing the refunds
of two members.

A refund can reach two members that decide for one shard at the same time, such as an owner after a
pause and its standby. When their counters are merged, one of the two refunds must be undone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hashring import shard_of
from node.shards.counter_merge import CounterMerge
from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import without_row
from ringfence.limiter import Engine, Snapshot
from ringfence.wire import Batch, DecidedCheck, Results

__all__ = ["AppliedRefunds"]


class _Cover(Protocol):
    log: FallbackLog


class AppliedRefunds:
    """Effect of refunds and resets on the units that this node adds to the counters of other
    members.

    These are the units in the fallback log of a shard that this node holds in place of its owner,
    minus the refunded units of the owner, and all units in use of another shard.
    """

    def __init__(
        self,
        engine: Engine,
        merge: CounterMerge,
        covers: Mapping[int, _Cover],
        period_of: Callable[[bytes], int],
    ) -> None:
        """`covers` has the shards that this node holds in place of their owners, `period_of`
        returns the period in ns of a key's limit."""
        self._engine = engine
        self._merge = merge
        self._covers = covers
        self._period_of = period_of

    def apply(
        self, batch: Batch, count: Callable[[], Results], now: int
    ) -> tuple[Results, list[int]]:
        """Apply a batch of refunds by `count`; return its results, and the units that each row
        removed.

        A released slot of a concurrency limit counts as 0: slots have numbers, so a repeated
        release changes nothing.
        """
        before = {key: self._units(key, now) for key in batch.keys}
        results = count()
        left = {key: max(0, units - self._units(key, now)) for key, units in before.items()}
        removed: list[int] = []
        for row, (key, cost) in enumerate(zip(batch.keys, batch.costs, strict=True)):
            is_slot = batch.slot_ids and batch.slot_ids[row]
            removed.append(0 if is_slot else min(cost, left[key]))
            left[key] -= removed[row]
        return results, removed

    def reset(self, keys: Sequence[bytes], count: Callable[[], Results], now: int) -> Results:
        """Reset keys by `count`, and return its results. The owners of covered shards will remove
        the units and slots that they still count of these keys."""
        covered = [key for key in dict.fromkeys(keys) if shard_of(key) in self._covers]
        if not covered:
            return count()
        before = self._merge.admitted(self._engine.snapshot(covered, now), {}, now)
        owned = {
            key: without_row(before.row(key, now), self._covers[shard_of(key)].log.row(key, now))
            for key in covered
        }
        results = count()
        for key, row in owned.items():
            log = self._covers[shard_of(key)].log
            log.restore_refunded(key, row, self._period_of(key), now)
            for slot in before.slots(key):
                log.add_slot(key, slot)
        return results

    def undo(self, refunds: Sequence[DecidedCheck], counts: Snapshot, now: int) -> None:
        """Charge the units of refunds again, because another member has refunded them too.

        `counts` are the counters of that member. They have the limits of keys without a counter.
        """
        rows: dict[bytes, list[int]] = {}
        for refund in sorted(refunds, key=lambda each: each.age_ns, reverse=True):
            rows.setdefault(refund.key, []).extend([refund.age_ns, refund.cost])
        self._merge.charge(rows, now, counts=counts)
        for each in refunds:
            cover = self._covers.get(shard_of(each.key))
            if cover is not None:
                at, period_ns = now - each.age_ns, self._period_of(each.key)
                cover.log.undo_refund(each.key, each.cost, period_ns, at)

    def add_refunded(self, log: FallbackLog, key: bytes, units: int, at: int) -> None:
        """Add units that another member must remove to a log; they were charged at `at`."""
        log.add_refunded(key, units, self._period_of(key), at)

    def _units(self, key: bytes, now: int) -> int:
        cover = self._covers.get(shard_of(key))
        if cover is None:
            return self._engine.used(key, now)
        return sum(cover.log.row(key, now)[1::2]) - sum(cover.log.refunded(key, now)[1::2])
