"""Recent charges of one token by key: the upper bound of its refunds.

It applies to clients without the scope `refund`. Otherwise a client could empty the counters of any
other client. This module does no I/O, and its clock is injected.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ringfence.limiter import CHARGED_CODES, Limit
from ringfence.limiter.groups import ID_BYTES, carried
from ringfence.wire import Batch, Results, Source

__all__ = ["RefundLedger", "charge_lifetime_ns"]

_MAX_KEYS = 16_384
"""Most keys per token; beyond it the oldest charges are forgotten and cannot be refunded."""
_LAST_COUNTED = Source.STANDBY.value
"""Sources that charge: owners and standbys."""
_UNKNOWN = -1
_Name: TypeAlias = bytes | tuple[bytes, int]
"""A key, with its lease under a concurrency limit."""


@dataclass(slots=True)
class _Charges:
    """Units charged to one key in the current and the previous span of time."""

    span: int
    """Number of the span."""
    current: int = 0
    before: int = 0
    at: int = 0
    """When the last units were charged."""

    def turn(self, span: int) -> None:
        """Start the span of time with this number, unless it is the current one; keep only the
        previous span."""
        if span != self.span:
            self.before = self.current if span == self.span + 1 else 0
            self.current, self.span = 0, span

    def take(self, units: int) -> int:
        """Remove up to this many charged units of a key; return how many were removed."""
        taken = min(units, self.current + self.before)
        from_current = min(taken, self.current)
        self.current -= from_current
        self.before -= taken - from_current
        return taken


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
        # A plain dictionary takes thousands of steps to find its first entry after many removals.
        self._charges: OrderedDict[_Name, _Charges] = OrderedDict()
        """In the order in which their spans began."""

    def __len__(self) -> int:
        return len(self._charges)

    def charged(self, batch: Batch, results: Results) -> None:
        """Add the charges of a batch that was decided for the token."""
        now = self._clock()
        outcomes, which = results.outcomes, batch.which or [0] * len(batch)
        rows = zip(
            *(batch.keys, batch.costs, which),
            *(outcomes.codes, outcomes.slot_ids, results.sources),
            strict=True,
        )
        spans: dict[tuple[bytes, int], int | None] = {}
        find = self._charges.get
        for key, cost, limit, code, slot_id, source in rows:
            if not cost or code not in CHARGED_CODES or source > _LAST_COUNTED:
                continue
            rule = key[:ID_BYTES], limit
            span = spans.get(rule, _UNKNOWN)
            if span == _UNKNOWN:
                span = spans[rule] = _span(
                    batch.limits[limit - 1] if limit else self._limit_of(key), now
                )
            name = (key, slot_id) if slot_id else key
            charges = find(name)
            if charges is not None and charges.span == span:  # The usual case, for every check.
                charges.current += cost
                charges.at = now
            elif span is not None:
                self._add(name, cost, span, now)

    def spent(self, key: bytes, units: int) -> None:
        """Add units that the client has spent from a lease."""
        now = self._clock()
        span = _span(self._limit_of(key), now)
        if span is not None:
            self._add(key, units, span, now)

    def bound(self, batch: Batch) -> int:
        """Reduce the costs of a batch of refunds to what was charged; return the units removed.

        A refund is treated as at least as old as the last charge, so that it affects no newer
        window.
        """
        now = self._clock()
        cut = 0
        ages = batch.ages_ns or [0] * len(batch)
        for row, key in enumerate(batch.keys):
            slot_id = batch.slot_ids[row] if batch.slot_ids else 0
            limit = carried(batch.limits, batch.which, row) or self._limit_of(key)
            charges = self._charges.get((key, slot_id) if slot_id else key)
            span = _span(limit, now)
            cost, left = batch.costs[row], 0
            if charges is not None and span is not None:
                charges.turn(span)
                left = charges.take(cost)
                if left:
                    ages[row] = max(ages[row], now - charges.at)
            batch.costs[row] = left
            cut += cost - left
        if any(ages):
            batch.ages_ns = ages
        return cut

    def _add(self, name: _Name, units: int, span: int, now: int) -> None:
        charges = self._charges.pop(name, None) or _Charges(span)
        charges.turn(span)
        charges.current += units
        charges.at = now
        self._charges[name] = charges
        if len(self._charges) > self._most_keys:
            self._charges.popitem(last=False)


def _span(limit: Limit | None, now: int) -> int | None:
    """Return the number of the span of charges that contains `now`; None without a limit."""
    return None if limit is None else now // charge_lifetime_ns(limit)


def charge_lifetime_ns(limit: Limit) -> int:
    """Return the time in ns after which every counter of this limit is empty again."""
    windows = 2 * limit.period_ns
    return max(windows, limit.ceiling * limit.period_ns // max(limit.amount, 1))
