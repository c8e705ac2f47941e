"""Recent charges of one token by key: the upper bound of its refunds.

It applies to clients without the scope `refund`. Otherwise a client could empty the counters of any
other client. This module does no I/O, and its clock is injected.
"""

from collections.abc import Callable
from itertools import islice, repeat
from typing import NamedTuple, TypeAlias

from ringfence.limiter import CHARGED_CODES, Limit
from ringfence.limiter.groups import ID_BYTES, carried
from ringfence.wire import Batch, Results, Source

__all__ = ["RefundLedger", "charge_lifetime_ns"]

_MAX_KEYS = 16_384
"""Keys per token that are always kept; half as many more may be. Older charges are forgotten and
cannot be refunded."""
_FEW_KEYS = 4
"""Keys of a batch below which they are added one by one."""
_LAST_COUNTED = Source.STANDBY.value
"""Sources that charge: owners and standbys."""
_UNKNOWN = -1
_new_tuple = tuple.__new__
"""Makes a named tuple in half the time that its class takes."""
_Name: TypeAlias = bytes | tuple[bytes, int]
"""A key, with its lease under a concurrency limit."""


class _Charges(NamedTuple):
    """Units charged to one key in the current and the previous span of time. Immutable, so that new
    keys of a frame share one object."""

    span: int
    """Number of the span."""
    current: int
    before: int
    at: int
    """When the last units were charged."""

    def turned(self, span: int) -> "_Charges":
        """Return the charges at the span of time with this number; only the previous span is
        kept."""
        if span == self.span:
            return self
        before = self.current if span == self.span + 1 else 0
        return _Charges(span, 0, before, self.at)

    def without(self, units: int) -> "_Charges":
        """Return the charges after a refund of at most all of their units."""
        from_current = min(units, self.current)
        before = self.before - (units - from_current)
        return _Charges(self.span, self.current - from_current, before, self.at)


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
        self._charges: dict[_Name, _Charges] = {}
        """In the order in which their spans began."""

    def __len__(self) -> int:
        return len(self._charges)

    def charged(self, batch: Batch, results: Results) -> None:
        """Add the charges of a batch that was decided for the token."""
        now = self._clock()
        if not self._add_new_keys(batch, results, now):
            self._add_rows(batch, results, now)
        self._drop_oldest()

    def _add_new_keys(self, batch: Batch, results: Results, now: int) -> bool:
        """Add the charges of a batch of keys of one rule for one cost, if the first key has no
        charges; return False for any other batch."""
        keys, costs, outcomes = batch.keys, batch.costs, results.outcomes
        known = self._charges
        if (
            len(keys) < _FEW_KEYS
            or keys[0] in known
            or batch.which
            or not costs[0]
            or costs.count(costs[0]) != len(keys)
            or any(outcomes.slot_ids)
            or not CHARGED_CODES.issuperset(outcomes.codes)
            or max(results.sources) > _LAST_COUNTED
            or min(keys)[:ID_BYTES] != max(keys)[:ID_BYTES]  # All keys between them begin alike.
        ):
            return False
        span = self._span(self._limit_of(keys[0]), now)
        if span is None:
            return True
        before, new = len(known), _Charges(span, costs[0], 0, now)
        found = [*map(known.setdefault, keys, repeat(new))]
        if len(known) - before < len(keys):
            added: set[bytes] = set()
            for key, charges in zip(keys, found, strict=True):
                if charges is new and key not in added:
                    added.add(key)
                else:
                    self._add(key, costs[0], span, now)
        return True

    def _add_rows(self, batch: Batch, results: Results, now: int) -> None:
        outcomes, which = results.outcomes, batch.which or [0] * len(batch)
        rows = zip(
            *(batch.keys, batch.costs, which),
            *(outcomes.codes, outcomes.slot_ids, results.sources),
            strict=True,
        )
        spans: dict[tuple[bytes, int], int | None] = {}
        for key, cost, limit, code, slot_id, source in rows:
            if not cost or code not in CHARGED_CODES or source > _LAST_COUNTED:
                continue
            rule = key[:ID_BYTES], limit
            span = spans.get(rule, _UNKNOWN)
            if span == _UNKNOWN:
                span = spans[rule] = self._span(
                    batch.limits[limit - 1] if limit else self._limit_of(key), now
                )
            name = (key, slot_id) if slot_id else key
            charges = self._charges.get(name)
            if charges is not None and charges[0] == span:  # Most rows of keys that have charges.
                updated = (span, charges[1] + cost, charges[2], now)
                self._charges[name] = _new_tuple(_Charges, updated)
            elif span is not None:
                self._add(name, cost, span, now)

    def spent(self, key: bytes, units: int) -> None:
        """Add units that the client has spent from a lease."""
        now = self._clock()
        span = self._span(self._limit_of(key), now)
        if span is not None:
            self._add(key, units, span, now)
            self._drop_oldest()

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
            name = (key, slot_id) if slot_id else key
            limit = carried(batch.limits, batch.which, row) or self._limit_of(key)
            charges = self._charges.get(name)
            span = self._span(limit, now)
            cost, left = batch.costs[row], 0
            if charges is not None and span is not None:
                charges = charges.turned(span)
                left = min(cost, charges.current + charges.before)
                self._charges[name] = charges.without(left)
                if left:
                    ages[row] = max(ages[row], now - charges.at)
            batch.costs[row] = left
            cut += cost - left
        if any(ages):
            batch.ages_ns = ages
        return cut

    def _add(self, name: _Name, units: int, span: int, now: int) -> None:
        charges = self._charges.get(name)
        if charges is None:
            charges = _Charges(span, 0, 0, now)
        elif charges.span != span:
            del self._charges[name]  # It moves to the end.
            charges = charges.turned(span)
        self._charges[name] = _Charges(span, charges.current + units, charges.before, now)

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
    """Return the time in ns after which every counter of this limit is empty again."""
    windows = 2 * limit.period_ns
    return max(windows, limit.ceiling * limit.period_ns // max(limit.amount, 1))
