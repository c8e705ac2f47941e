"""Counters of one rule in compiled code; rare operations use the Python implementation.

A counter is in exactly one place: in the compiled store of the limit that last counted the key, or,
when compiled code cannot represent it, among the Python objects, or among the packed rows if it was
not checked recently. Checks by a store's own limit run entirely in compiled code. Rare operations
(a changed limit, a refund, a transfer) read the counter from its slot, run the Python
implementation, and write the counter back. So only checks are implemented twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ringfence.limiter.compiled._hot import HotTable
from ringfence.limiter.compiled._store import Store
from ringfence.limiter.compiled.params import counter_of, numbers_of, params_of
from ringfence.limiter.limit import Algorithm, Limit
from ringfence.limiter.packed.cold_counters import ColdCounters
from ringfence.limiter.reference import OVER_SOFT, Counter, Verdict
from ringfence.limiter.table import Table

__all__ = ["CompiledTable"]

_MAX_STORES = 16
"""Maximum number of limits of one rule with a compiled store."""
_SECRET_BYTES = 16
_MAX_SCANNED = 64
"""Slots of older stores that one check examines for expired entries."""
_MOST_OBJECTS = 4096
"""Counters that are Python objects. Above, those that were stored first become packed rows."""
_WITHOUT_ROWS = frozenset([Algorithm.CONCURRENCY, Algorithm.SLIDING_WINDOW_LOG])
"""Algorithms whose counters cannot be packed rows."""
_PACKED_AT_ONCE = 2
"""Objects that become packed rows for each key that is added, so that their number falls to the
bound again."""


class CompiledTable(HotTable, Table):
    """Counters by key under one limit, at most `max_keys` of them, in compiled slots of 16 or 24
    bytes.

    `secret`, 16 bytes that clients must not know, is the key of the identity hash. Tables that
    exchange counters share it. With `keeps_keys`, the keys are stored, too, because transfers to
    other nodes need them; without it, `key_slices` raises `LookupError`.
    """

    def __init__(
        self,
        limit: Limit,
        *,
        max_keys: int,
        secret: bytes,
        keeps_keys: bool,
        first_slot_id: int = 1,
        is_shared: bool = False,
    ) -> None:
        Table.__init__(
            self, limit, max_keys=max_keys, first_slot_id=first_slot_id, is_shared=is_shared
        )
        if len(secret) != _SECRET_BYTES:
            raise ValueError(f"secret must have {_SECRET_BYTES} bytes, got {len(secret)}")
        self._secret = secret
        self._keeps_keys = keeps_keys
        self._by_limit: dict[Limit, Store] = {}
        self.stores = []
        self.overflow = self._counters.by_key
        self._cold = ColdCounters(self.cold)
        self._running_slices = 0
        """Number of calls of `key_slices` that have not ended."""
        self._moved: dict[bytes, None] = {}
        """Keys whose counters have changed their place since the first of these calls."""
        self.own_limit, self.own_amount = limit, limit.amount
        self.most = max_keys
        self.own = self.store_for(limit)

    def __len__(self) -> int:
        return HotTable.__len__(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the compiled counters and of their keys."""
        return sum(store.nbytes for store in self.stores)

    @property
    def bytes_in_use(self) -> int:
        """Approximate bytes of the counters with their keys, which an eviction frees."""
        stores = sum([store.bytes_in_use for store in self.stores])
        return super().bytes_in_use + self.cold.bytes_in_use + stores

    def change_limit(self, limit: Limit, *, is_shared: bool = False) -> None:
        """Apply another limit to the keys from the next check on, as `Table.change_limit` does."""
        if is_shared != self._is_shared:
            self._by_limit.clear()  # The stores are still read, but no longer used for counting.
            self.last_limit = None
        Table.change_limit(self, limit, is_shared=is_shared)
        self.own_limit, self.own_amount = limit, limit.amount
        self.own = self.store_for(limit)

    def key_slices(self, size: int) -> Iterator[list[bytes]]:
        """Yield all keys that have a counter. Raises `LookupError` without `keeps_keys`.

        A key whose counter moves between two slices occurs once or twice.
        """
        self._running_slices += 1
        try:
            for store in [*self.stores]:
                identity = 1
                while identity:
                    keys, identity = store.keys_from(identity, size)
                    if keys:
                        yield keys
            yield from Table.key_slices(self, size)
            yield from self._cold.key_slices(size)
            moved = iter([*self._moved])
            while some := list(islice(moved, size)):
                yield some
        finally:
            self._running_slices -= 1
            if not self._running_slices:
                self._moved.clear()

    def has(self, key: bytes) -> bool:
        """Whether a key has a counter."""
        return (
            any(key in store for store in self.stores)
            or key in self._counters.by_key
            or key in self.cold
        )

    def reset(self, key: bytes) -> None:
        """Remove the counter of a key."""
        self._counters.drop(key)
        self._cold.drop(key)
        for store in self.stores:
            store.pop(key)

    def evict(self, count: int, now: int) -> None:
        """Evict up to `count` keys: each time, from a small sample, the key whose counter matters
        least."""
        for _ in range(min(count, len(self))):
            fullest = max(self.stores, key=len, default=None)
            stored = 0 if fullest is None else len(fullest)
            objects, cold = len(self._counters.by_key), len(self.cold)
            if fullest is not None and stored >= max(objects, cold):
                self.evicted += fullest.evict(now)
            elif objects >= cold:
                Table.evict(self, 1, now)
            else:
                self.evicted += self._cold.evict(now).used(now) > 0

    def charge_now(self, key: bytes, cost: int, now: int, limit: Limit | None = None) -> Verdict:
        """Count `cost` even above the limit, as `Table.charge_now` does, but without copying a
        long sliding log."""
        store = self.store_for(self.own_limit if limit is None else limit)
        used = None if store is None or cost < 0 else store.append(key, cost, now)
        if store is None or used is None:
            return Table.charge_now(self, key, cost, now, limit)
        return store.scheme.standing(self.verdicts((key,), (0,), now, limit)[0], used)

    def slow_state(
        self, key: bytes, now: int
    ) -> tuple[list[int], Limit, dict[str, list[int]]] | None:
        """Return the state of a counter that no compiled store has."""
        return Table.state(self, key, now)

    def slow_restore(
        self,
        key: bytes,
        state: Sequence[int],
        limit: Limit,
        remote: Mapping[str, Sequence[int]],
        now: int,
    ) -> None:
        """Restore a counter that compiled code cannot write. Raises `BadState`."""
        Table.restore(self, key, state, limit, remote, now)

    # -- what compiled code cannot do by itself ------------------------------------------------

    def store_for(self, limit: Limit) -> Store | None:
        """Return the compiled store for counters under a limit; None when only Python code
        supports the limit."""
        store = self._by_limit.get(limit)
        if store is None and len(self.stores) < _MAX_STORES:
            scheme = self._scheme_of(limit)
            params = params_of(scheme)
            if params is not None:
                store = Store(scheme, params, self._secret, self._keeps_keys)
                self._by_limit[limit] = store
                self.stores.append(store)
        return store

    def renewed(self, store: Store, now: int) -> Store | None:
        """Replace a compiled store that cannot represent the time `now`; its keys are moved one
        by one."""
        limit = store.scheme.limit
        del self._by_limit[limit]
        self._remove_expired(now)
        fresh = self.store_for(limit)
        self.last_limit = None
        if store is self.own:
            self.own = fresh
        return fresh

    def slow_verdicts(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None
    ) -> list[Verdict]:
        """Decide checks by the Python implementation, when no compiled store supports their
        limit."""
        if len(self.cold):
            for key in keys:
                counter = self._cold.take(key)
                if counter is not None:
                    self._counters.put(key, counter)
                    if self._running_slices:
                        self._moved[key] = None
        rows = Table.verdicts(self, keys, costs, now, limit)
        self._pack_oldest(len(keys))
        return rows

    def slow_verdict(self, key: bytes, cost: int, now: int, limit: Limit | None) -> Verdict:
        """Decide one check by the Python implementation, and store the counter in compiled form
        if possible."""
        if not self.stores:
            return self.slow_verdicts((key,), (cost,), now, limit)[0]
        own = self._scheme
        scheme = own if limit is None else self._scheme_of(limit)
        counter = self._find(key)
        if counter is None:
            counter = scheme.open(now)
            row = counter.check(cost, now)
            if cost and row[0] <= OVER_SOFT:
                self._insert(key, counter, now)
        else:
            is_converted = counter.scheme is not scheme
            if is_converted:
                counter = scheme.adopt(counter, now)
            row = counter.check(cost, now)
            if cost or scheme is own:  # A peek with another limit changes nothing.
                self._keep(key, counter, now)
                if is_converted:
                    for report in self.on_conversion:
                        report(key)
        if cost:
            self._remove_expired(now)
        return row

    def _find(self, key: bytes) -> Counter | None:
        self._pack_oldest(1)
        for store in self.stores:
            numbers = store.get(key)
            if numbers is not None:
                return counter_of(store.scheme, numbers)
        return self._counters.by_key.get(key) or self._cold.find(key)

    def _keep(self, key: bytes, counter: Counter, now: int) -> None:
        numbers = numbers_of(counter)
        place = None if numbers is None else self.store_for(counter.scheme.limit)
        if place is not None and (numbers is None or not place.put(key, numbers, now)):
            place = None
        has_moved = place is not None and key in self._counters.by_key
        for store in self.stores:
            if store is not place and store.pop(key):
                has_moved = True
        if self._cold.drop(key):
            has_moved = True
        if place is None:
            self._counters.put(key, counter)
        else:
            self._counters.drop(key)
        if has_moved and self._running_slices:
            self._moved[key] = None

    def _pack_oldest(self, added: int) -> None:
        """Turn the objects that were stored first into packed rows, if there are too many.

        At most as many become rows as are needed after `added` keys. This never happens between two
        keys of `Table.verdicts`, which finds only objects.
        """
        counters = self._counters
        excess = len(counters.by_key) - _MOST_OBJECTS
        if excess > 0 and self.own_limit.algorithm not in _WITHOUT_ROWS:
            for key, counter in counters.oldest(min(excess, _PACKED_AT_ONCE * added)):
                if self._cold.put(key, counter):
                    counters.drop(key)

    def _insert(self, key: bytes, counter: Counter, now: int) -> None:
        if len(self.cold):
            self._cold.drop_expired(now)
        self._counters.drop_expired(now)
        if len(self) >= self._max_keys:
            self.evict(1, now)
        self._keep(key, counter, now)

    def _remove_expired(self, now: int) -> None:
        """Remove expired counters whose limit is not the rule's limit, and drop empty stores."""
        for store in [store for store in self.stores if store is not self.own]:
            store.sweep(_MAX_SCANNED, now)
            if not len(store):
                self.stores.remove(store)
                self.last_limit = None
                if self._by_limit.get(store.scheme.limit) is store:
                    del self._by_limit[store.scheme.limit]
        if self.own is None:
            self.own = self.store_for(self.own_limit)
