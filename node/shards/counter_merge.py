"""Merging of counters from another member into the counters of this node."""

from collections.abc import Callable, Mapping, Sequence

from hashring import NodeId
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.changed_keys import ChangedKeys
from node.shards.fallback_log import FallbackLog
from node.shards.transfers.outgoing_transfers import OutgoingTransfer, OutgoingTransfers
from ringfence.limiter import Engine, Snapshot
from ringfence.wire import LEASE, DecidedCheck

__all__ = ["CounterMerge", "CrossedTransfers", "add_logs", "without_checks"]

_ACKNOWLEDGED_NS = 15_000_000_000
"""Time after which no acknowledgement of a crossed transfer is expected."""


class CounterMerge:
    """Restores and charges counters that arrive from other members, and marks their keys as
    changed."""

    def __init__(
        self,
        engine: Engine,
        counters: Counters,
        changed: ChangedKeys,
        on_arrived: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`on_arrived` is called with keys that this node counts from now on."""
        self._engine = engine
        self._counters = counters
        self._changed = changed
        self._on_arrived = on_arrived

    def restore(self, counts: Snapshot, at: int) -> None:
        """Replace the counters of some keys by a snapshot that was taken at the instant `at`."""
        refused = self._engine.restore(counts, at)
        if refused:
            self._counters.add("states_refused", refused)

    def charge(
        self, rows: Mapping[bytes, Sequence[int]], now: int, counter: str = "hits_merged"
    ) -> None:
        """Charge units to the counters of keys.

        Each row of `rows` alternates an age in ns and a number of units, the oldest first.
        """
        keys: list[bytes] = []
        units: list[int] = []
        ages_ns: list[int] = []
        for key, row in rows.items():
            keys += [key] * (len(row) // 2)
            ages_ns += row[::2]
            units += row[1::2]
        self._engine.charge(keys, units, ages_ns, now)
        self._changed.update(keys)
        self._counters.add(counter, sum(units))

    def charge_log(self, log: FallbackLog, keys: Sequence[bytes], now: int) -> None:
        """Charge the units that a fallback log contains for these keys."""
        self.charge({key: log.row(key, now) for key in keys}, now)

    def refund_log(self, log: FallbackLog, now: int) -> None:
        """Refund the units that `charge_log` charged for this log."""
        keys: list[bytes] = []
        units: list[int] = []
        ages_ns: list[int] = []
        for key in log.keys:
            row = log.row(key, now)
            keys += [key] * (len(row) // 2)
            ages_ns += row[::2]
            units += row[1::2]
        self._engine.refund(keys, units, ages_ns, [0] * len(keys), (), (), now)
        self._changed.update(keys)

    def refund(self, checks: Sequence[DecidedCheck], now: int) -> None:
        """Refund the units of checks that another member has also charged."""
        self._engine.refund(
            [check.key for check in checks],
            [check.cost for check in checks],
            [check.age_ns for check in checks],
            [check.row[LEASE] for check in checks],
            (),
            (),
            now,
        )

    def admitted(
        self, keys: Sequence[bytes], regained: Mapping[bytes, int], now: int
    ) -> dict[bytes, list[int]]:
        """Return the units that this node admitted for each key, with age 0.

        The counts of other data centers are excluded, because both members have them. Units that
        were recovered from other data centers (`regained`) are excluded, because the counters of
        the other member contain them.
        """
        counts = self._engine.snapshot(keys, now)
        scratch = Engine(max_keys=max(1, len(counts.keys)))
        scratch.restore(Snapshot(counts.keys, counts.states, counts.limits, counts.which, []), now)
        units = [max(0, scratch.used(key, now) - regained.get(key, 0)) for key in counts.keys]
        return {key: [0, each] for key, each in zip(counts.keys, units, strict=True) if each}

    def join(self, counts: Snapshot, regained: Mapping[bytes, int], now: int) -> None:
        """Restore counters from another member, and charge the units that this node admitted
        besides."""
        mine = self.admitted(counts.keys, regained, now)
        self.restore(counts, now)
        self.charge(mine, now)

    def announce(self, keys: Sequence[bytes]) -> None:
        """Mark keys that arrived as changed, and report that this node now counts them."""
        self._changed.update(keys)
        self._on_arrived(keys)


class CrossedTransfers:
    """Shard transfers from this node to the owner that crossed a transfer in the other direction.

    This node had counted such a shard in place of its owner. The counters that the owner sent lack
    the units that this node admitted. The owner may not have received this node's transfer, so its
    log is charged here. If the owner acknowledges the transfer later, this charge is refunded.
    """

    def __init__(
        self,
        transfers: OutgoingTransfers,
        merge: CounterMerge,
        decided_checks: DecidedChecks,
        held: bytes | bytearray,
    ) -> None:
        self._transfers = transfers
        self._merge = merge
        self._decided_checks = decided_checks
        self._held = held
        self._charged: dict[int, tuple[OutgoingTransfer, FallbackLog]] = {}
        """Transfer and its log that was charged here, by shard."""

    def find(
        self, shard: int, sender: NodeId, decided: Sequence[DecidedCheck]
    ) -> OutgoingTransfer | None:
        """Return the transfer of a shard to `sender` that crossed a transfer from `sender`, if any.

        If `sender` received this node's transfer, `decided` contains checks of that transfer. Then
        the transfers did not cross.
        """
        transfer = self._transfers.get(shard)
        if (
            transfer is None
            or not transfer.parts
            or not transfer.taken_from
            or transfer.to != sender
        ):
            return None
        sent = {check.id for part in transfer.parts for check in part.decided}
        return None if any([check.id in sent for check in decided]) else transfer

    def charge(self, shard: int, transfer: OutgoingTransfer, now: int) -> None:
        """Charge the log of a crossed transfer on top of the owner's counters."""
        log = FallbackLog()
        for part in transfer.parts:
            add_logs(log, part.counts, part.fallback_counts, transfer.at)
        self._merge.charge_log(log, log.keys, now)
        self._charged[shard] = transfer, log

    def confirm(self, shards: Sequence[int], receiver: NodeId, number: int, now: int) -> None:
        """Refund the logs of crossed transfers that `receiver` has acknowledged."""
        for shard in shards if self._charged else ():
            found = self._charged.get(shard)
            if found is not None and (found[0].to, found[0].number) == (receiver, number):
                del self._charged[shard]
                if self._held[shard]:
                    self._merge.refund_log(found[1], now)
                    self._decided_checks.charges_left(shard, found[0].at)

    def expire(self, now: int) -> None:
        """Forget crossed transfers that were not acknowledged in time."""
        old = [
            s for s, (transfer, _) in self._charged.items() if now - transfer.at > _ACKNOWLEDGED_NS
        ]
        for shard in old:
            del self._charged[shard]


def add_logs(log: FallbackLog, counts: Snapshot, rows: Sequence[Sequence[int]], now: int) -> None:
    """Add the log of another member to the log `log`, one row for each key of `counts`."""
    for at, row in enumerate(rows):
        log.restore(counts.keys[at], row, counts.limits[counts.which[at]].period_ns, now)


def without_checks(
    keys: Sequence[bytes], rows: Sequence[Sequence[int]], checks: Sequence[DecidedCheck]
) -> list[list[int]]:
    """Subtract the units of checks that both members admitted from the log of the other member."""
    by_key = {key: [*row] for key, row in zip(keys, rows, strict=True)}
    for check in checks:
        row, units = by_key.get(check.key, []), check.cost
        # The row whose age is closest to the age of the check contains its units.
        for at in sorted(range(0, len(row), 2), key=lambda at: abs(row[at] - check.age_ns)):
            taken = min(units, row[at + 1])
            row[at + 1] -= taken
            units -= taken
    return [by_key[key] for key in keys]
