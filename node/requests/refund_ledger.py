"""Recent charges of one token by key: the upper bound of its refunds.

It applies to clients without the scope `refund`. Otherwise a client could empty the counters of any
other client. This module does no I/O, and its clock is injected.
"""

from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import TypeAlias

from ringfence.limiter import CHARGED_CODES, Algorithm, Limit
from ringfence.limiter.groups import ID_BYTES, carried
from ringfence.wire import Batch, Results, Source

__all__ = ["RefundLedger", "charge_lifetime_ns"]

_MAX_KEYS = 16_384
"""Keys per token that are always kept; half as many more may be. Older charges are forgotten and
cannot be refunded."""
_FEW_KEYS = 4
"""Keys of a batch below which they are added row by row."""
_ALLOWANCE_NS = 50_000_000
"""Longest allowance for a refund that takes longer to its owner than its check took."""
_LAST_COUNTED = Source.STANDBY.value
"""Sources that charge: owners and standbys."""
_UNKNOWN = -1
_Name: TypeAlias = bytes | tuple[bytes, int]
"""A key, with its lease under a concurrency limit."""


_Charges: TypeAlias = tuple[int, int, int, int, int, int]
"""Units charged to one key: number of the current span of time, units in this span, units in the
span before it, when the first and the last of them were charged, and how many units the last charge
had. A plain tuple, because the garbage collector stops to track tuples of integers; keys that are
new in a frame share one."""


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

    def now(self) -> int:
        """Return the instant of a charge, to be read before its decision."""
        return self._clock()

    def charged(self, batch: Batch, results: Results, now: int) -> None:
        """Add the charges of a batch that was decided for the token, not before the instant `now`.

        An instant after the decision would exclude the charge from its refund: a log removes only
        hits that are not older than the refund says.
        """
        if self._is_uniform(batch, results):
            self._add_uniform(batch.keys, batch.costs[0], now)
        else:
            self._add_rows(batch, results, now)
        self._drop_oldest()

    def _is_uniform(self, batch: Batch, results: Results) -> bool:
        """Return whether all rows of a batch were charged the same cost by one rule."""
        keys, costs, outcomes = batch.keys, batch.costs, results.outcomes
        return (
            len(keys) >= _FEW_KEYS
            and not batch.which
            and bool(costs[0])
            and costs.count(costs[0]) == len(keys)
            and not any(outcomes.slot_ids)
            and CHARGED_CODES.issuperset(outcomes.codes)
            and max(results.sources) <= _LAST_COUNTED
            and min(keys)[:ID_BYTES] == max(keys)[:ID_BYTES]  # All keys between them begin alike.
        )

    def _add_uniform(self, keys: Sequence[bytes], cost: int, now: int) -> None:
        """Add charges of one cost to keys of one rule."""
        span = self._span(self._limit_of(keys[0]), now)
        if span is None:
            return
        known = self._charges
        new = (span, cost, 0, now, now, cost)
        if keys[0] not in known:  # Probably all keys are new.
            before, found = len(known), [*map(known.setdefault, keys, repeat(new))]
            if len(known) - before == len(keys):
                return
            added: set[bytes] = set()
            for key, charges in zip(keys, found, strict=True):
                if charges is new and key not in added:
                    added.add(key)
                else:
                    self._add(key, cost, span, now)
            return
        for key in keys:
            last = known.get(key)
            if last is not None and last[0] == span and last[1]:
                known[key] = (span, last[1] + cost, last[2], last[3], now, cost)
            else:
                self._add(key, cost, span, now)

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
            if charges is not None and charges[0] == span and charges[1]:  # Most known keys.
                units = charges[1] + cost
                self._charges[name] = (span, units, charges[2], charges[3], now, cost)
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
                _, current, before, first, last, newest = _turned(charges, span)
                left = min(cost, current + before)
                from_current = min(left, current)
                before -= left - from_current
                rest = max(0, newest - left)
                self._charges[name] = (span, current - from_current, before, first, last, rest)
                age = now - last
                if _is_log(limit) and age < limit.period_ns:
                    age = _age_in_log(limit, age if left <= newest else now - first)
                if left:
                    ages[row] = max(ages[row], age)
            batch.costs[row] = left
            cut += cost - left
        if any(ages):
            batch.ages_ns = ages
        return cut

    def _add(self, name: _Name, units: int, span: int, now: int) -> None:
        charges = self._charges.get(name)
        if charges is None:
            charges = (span, 0, 0, now, now, 0)
        elif charges[0] != span:
            del self._charges[name]  # It moves to the end.
            charges = _turned(charges, span)
        _, current, before, first, _, _ = charges
        first = first if current or before else now
        self._charges[name] = (span, current + units, before, first, now, units)

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


def _turned(charges: _Charges, span: int) -> _Charges:
    """Return charges at the span of time with this number; only the previous span is kept."""
    number, current, _, first, last, newest = charges
    if span == number:
        return charges
    return (span, 0, current if span == number + 1 else 0, first, last, newest)


def _is_log(limit: Limit) -> bool:
    return limit.algorithm is Algorithm.SLIDING_WINDOW_LOG


def _age_in_log(limit: Limit, age: int) -> int:
    """Return the age of a refund whose oldest charge has the given age, at most a period.

    The age includes an allowance, because a refund may take longer to its owner than its check.
    """
    return min(age + min(age, _ALLOWANCE_NS), limit.period_ns - 1)


def charge_lifetime_ns(limit: Limit) -> int:
    """Return the time in ns after which every counter of this limit is empty again, unless charges
    have filled it above the limit."""
    windows = 2 * limit.period_ns
    return max(windows, limit.ceiling * limit.period_ns // max(limit.amount, 1))
