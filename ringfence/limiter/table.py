"""Table of the counters of one rule; it converts counters when the limit changes, and evicts keys
when full.

The scheme of a limit does the arithmetic; the engine handles rules and groups. The number of keys
is bounded, and their bytes are counted. There are no timers: each new key examines two entries and
removes expired ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice

from ringfence.limiter.counter_map import CounterMap
from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcome, Outcomes
from ringfence.limiter.reference import (
    OVER_SOFT,
    Counter,
    Scheme,
    SlotNumbers,
    Verdict,
    columns,
    scheme_of,
)
from ringfence.limiter.reference.concurrency import Concurrency
from ringfence.limiter.reference.counter import DENIED
from ringfence.limiter.reference.shared import Shared
from ringfence.limiter.serialization import pairs_of

__all__ = ["Table"]

_KEPT_SCHEMES = 1024
"""Number of limits from requests whose schemes are cached."""
_PLAIN_BUCKET = 2
"""Length of the state of a bucket that is not shared between data centers."""
_KEYS_PER_SLICE = 2000
_CODES = tuple(Code)


class Table:
    """Counters by key under one limit, at most `max_keys` of them.

    Only an admitted check creates an entry. A full table evicts, of a small sample, the key with
    the smallest part of its limit in use, so that flooding the table with keys gains little.
    """

    def __init__(
        self, limit: Limit, *, max_keys: int, first_slot_id: int = 1, is_shared: bool = False
    ) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, got {max_keys}")
        self.evicted = 0
        """Number of keys that were evicted while in use."""
        self.on_conversion: Sequence[Callable[[bytes], None]] = ()
        """Callbacks for keys whose counters are converted to another limit, also by a denial."""
        self._max_keys = max_keys
        self._is_shared = is_shared
        self._slot_numbers = SlotNumbers(first_slot_id)
        self._counters = CounterMap()
        self._schemes: OrderedDict[Limit, Scheme] = OrderedDict()
        self._scheme = self._scheme_of(limit)

    def __len__(self) -> int:
        return len(self._counters.by_key)

    @property
    def bytes_in_use(self) -> int:
        """Approximate bytes of the counters with their keys, which an eviction frees."""
        return self._counters.bytes_in_use

    @property
    def limit(self) -> Limit:
        """Limit of the rule, for checks whose request contains no limit."""
        return self._scheme.limit

    @property
    def next_slot_id(self) -> int:
        """Id of the next concurrency slot of this table; all earlier ids were smaller."""
        return self._slot_numbers.next

    def check_many(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None = None
    ) -> Outcomes:
        """Decide checks in order, as `check` does; cost 0 only returns the state of a key.

        `limit`, when given, replaces the table's own limit.
        Raises `ValueError` when a cost is negative or the lengths differ.
        """
        amount = self.limit.amount if limit is None else limit.amount
        return columns(self.verdicts(keys, costs, now, limit), [amount] * len(keys))

    def verdicts(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None = None
    ) -> list[Verdict]:
        """Decide checks as `check_many` does, but return rows; this is the hot path of the
        engine."""
        if costs and min(costs) < 0:
            raise ValueError(f"cost must not be negative, got {min(costs)}; use refund instead")
        own = self._scheme
        scheme = own if limit is None else self._scheme_of(limit)
        find = self._counters.by_key.get
        rows: list[Verdict] = []
        for key, cost in zip(keys, costs, strict=True):
            counter = find(key)
            if counter is None:
                counter = scheme.open(now)
                row = counter.check(cost, now)
                if cost and row[0] <= OVER_SOFT:
                    self._insert(key, counter, now)
            else:
                if counter.scheme is not scheme:
                    counter = scheme.adopt(counter, now)
                    if cost or scheme is own:  # A peek with another limit changes nothing.
                        self._counters.put(key, counter)
                        for report in self.on_conversion:
                            report(key)
                row = counter.check(cost, now)
                if scheme.grows:
                    self._counters.weigh(key)
            rows.append(row)
        return rows

    def check(self, key: bytes, cost: int, now: int, limit: Limit | None = None) -> Outcome:
        """Spend `cost` units of a key if its limit permits; cost 0 only returns the state."""
        code, *rest = self.verdicts((key,), (cost,), now, limit)[0]
        amount = self.limit.amount if limit is None else limit.amount
        return Outcome(_CODES[code], amount, *rest)

    def peek(self, key: bytes, now: int, limit: Limit | None = None) -> Outcome:
        """Return the state of a key without changing it."""
        return self.check(key, 0, now, limit)

    def refund(
        self,
        key: bytes,
        cost: int,
        now: int,
        age_ns: int = 0,
        slot_id: int = 0,
        *,
        limit: Limit | None = None,
    ) -> Outcome:
        """Refund `cost` units that were charged at most `age_ns` ago; return the state of the key.

        Age 0 means the newest charge: the current window, or the last hits of a log.

        Only units that still count are refunded. Units that have drained or expired, or that were
        charged to an older window, are not refunded twice. Under a concurrency limit, `slot_id` is
        the slot to release, 0 the oldest units.
        """
        self.refund_only(key, cost, now, age_ns, slot_id)
        return self.peek(key, now, limit)

    def refund_only(
        self, key: bytes, cost: int, now: int, age_ns: int = 0, slot_id: int = 0
    ) -> int:
        """Refund units by the limit that last counted the key; return the units that it gave
        back."""
        if cost < 0 or age_ns < 0:
            raise ValueError(f"refund cost and age must not be negative, got {cost} and {age_ns}")
        counter = self._find(key)
        if counter is None:
            return 0
        before = counter.used(now)
        counter.refund(cost, now, age_ns, slot_id)
        units = before - counter.used(now)
        if counter.is_expired(now):
            self.reset(key)
        else:
            self._keep(key, counter, now)
        return units

    def renew(self, key: bytes, slot_id: int, now: int) -> Verdict:
        """Extend a slot of a concurrency limit by a whole period from now.

        Denied when the key has no such slot; nothing changes then.
        """
        counter = self._find(key)
        if isinstance(counter, Concurrency) and counter.used(now):
            return counter.renew(slot_id, now)
        _, remaining, _, reset_after, _, _ = self.verdicts((key,), (0,), now)[0]
        return DENIED, remaining, 0, reset_after, 0, 0

    def reset(self, key: bytes) -> None:
        """Remove the counter of a key."""
        self._counters.drop(key)

    def change_limit(self, limit: Limit, *, is_shared: bool = False) -> None:
        """Apply another limit to the keys from the next check on, and keep the counts.

        A key is converted at its next check. Used units stay used, so a change never refills a key.
        Until then the key drains by the old limit.
        """
        if is_shared != self._is_shared:
            self._is_shared = is_shared
            self._schemes.clear()
        self._scheme = self._scheme_of(limit)

    # -- moving between nodes ------------------------------------------------------------------

    def key_slices(self, size: int) -> Iterator[list[bytes]]:
        """Yield all keys that have a counter, up to `size` at a time; see `Engine.key_slices`."""
        keys = iter([*self._counters.by_key])
        while some := list(islice(keys, size)):
            yield some

    def has(self, key: bytes) -> bool:
        """Whether a key has a counter."""
        return key in self._counters.by_key

    def state(self, key: bytes, now: int) -> tuple[list[int], Limit, dict[str, list[int]]] | None:
        """Return a counter's state, limit and counts of other data centers; None when the key is
        not in use."""
        counter = self._find(key)
        if counter is None or counter.is_expired(now):
            return None
        remote = counter.remote_cells(now) if isinstance(counter, Shared) else {}
        return counter.state(now), counter.scheme.limit, remote

    def restore(
        self,
        key: bytes,
        state: Sequence[int],
        limit: Limit,
        remote: Mapping[str, Sequence[int]],
        now: int,
    ) -> None:
        """Replace the counter of a key, but keep the old counter's counts of other data centers.

        If the sending node merged counts of other data centers, this table also does so until the
        next check. Raises `BadState`.
        """
        is_shared = bool(remote) or (limit.is_bucket and len(state) > _PLAIN_BUCKET)
        if is_shared and not self._is_shared:
            scheme = scheme_of(limit, self._slot_numbers, is_shared=True)
        else:
            scheme = self._scheme_of(limit)
        counter = scheme.restore(state, now)
        if isinstance(counter, Shared):
            for writer, cells in remote.items():
                counter.restore_remote(writer, pairs_of(cells), now)
            old = self._find(key)
            known = scheme.adopt(old, now) if isinstance(old, Shared) else None
            if isinstance(known, Shared):
                counter.merge_counts_of(known, now)
        if counter.is_expired(now):
            self.reset(key)
        elif self._find(key) is None:
            self._insert(key, counter, now)
        else:
            self._keep(key, counter, now)

    def charge_now(self, key: bytes, cost: int, now: int, limit: Limit | None = None) -> Verdict:
        """Count `cost` even above the limit; return whether the key is within its limit.

        Cost 0 changes nothing. `limit`, when given, replaces the table's own limit.
        """
        scheme = self._scheme if limit is None else self._scheme_of(limit)
        if cost:
            self.charge(key, cost, now, 0, scheme.limit)
        counter = self._find(key)
        if counter is None:
            counter = scheme.open(now)
        elif counter.scheme is not scheme:
            counter = scheme.adopt(counter, now)
        return counter.standing(now)

    def charge(
        self, key: bytes, units: int, now: int, age_ns: int, limit: Limit | None = None
    ) -> None:
        """Count units of a key that were spent `age_ns` ago, even above the limit.

        By default, `limit` is the limit that last counted the key.
        """
        if units < 0 or age_ns < 0:
            raise ValueError(f"charge and age must not be negative, got {units} and {age_ns}")
        counter = self._find(key)
        if counter is None:
            scheme = self._scheme if limit is None else self._scheme_of(limit)
            # A bucket drains from then on, because it is unused.
            counter = scheme.open(now - age_ns)
            counter.charge(units, now, age_ns)
            self._insert(key, counter, now)
            return
        if limit is not None and counter.scheme.limit != limit:
            counter = self._scheme_of(limit).adopt(counter, now)
        counter.charge(units, now, age_ns)
        self._keep(key, counter, now)

    # -- other data centers --------------------------------------------------------------------

    def merge_remote(self, key: bytes, writer: str, cells: Sequence[int], now: int) -> int:
        """Merge another data center's counts of a key; return the number of rejected counts.

        Raises `BadState`.
        """
        known = pairs_of(cells)
        counter = self._find(key)
        is_new = counter is None
        if counter is None:
            counter = self._scheme.open(now)
        elif counter.scheme is not self._scheme:
            counter = self._scheme.adopt(counter, now)
        if not isinstance(counter, Shared):
            return len(known)
        refused = counter.merge_remote(writer, known, now)
        if not is_new:
            self._keep(key, counter, now)
        elif not counter.is_expired(now):
            self._insert(key, counter, now)
        return refused

    def local_counts(self, key: bytes, now: int) -> list[int]:
        """Return this data center's counts of a key: alternating window numbers and counts."""
        counter = self._find(key)
        if counter is None or not self._is_shared:
            return []
        if (
            counter.scheme is not self._scheme
        ):  # Other data centers number windows by the table's limit.
            counter = self._scheme.adopt(counter, now)
            self._keep(key, counter, now)
            for report in self.on_conversion:
                report(key)
        return counter.local_counts(now) if isinstance(counter, Shared) else []

    def remote_counts(self, key: bytes, writer: str, now: int) -> list[int]:
        """Return the counts of a key that were received from another data center."""
        counter = self._find(key)
        return counter.remote_cells(now).get(writer, []) if isinstance(counter, Shared) else []

    def used(self, key: bytes, now: int) -> int:
        """Return the units of a key that are in use."""
        counter = self._find(key)
        return 0 if counter is None else counter.used(now)

    # -- keeping within bounds -----------------------------------------------------------------

    def evict(self, count: int, now: int) -> None:
        """Evict up to `count` keys: each time, from a small sample, the key whose counter matters
        least."""
        for _ in range(min(count, len(self._counters.by_key))):
            self.evicted += self._counters.evict(now).used(now) > 0

    def move_counters(self, prefix: bytes, other: "Table") -> None:
        """Move the counters whose keys start with `prefix` to another table.

        Cost: one test per key. The other table must number its slots beyond this table's.
        """
        keys = chain.from_iterable([*self.key_slices(_KEYS_PER_SLICE)])
        for key in [key for key in keys if key.startswith(prefix)]:
            counter = self._find(key)
            assert counter is not None
            self.reset(key)
            other._counters.put(key, counter)

    def _find(self, key: bytes) -> Counter | None:
        """Return the counter of a key. It may be a copy, so changes must be stored by `_keep`."""
        return self._counters.by_key.get(key)

    def _keep(self, key: bytes, counter: Counter, now: int) -> None:
        """Store the counter of a key."""
        self._counters.put(key, counter)

    def _insert(self, key: bytes, counter: Counter, now: int) -> None:
        self._counters.drop_expired(now)
        if len(self) >= self._max_keys:
            self.evict(1, now)
        self._counters.put(key, counter)

    def _scheme_of(self, limit: Limit) -> Scheme:
        scheme = self._schemes.get(limit)
        if scheme is None:
            if len(self._schemes) >= _KEPT_SCHEMES:
                self._schemes.popitem(last=False)
            scheme = self._schemes[limit] = scheme_of(
                limit, self._slot_numbers, is_shared=self._is_shared
            )
        return scheme
