"""Recent charges of one token by key: the upper bound of its refunds.

It applies to clients without the scope `refund`. Otherwise a client could empty the counters of any
other client. This module does no I/O, and its clock is injected.
"""

from collections.abc import Callable
from itertools import islice

from ringfence.limiter import Algorithm, Limit
from ringfence.limiter.groups import carried
from ringfence.wire import Batch, Op, Results

try:
    from node.requests.refunds._recent_charges import Charges, add_batch, add_units
except ImportError:  # The compiled module exists only where a C compiler was available.
    from node.requests.refunds.recent_charges import Charges, add_batch, add_units

__all__ = ["RefundLedger", "charge_lifetime_ns"]

_MAX_KEYS = 16_384
"""Keys per token that are always kept; half as many more may be. Older charges are forgotten and
cannot be refunded."""


class RefundLedger:
    """Charges of one token on one node, over all its connections; the number of keys is bounded.

    Charges are kept for one to two times as long as they affect their counters.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        limit_of: Callable[[bytes], Limit | None],
        most_keys: int = _MAX_KEYS,
    ) -> None:
        """`limit_of` returns the limit of a key's rule."""
        self._clock = clock
        self._limit_of = limit_of
        self._most_keys = most_keys
        self._last_limit: Limit | None = None
        self._last_lifetime = 0
        self._charges: dict[bytes | tuple[bytes, int], Charges] = {}
        """By key, with its lease under a concurrency limit, in the order in which their spans
        began."""

    def __len__(self) -> int:
        return len(self._charges)

    def now(self) -> int:
        """Return the instant of a charge, to be read before its decision."""
        return self._clock()

    def charged(self, batch: Batch, results: Results, now: int) -> None:
        """Add the charges of a batch that was decided for the token, not before the instant `now`.

        An instant after the decision would exclude the charge from its refund: a log removes only
        hits that are not older than the refund says.
        """
        add_batch(self._charges, batch, results, now, self._span_of_row)
        self._drop_oldest()

    def renewed(self, batch: Batch, results: Results) -> None:
        """Keep the charges of renewed slots as long as those of new slots, so that their release is
        not refused."""
        now = self._clock()
        for row, key in enumerate(batch.keys):
            name = (key, results.outcomes.slot_ids[row])
            span = self._span_of_row(batch, row, now)
            charges = self._charges.get(name)
            if charges is not None and span == charges.span + 1:  # Other slots have ended.
                units = charges.current + charges.before
                charges.turn(span)
                charges.current, charges.before = units, 0
                self._charges[name] = self._charges.pop(name)

    def spent(self, key: bytes, units: int) -> None:
        """Add units that the client has spent from a lease."""
        now = self._clock()
        span = self._span(self._limit_of(key), now)
        if span is not None:
            add_units(self._charges, key, units, span, now)
            self._drop_oldest()

    def returned(self, key: bytes, units: int) -> int:
        """Remove units of a lease from those that `spent` added, because they were not spent.

        Returns how many units were removed. The client has refunded the others already.
        """
        return units - self.bound(Batch(Op.REFUND, [key], [units]))

    def bound(self, batch: Batch) -> int:
        """Reduce the costs of a batch of refunds to what was charged; return the units removed.

        A refund is treated as at least as old as the last charge, so that it affects no newer
        window. In a log, a refund of more than the last charge may also remove older hits.
        """
        now = self._clock()
        cut = 0
        ages = batch.ages_ns or [0] * len(batch)
        for row, key in enumerate(batch.keys):
            slot_id = batch.slot_ids[row] if batch.slot_ids else 0
            name = (key, slot_id) if slot_id else key
            limit = carried(batch.limits, batch.which, row) or self._limit_of(key)
            charges = self._charges.get(name)
            span = self._span(limit, now)
            cost, left = batch.costs[row], 0
            if charges is not None and limit is not None and span is not None:
                charges.turn(span)
                left = min(cost, charges.current + charges.before)
                from_current = min(left, charges.current)
                charges.current -= from_current
                charges.before -= left - from_current
                age = limit.refund_age_ns(now - charges.last)
                is_log = limit.algorithm is Algorithm.SLIDING_WINDOW_LOG
                if is_log and age < limit.period_ns and left > charges.newest:
                    age = min(limit.refund_age_ns(now - charges.first), limit.period_ns - 1)
                charges.newest = max(0, charges.newest - left)
                if left:
                    ages[row] = max(ages[row], age)
            batch.costs[row] = left
            cut += cost - left
        if any(ages):
            batch.ages_ns = ages
        return cut

    def _span_of_row(self, batch: Batch, row: int, now: int) -> int | None:
        limit = carried(batch.limits, batch.which, row) or self._limit_of(batch.keys[row])
        return self._span(limit, now)

    def _span(self, limit: Limit | None, now: int) -> int | None:
        """Return the number of the span of charges that contains `now`; None without a limit."""
        if limit is None:
            return None
        if limit is not self._last_limit:  # Most rows have the limit of the row before them.
            self._last_limit, self._last_lifetime = limit, charge_lifetime_ns(limit)
        return now // self._last_lifetime

    def _drop_oldest(self) -> None:
        excess = len(self._charges) - self._most_keys
        if excess > self._most_keys // 2:  # A copy for every key would cost more than the charge.
            self._charges = dict(islice(self._charges.items(), excess, None))


def charge_lifetime_ns(limit: Limit) -> int:
    """Return the time in ns after which every counter of this limit is empty again, unless charges
    have filled it above the limit."""
    windows = 2 * limit.period_ns
    return max(windows, limit.ceiling * limit.period_ns // max(limit.amount, 1))
