"""The counters of one rule: which keys have one, under which scheme, and which go when it is full.

The arithmetic of a check is the scheme's; rules and all-or-nothing groups are the engine's. The
number of keys is bounded and the bytes they take are counted. Neither needs a timer: each new key
looks at the two entries that were looked at longest ago and drops those that are as new.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcome, Outcomes
from ringfence.limiter.reference import (
    OVER_SOFT,
    Counter,
    LeaseIds,
    Scheme,
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
"""Limits carried by requests that a table keeps worked out."""
_LOOK_AT = 2
"""Entries a new key looks at: with two, rested entries leave faster than new ones come."""
_SAMPLE = 8
"""Entries that one eviction chooses from."""
_ENTRY_BYTES = 400
"""Of a counter of a few numbers with its key of at most 128 bytes."""
_PLAIN_BUCKET = 2
"""Numbers in the state of a bucket that nobody else pours into."""
_CODES = tuple(Code)


class Table:
    """Counters by key under one limit, at most `max_keys` of them.

    Only an admitted check creates an entry. A full table evicts, among a few, the key that would
    lose the least, so that flooding it with keys gives little away.
    """

    def __init__(
        self, limit: Limit, *, max_keys: int, first_lease: int = 1, is_shared: bool = False
    ) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys: {max_keys} keys cannot be counted; give at least 1")
        self.evicted = 0
        """Keys that were dropped although they were not as new."""
        self._max_keys = max_keys
        self._is_shared = is_shared
        self._lease_ids = LeaseIds(first_lease)
        self._counters: OrderedDict[bytes, Counter] = OrderedDict()
        """In the order in which the hand of the clock will look at them."""
        self._extra: dict[bytes, int] = {}
        """By key, the bytes of its counter beyond `_ENTRY_BYTES`, where there are any."""
        self._extra_bytes = 0
        self._schemes: OrderedDict[Limit, Scheme] = OrderedDict()
        self._scheme = self._scheme_of(limit)

    def __len__(self) -> int:
        return len(self._counters)

    @property
    def bytes_in_use(self) -> int:
        """Bytes that the counters take with their keys, roughly: what evicting keys gives back."""
        return _ENTRY_BYTES * len(self._counters) + self._extra_bytes

    @property
    def limit(self) -> Limit:
        """The limit of every check that carries none."""
        return self._scheme.limit

    @property
    def next_lease(self) -> int:
        """The id that the next lease of this table will get; all earlier ones were smaller."""
        return self._lease_ids.next

    def check_many(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None = None
    ) -> Outcomes:
        """Decide checks one after the other, as `check` would; cost 0 peeks.

        `limit`, when given, is applied in place of the table's own.
        Raises `ValueError` when a cost is negative or the lengths differ.
        """
        amount = self.limit.amount if limit is None else limit.amount
        return columns(self.verdicts(keys, costs, now, limit), [amount] * len(keys))

    def verdicts(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None = None
    ) -> list[Verdict]:
        """Decide as `check_many` does, in rows: the hot path of every engine call."""
        if costs and min(costs) < 0:
            raise ValueError(f"cost: {min(costs)} is negative; use refund to give back")
        own = self._scheme
        scheme = own if limit is None else self._scheme_of(limit)
        find = self._counters.get
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
                    if cost or scheme is own:  # A peek with a carried limit leaves no trace.
                        self._put(key, counter)
                row = counter.check(cost, now)
                if scheme.grows:
                    self._weigh(key)
            rows.append(row)
        return rows

    def check(self, key: bytes, cost: int, now: int, limit: Limit | None = None) -> Outcome:
        """Spend `cost` units of a key's budget if they are there; cost 0 peeks."""
        code, *rest = self.verdicts((key,), (cost,), now, limit)[0]
        amount = self.limit.amount if limit is None else limit.amount
        return Outcome(_CODES[code], amount, *rest)

    def peek(self, key: bytes, now: int, limit: Limit | None = None) -> Outcome:
        """Say how a key stands; changes nothing."""
        return self.check(key, 0, now, limit)

    def refund(
        self,
        key: bytes,
        cost: int,
        now: int,
        age_ns: int = 0,
        lease: int = 0,
        *,
        limit: Limit | None = None,
    ) -> Outcome:
        """Give back `cost` units that were charged at most `age_ns` ago; answer like a peek.

        Age 0 stands for the newest: of a window the one that counts now, of a log the last hits.

        Gives back what still weighs on the key, and rather less than more: units that have
        drained or expired since, or were charged to an older window, do not come back twice.
        Under a concurrency limit, `lease` names the lease to release, 0 the oldest units.
        """
        self.give_back(key, cost, now, age_ns, lease)
        return self.peek(key, now, limit)

    def give_back(self, key: bytes, cost: int, now: int, age_ns: int = 0, lease: int = 0) -> None:
        """Refund without an answer, under the limit that the key was last counted by."""
        if cost < 0 or age_ns < 0:
            raise ValueError(f"refund: cost {cost} and age {age_ns} must not be negative")
        counter = self._find(key)
        if counter is None:
            return
        counter.refund(cost, now, age_ns, lease)
        if counter.is_rested(now):
            self.reset(key)
        else:
            self._keep(key, counter, now)

    def renew(self, key: bytes, lease: int, now: int) -> Verdict:
        """Let a lease of a concurrency limit live for a whole period from now.

        Denied when the key has no such lease; the key is then as it was.
        """
        counter = self._find(key)
        if isinstance(counter, Concurrency):
            return counter.renew(lease, now)
        return DENIED, 0, 0, 0, 0, 0

    def reset(self, key: bytes) -> None:
        """Forget a key."""
        self._drop(key)

    def change_limit(self, limit: Limit, *, is_shared: bool = False) -> None:
        """Apply another limit from the next check on, to the counts as they are.

        A key is converted when it is next asked about: what it has used stays used, so that
        neither raising nor lowering refills it. Until then it drains by the old limit.
        """
        if is_shared != self._is_shared:
            self._is_shared = is_shared
            self._schemes.clear()
        self._scheme = self._scheme_of(limit)

    # -- moving between nodes ------------------------------------------------------------------

    def all_keys(self) -> list[bytes]:
        """All keys that have a counter."""
        return list(self._counters)

    def has(self, key: bytes) -> bool:
        """Whether a key has a counter."""
        return key in self._counters

    def state(self, key: bytes, now: int) -> tuple[list[int], Limit, dict[str, list[int]]] | None:
        """Write a key's counter down, with its limit and what it heard; None when it is as new."""
        counter = self._find(key)
        if counter is None or counter.is_rested(now):
            return None
        heard = counter.heard_cells(now) if isinstance(counter, Shared) else {}
        return counter.state(now), counter.scheme.limit, heard

    def revive(
        self,
        key: bytes,
        state: Sequence[int],
        limit: Limit,
        heard: Mapping[str, Sequence[int]],
        now: int,
    ) -> None:
        """Put a counter in place of a key's own, which leaves it only what it has heard.

        What was shared where it comes from stays so until the next check. Raises `BadState`.
        """
        is_shared = bool(heard) or (limit.is_bucket and len(state) > _PLAIN_BUCKET)
        if is_shared and not self._is_shared:
            scheme = scheme_of(limit, self._lease_ids, is_shared=True)
        else:
            scheme = self._scheme_of(limit)
        counter = scheme.revive(state, now)
        if isinstance(counter, Shared):
            for writer, cells in heard.items():
                counter.recall(writer, pairs_of(cells), now)
            old = self._find(key)
            known = scheme.adopt(old, now) if isinstance(old, Shared) else None
            if isinstance(known, Shared):
                for writer, heard_here in known.heard.items():
                    counter.hear(writer, heard_here, now)
        self.reset(key)
        if not counter.is_rested(now):
            self._insert(key, counter, now)

    def charge_now(self, key: bytes, cost: int, now: int, limit: Limit | None = None) -> Verdict:
        """Count `cost` whatever the ceiling, then tell whether the key is within its limit.

        Cost 0 changes nothing. `limit`, when given, is applied in place of the table's own.
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
        """Count units that were spent `age_ns` ago, whatever the ceiling.

        Without `limit`, by the one that the key was last counted by.
        """
        if units < 0 or age_ns < 0:
            raise ValueError(f"charge: {units} units and age {age_ns} must not be negative")
        counter = self._find(key)
        if counter is None:
            scheme = self._scheme if limit is None else self._scheme_of(limit)
            counter = scheme.open(now - age_ns)  # Not used since, so that it has drained since.
            counter.charge(units, now, age_ns)
            self._insert(key, counter, now)
            return
        if limit is not None and counter.scheme.limit != limit:
            counter = self._scheme_of(limit).adopt(counter, now)
        counter.charge(units, now, age_ns)
        self._keep(key, counter, now)

    # -- other data centers --------------------------------------------------------------------

    def hear(self, key: bytes, writer: str, cells: Sequence[int], now: int) -> int:
        """Take another data center's counts of a key; return how many were refused.

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
        refused = counter.hear(writer, known, now)
        if not is_new:
            self._keep(key, counter, now)
        elif not counter.is_rested(now):
            self._insert(key, counter, now)
        return refused

    def told(self, key: bytes, now: int) -> list[int]:
        """What this data center admitted of a key: window number and count in turns."""
        counter = self._find(key)
        if counter is None or not self._is_shared:
            return []
        if counter.scheme is not self._scheme:  # Others number windows by the table's limit.
            counter = self._scheme.adopt(counter, now)
            self._keep(key, counter, now)
        return counter.told(now) if isinstance(counter, Shared) else []

    def heard(self, key: bytes, writer: str, now: int) -> list[int]:
        """What another data center has told of a key: window number and count in turns."""
        counter = self._find(key)
        return counter.heard_cells(now).get(writer, []) if isinstance(counter, Shared) else []

    def used(self, key: bytes, now: int) -> int:
        """Units of a key in use."""
        counter = self._find(key)
        return 0 if counter is None else counter.used(now)

    # -- keeping within bounds -----------------------------------------------------------------

    def evict(self, count: int, now: int) -> None:
        """Drop up to `count` keys: each time the one of a small sample that loses the least."""
        for _ in range(min(count, len(self._counters))):
            sample = list(islice(self._counters.items(), _SAMPLE))
            victim, counter = min(sample, key=lambda entry: entry[1].share_in_use(now))
            for key, _counter in sample:
                self._counters.move_to_end(key)
            self._drop(victim)
            self.evicted += counter.used(now) > 0

    def hand_over(self, prefix: bytes, heir: "Table") -> None:
        """Move the counters whose keys begin with `prefix` to another table.

        Cost: one look at every key. The heir's leases must be numbered beyond this table's.
        """
        for key in [key for key in self.all_keys() if key.startswith(prefix)]:
            counter = self._find(key)
            assert counter is not None
            self.reset(key)
            heir._put(key, counter)

    def _find(self, key: bytes) -> Counter | None:
        """Find the counter of a key; it may be a copy, so that changes are followed by `_keep`."""
        return self._counters.get(key)

    def _keep(self, key: bytes, counter: Counter, now: int) -> None:
        """Put a counter in the place of the one that the key has."""
        self._put(key, counter)

    def _insert(self, key: bytes, counter: Counter, now: int) -> None:
        for oldest, rival in list(islice(self._counters.items(), _LOOK_AT)):
            if rival.is_rested(now):
                self._drop(oldest)
            else:
                self._counters.move_to_end(oldest)
        if len(self) >= self._max_keys:
            self.evict(1, now)
        self._put(key, counter)

    def _put(self, key: bytes, counter: Counter) -> None:
        self._counters[key] = counter
        self._weigh(key)

    def _drop(self, key: bytes) -> None:
        if self._counters.pop(key, None) is not None:
            self._extra_bytes -= self._extra.pop(key, 0)

    def _weigh(self, key: bytes) -> None:
        """Count the bytes of a counter that is there."""
        counter = self._counters.get(key)
        extra = 0 if counter is None else counter.extra_bytes
        before = self._extra.get(key, 0)
        if extra != before:
            self._extra_bytes += extra - before
            if extra:
                self._extra[key] = extra
            else:
                del self._extra[key]

    def _scheme_of(self, limit: Limit) -> Scheme:
        scheme = self._schemes.get(limit)
        if scheme is None:
            if len(self._schemes) >= _KEPT_SCHEMES:
                self._schemes.popitem(last=False)
            scheme = self._schemes[limit] = scheme_of(
                limit, self._lease_ids, is_shared=self._is_shared
            )
        return scheme
