"""Shard transfers that crossed a transfer in the other direction."""

from collections.abc import Iterable, Sequence

from hashring import NodeId
from node.context.round_timer import NEVER
from node.requests.deduplication import DecidedChecks
from node.shards.counter_merge import CounterMerge
from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import LiftedUnits, add_logs, unknown_period_ns, without_checks
from node.shards.ownership.origins import are_all_known
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfer, OutgoingTransfers
from ringfence.limiter import CHARGED_CODES, Snapshot
from ringfence.wire import CODE, CheckId, DecidedCheck, ShardGroup

__all__ = ["CrossedTransfers"]

_ACKNOWLEDGED_NS = 15_000_000_000
"""Time after which no acknowledgement of a crossed transfer is expected."""
_NOTHING = Snapshot([], [], [], [], [])


class CrossedTransfers:
    """Shard transfers from this node to the owner that crossed a transfer in the other direction.

    This node had held such a shard in place of its owner. The counters that the owner sent lack the
    units that this node admitted. The owner may not have received this node's transfer, so its log
    of admitted units is charged here. If the owner acknowledges the transfer later, this charge is
    refunded.
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
        self._charged: dict[int, tuple[OutgoingTransfer, FallbackLog, int, set[CheckId]]] = {}
        """Transfer and its log that was charged here, when, and the owner's checks, by shard."""

    @property
    def next_expiry(self) -> int:
        """Instant from which on `expire` can forget a transfer."""
        first = min([transfer.at for transfer, *_ in self._charged.values()], default=None)
        return NEVER if first is None else first + _ACKNOWLEDGED_NS

    def find(
        self,
        shard: int,
        group: ShardGroup,
        sender: NodeId,
        decided: Sequence[DecidedCheck],
        now: int,
    ) -> OutgoingTransfer | None:
        """Return the transfer of a shard to `sender` that crossed a transfer from `sender`, if any.

        `group` describes the transfer from `sender`, and `decided` are its checks.
        """
        transfer = self._transfers.get(shard)
        if (
            group.taken_from
            or transfer is None
            or not transfer.parts
            or not transfer.taken_from
            or transfer.to != sender
        ):
            return None
        if not {*transfer.marks[:1]}.isdisjoint(group.origins):
            return None
        if transfer.marks and are_all_known(group.origins):
            return transfer  # The sender would have the mark of this transfer.
        return None if _has_received(transfer, decided, now) else transfer

    def find_all(
        self, shards: Iterable[int], group: ShardGroup, sender: NodeId, now: int
    ) -> dict[int, OutgoingTransfer]:
        """Return, for transfers without checks of many shards, the transfers that they crossed."""
        sent = [] if self._transfers.are_confirmed else shards
        found = {shard: self.find(shard, group, sender, (), now) for shard in sent}
        return {shard: transfer for shard, transfer in found.items() if transfer is not None}

    def charge(
        self, shard: int, transfer: OutgoingTransfer, decided: Sequence[DecidedCheck], now: int
    ) -> None:
        """Charge the units of a transfer that may not have reached the owner on top of the owner's
        counters.

        The owner has counted the checks in `decided`, so they are left out. Refunds and resets that
        both have applied are undone in the units of the transfer.
        """
        copies = [part.counts.unpack() for part in transfer.parts]
        log = _log_without(transfer, copies, decided, now)
        for counts in copies:
            self._merge.charge_log(log, counts.keys, counts, transfer.at, now)
        unused = {*log.keys}.difference(*[counts.keys for counts in copies])
        self._merge.charge_log(log, sorted(unused), _NOTHING, transfer.at, now)
        self._charged[shard] = transfer, log, now, {check.id for check in decided}
        self._decided_checks.on_charges_returned(shard)

    def confirm(self, shards: Sequence[int], receiver: NodeId, number: int, now: int) -> None:
        """Refund the units charged for crossed transfers that `receiver` has now acknowledged, and
        so counted itself."""
        for shard in shards if self._charged else ():
            found = self._charged.get(shard)
            if found is not None and (found[0].to, found[0].number) == (receiver, number):
                del self._charged[shard]
                if self._held[shard]:
                    self._merge.refund_log(found[1], found[2], now)
                    # The owner has sent the charges of its checks in its own transfer.
                    self._decided_checks.on_charges_transferred(shard, found[0].at, found[3])

    def expire(self, now: int) -> None:
        """Forget transfers that crossed one in the other direction and were not acknowledged in
        time."""
        old = [
            s for s, (transfer, *_) in self._charged.items() if now - transfer.at > _ACKNOWLEDGED_NS
        ]
        for shard in old:
            del self._charged[shard]


def _log_without(
    transfer: OutgoingTransfer,
    copies: Sequence[Snapshot],
    decided: Sequence[DecidedCheck],
    now: int,
) -> FallbackLog:
    """Return the log of a transfer without the effect of checks, refunds and resets that the owner
    has applied, too.

    `copies` are the counters of the transfer, and `decided` has the checks of the owner
    with their ages at `now`.
    """
    log, at = FallbackLog(), transfer.at
    sent = [check for part in transfer.parts for check in part.decided]  # Of any part's keys.
    theirs = {check.id: check.cost for check in decided if check.row[CODE] in CHARGED_CODES}
    last_reset = {
        check.key: place
        for place, check in enumerate(sent)
        if check.is_reset and check.id in theirs
    }
    both = [
        check
        for place, check in enumerate(sent)
        if check.id in theirs
        and check.row[CODE] in CHARGED_CODES
        and place >= last_reset.get(check.key, 0)
    ]
    checks = [check for check in both if not (check.is_refund or check.is_reset)]
    keys = [key for counts in copies for key in counts.keys]
    logged = [row for part in transfer.parts for row in part.fallback_counts]
    lifted = LiftedUnits(sent, {check.id: check.age_ns - (now - at) for check in decided})
    rows, unlogged = without_checks(keys, logged, checks, lifted)
    periods_ns: dict[bytes, int] = {}
    for counts in copies:
        count = len(counts.keys)
        add_logs(log, counts, rows[:count], at)
        del rows[:count]
        for key, state, which in zip(counts.keys, counts.states, counts.which, strict=True):
            if state:  # The limit of an unused key is unknown.
                periods_ns[key] = counts.limits[which].period_ns
    for check in [check for check in sent if check.is_reset and check.id in theirs]:
        log.forget_refunded(check.key)
    for check in unlogged:  # This node has refunded them.
        period_ns = periods_ns.get(check.key) or unknown_period_ns(check.age_ns)
        log.add_refunded(check.key, check.cost, period_ns, at - check.age_ns)
    for check in [check for check in both if check.is_refund]:
        period_ns = periods_ns.get(check.key) or unknown_period_ns(check.age_ns)
        units = min(check.cost, theirs[check.id])
        log.undo_refund(check.key, units, period_ns, at - check.age_ns)
    return log


def _has_received(transfer: OutgoingTransfer, decided: Sequence[DecidedCheck], now: int) -> bool:
    """Return whether the sender of `decided` had received a transfer: then `decided` contains most
    checks of this transfer.

    A check in both does not suffice, because a caller may have asked both members. `decided` has
    only the newest checks, so older ones are ignored.
    """
    theirs = {check.id for check in decided}
    oldest = max([check.age_ns for check in decided], default=0) - (now - transfer.at)
    recent = [
        check.id in theirs
        for part in transfer.parts
        for check in part.decided
        if check.age_ns <= oldest and not check.is_refund
    ]
    return 2 * sum(recent) > len(recent)
