"""Checks that two members have both charged, because a client asked a second member."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from hashring import shard_of
from node.requests.deduplication import DecidedChecks
from node.shards.applied_refunds import AppliedRefunds
from node.shards.counter_merge import CounterMerge
from node.shards.log_rows import LiftedUnits, without_logged_checks, without_refunds
from node.shards.ownership.cover import Cover
from ringfence.limiter import Snapshot
from ringfence.wire import SLOT_ID, CheckId, DecidedCheck

__all__ = ["DuplicateChecks"]


class DuplicateChecks:
    """Removes one of two charges of a check when the counters of both members are merged."""

    def __init__(self, checks: DecidedChecks, merge: CounterMerge, refunds: AppliedRefunds) -> None:
        self._checks = checks
        self._merge = merge
        self._refunds = refunds

    def remove(
        self,
        cover: Cover | None,
        counts: Snapshot,
        logs: Sequence[Sequence[int]],
        decided: Sequence[DecidedCheck],
        now: int,
        *,
        is_added: bool,
        is_restored: bool,
    ) -> Sequence[Sequence[int]]:
        """Remove duplicate charges of a shard that a member sends; return the sender's log of its
        admitted units without them.

        `decided` are the sender's checks, `counts` its counters, and `logs` has one row of its log
        for each of their keys. `cover` has the log of this node if it holds the shard for its
        owner. `is_added` means that the units of both are added; otherwise nothing is removed.
        `is_restored` means that the sender's counters replace those of this node; then their
        charges stay. Otherwise the earlier charge stays, because the later one may belong to a
        later window; but if the sender has refunded its charge, the one on this node is removed. Of
        a refund that both have applied, the one on this node is undone. A reset that both have
        applied removes no further units.
        """
        if not decided:
            return logs
        ours_first, theirs_first, refunds = self._checks.merge(decided, now)
        if not is_added:
            return logs
        reset = dict.fromkeys([each.key for each in refunds if each.is_reset])
        refunds = [each for each in refunds if not each.is_reset]
        if is_restored and cover is not None:
            for key in reset:
                cover.log.forget_refunded(key)
        elif reset:
            logs = without_refunds(counts.keys, logs, reset)
        if is_restored:
            # Slots need no refund: a merge has each slot with the state at the member that held it.
            theirs_first += [
                self._charged_here(each, now) for each in ours_first if not each.row[SLOT_ID]
            ]
            ours_first = [each for each in ours_first if each.row[SLOT_ID]]
            if cover is not None:
                # The log has no earlier charges. This node also stores the outcomes of checks that
                # it has forwarded, and the owner has charged those.
                since = cover.since
                theirs_first = [each for each in theirs_first if now - each.age_ns >= since]
        if ours_first:
            ages_ns = {each.id: self._charged_here(each, now).age_ns for each in ours_first}
            lifted = LiftedUnits(decided, ages_ns)
            logs, refunded = without_logged_checks(counts, logs, ours_first, lifted)
            theirs_first += [self._charged_here(each, now) for each in refunded]
        if refunds:  # First, because they may have removed the charges that are removed below.
            self._refunds.undo(refunds, counts, now)
        if theirs_first:
            self._merge.refund(theirs_first, now)
        if cover is not None:
            plain = [each for each in theirs_first if not each.row[SLOT_ID]]
            self._take_back(cover, plain, {each.id: each.age_ns for each in decided}, now)
        return logs

    def _take_back(
        self,
        cover: Cover,
        checks: Sequence[DecidedCheck],
        ages_ns: Mapping[CheckId, int],
        now: int,
    ) -> None:
        """Remove the units of checks of one shard from the log of this node.

        If this node has refunded them, the log lacks them. Then they are removed from the units of
        the other member, see `LiftedUnits`. `ages_ns` has the ages of the charges
        of the other member.
        """
        if not checks:
            return
        shard = shard_of(checks[0].key)
        lifted = LiftedUnits(self._checks.of_shard(shard, cover.since, now), ages_ns)
        for check in checks:
            logged = check.cost if lifted.in_log(check) else 0
            units = lifted.take(check, check.cost - cover.log.take_back(check.key, logged))
            if units:
                self._refunds.add_refunded(cover.log, check.key, units, now - check.age_ns)

    def _charged_here(self, check: DecidedCheck, now: int) -> DecidedCheck:
        """Return a check of another member with the age and the outcome of its charge on this
        node."""
        row, at = self._checks.find([check.id])[0]
        return replace(check, age_ns=max(0, now - at), row=row)
