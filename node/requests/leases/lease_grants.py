"""Leases: units of hot keys that clients may spend locally; the owner counts them as spent.

The units of a lease are *held*: every decision on the key counts them as spent at that instant, and
replicas contain them as spent. When the client reports what it spent, those units are charged at
that time, and the other units become free. A lease that expires without a report is charged in
full; a late report refunds the unspent units. So a unit counts from the start of its lease, and at
least as long as a unit spent at the end of the lease. No algorithm admits more with leases than
without.

Decides the amount, the borrower and the duration of leases. This module does no I/O: the call that
recalls leases is injected.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Generic, TypeVar

from msgspec import Struct

from ringfence.limiter import Algorithm, Code, Engine, Outcomes
from ringfence.peering.engine_choice import decide_batch
from ringfence.rules import Rule
from ringfence.wire import UNKNOWN_LEASE, Batch, LeaseGrant, LeaseRequest, Op

__all__ = ["Lender"]

_COUNTING = (Op.CHECK, Op.CHARGE)
"""Operations that are decided as if all lent units were spent."""
_EXHAUSTED_CODES = frozenset([Code.DENIED.value, Code.OVERDRAWN.value])
"""Codes after which leases are recalled: more units would be over the limit."""
_ID_BYTES = 8
_MIN = 64
"""Smallest lease: small limits are not lent, since idle leases would deny other clients."""
_MAX_LEASES = 16_384
_MAX_OF_ONE = 3
"""Maximum number of leases of one key for one borrower."""
_PART_OF_PERIOD = 20
_SHORTEST_NS, _LONGEST_NS = 20_000_000, 1_000_000_000
_ASK_AGAIN_NS = 100_000_000
"""Time until a client may ask again, when no units were lent."""
_RETURNED_WITHIN_NS = 30_000_000_000
"""Time after the end of a lease in which its unspent units may still be returned."""
_NEVER_NS = 60_000_000_000
"""Time until a client may ask again, when the rules allow no lease."""

ClientT = TypeVar("ClientT")


class _Lease(Struct, Generic[ClientT], frozen=True):
    client: ClientT
    key: bytes
    units: int
    until: int
    """End of the lease, on the clock that measures leases."""


def _itself(client: object) -> object:
    return client


class Lender(Generic[ClientT]):
    """Leases that one node has granted. `recall(client, keys)` requests the unspent units."""

    on_counted: Callable[[bytes, int, int, int], None] | None = None
    """Called with a key, the units that its counter charged, or refunded if they are negative, the
    instant of their charge, and the present instant."""

    def __init__(
        self,
        engine: Engine,
        rule_of: Callable[[int], Rule | None],
        recall: Callable[[ClientT, list[bytes]], None],
        *,
        first_lease: int,
        on_freed: Callable[[Sequence[bytes]], None] | None = None,
        on_changed: Callable[[bytes], None] | None = None,
        on_settled: Callable[[ClientT, bytes, int], None] | None = None,
        on_returned: Callable[[ClientT, bytes, int], int] | None = None,
        process_of: Callable[[ClientT], object] = _itself,
        uptime: Callable[[], int] | None = None,
    ) -> None:
        """`on_freed` is called with keys that have more units available, and `on_changed` with a
        key whose lent units change. `on_settled` gets the units that a client was charged.
        `on_returned` gets the unspent ones among them, and returns how many of them the client has
        not refunded already. `process_of` returns the identity of a client's process.

        `uptime` measures how long a lease lasts. It is monotonic: unlike the cluster's clock, it
        never jumps. None means that the times of the calls never jump.
        """
        self._uptime = uptime
        self._on_freed, self._on_changed = on_freed, on_changed
        self._on_settled, self._on_returned = on_settled, on_returned
        self._process_of = process_of
        self._engine, self._rule_of, self._recall = engine, rule_of, recall
        self._next_number = first_lease
        self._leases: dict[int, _Lease[ClientT]] = {}
        self._unreported: dict[int, _Lease[ClientT]] = {}
        """Leases that ended a moment ago, and were charged in full, in the order of their ends."""
        self._unreported_of_key: dict[bytes, dict[object, dict[int, None]]] = {}
        """Their numbers, by key and process."""
        self._of_key: dict[bytes, dict[int, _Lease[ClientT]]] = {}
        self._lent_units: dict[bytes, int] = {}
        self._recalled: set[bytes] = set()
        """Keys whose leases were recalled and are not all returned."""
        self._withheld: dict[bytes, dict[Callable[[bytes], None], None]] = {}
        """Callbacks of `withheld`, by key."""
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def lent_units(self, key: bytes) -> int:
        """Return the number of units of a key that are lent to clients."""
        return self._lent_units.get(key, 0)

    def lent_keys(self, keys: Sequence[bytes], now: int) -> list[bytes]:
        """Return the keys of which clients hold leases, without repetitions."""
        if not self._leases:
            return []
        self.expire(now)
        return [key for key in dict.fromkeys(keys) if key in self._lent_units]

    def all_lent_keys(self, now: int) -> list[bytes]:
        """Return all keys of which clients hold leases."""
        self.expire(now)
        return [*self._lent_units]

    def time_left(self, keys: Sequence[bytes], now: int) -> int:
        """Return the time in ns until the last open lease of these keys ends; 0 without leases."""
        ends = [lease.until for key in keys for lease in self._leases_of(key)]
        return max(0, max(ends) - self._elapsed(now)) if ends else 0

    def decide(self, batch: Batch, now: int) -> Outcomes:
        """Decide a batch of checks as if all lent units were spent."""
        if batch.op is Op.RESET:
            self.expire(now)
            self.forget_unreported(batch.keys)
        lent_keys = self.lent_keys(batch.keys, now)
        if not lent_keys:
            return decide_batch(self._engine, batch, now)
        if batch.op not in _COUNTING:
            outcomes = decide_batch(self._engine, batch, now)
            for row, key in enumerate(batch.keys):
                left = outcomes.remaining[row] - self._lent_units.get(key, 0)
                outcomes.remaining[row] = max(0, left)
            if batch.op is Op.RESET:
                self.recall(lent_keys)
            return outcomes
        with self.counted(lent_keys, now):
            outcomes = decide_batch(self._engine, batch, now)
        if not _EXHAUSTED_CODES.isdisjoint(outcomes.codes):
            codes = zip(batch.keys, outcomes.codes, strict=True)
            self.recall(
                [key for key, code in codes if code in _EXHAUSTED_CODES and key in self._lent_units]
            )
        return outcomes

    @contextmanager
    def counted(self, keys: Sequence[bytes], now: int) -> Iterator[None]:
        """Charge the units of keys that clients hold as leases while the block runs, and refund
        them afterwards.

        Both have the same instant, so they cancel exactly.
        """
        lent_keys = self.lent_keys(keys, now)
        if not lent_keys:
            yield
            return
        units, ages = [self._lent_units[key] for key in lent_keys], [0] * len(lent_keys)
        self._engine.charge(lent_keys, units, ages, now)
        try:
            yield
        finally:
            self._engine.refund(lent_keys, units, ages, (), (), (), now)

    def lend(
        self, client: ClientT, request: LeaseRequest, now: int, *, is_ours: bool = True
    ) -> LeaseGrant:
        """Charge what a client spent from ended leases, and grant it a new lease if possible.

        A lease is at most half of the remaining units, divided by the number of borrowers. So the
        last units are never lent; the first check gets them.
        """
        self.settle(client, request, now)
        rule = self._rule_of(int.from_bytes(request.key[:_ID_BYTES], "big"))
        if not is_ours:
            return _nothing(request, _ASK_AGAIN_NS)
        if rule is None or rule.limit is None or not _may_lend(rule):
            return _nothing(request, _NEVER_NS)
        mine = [lease for lease in self._leases_of(request.key) if lease.client is client]
        if not request.want or len(mine) >= _MAX_OF_ONE or len(self._leases) >= _MAX_LEASES:
            return _nothing(request, _ASK_AGAIN_NS)
        peek = self.decide(Batch(Op.CHECK, [request.key], [0]), now)
        left = peek.remaining[0] if peek.codes[0] == Code.ALLOWED else 0
        others = [lease.client for lease in self._leases_of(request.key)]
        borrowers = len(dict.fromkeys([client, *others]))
        units = min(request.want, left // (2 * borrowers))
        if units < _MIN or request.key in self._recalled or request.key in self._withheld:
            return _nothing(request, _ASK_AGAIN_NS)
        for_ns = max(_SHORTEST_NS, min(_LONGEST_NS, rule.limit.period_ns // _PART_OF_PERIOD))
        number = self._open(_Lease(client, request.key, units, self._elapsed(now) + for_ns))
        return LeaseGrant(
            *(request.seq, number, units, for_ns),
            *(rule.limit.amount, left - units, peek.reset_after_ns[0]),
        )

    def settle(self, client: ClientT, request: LeaseRequest, now: int) -> None:
        """Charge the units that a client reports as spent from its ended leases.

        `UNKNOWN_LEASE` among them stands for all other leases of the key that the client's process
        got: it did not receive these grants, so it spent no unit of them.
        """
        self.expire(now)
        process = self._process_of(client)
        spent_of = dict(zip(request.leases, request.spent, strict=True))
        if spent_of.pop(UNKNOWN_LEASE, None) is not None:
            ended = self._unreported_of_key.get(request.key, {}).get(process, ())
            for number in [*self._of_key.get(request.key, ()), *ended]:
                spent_of.setdefault(number, 0)
        for number, spent in spent_of.items():
            found = self._leases.get(number) or self._unreported.get(number)
            if found is None or found.key != request.key:
                continue
            if self._process_of(found.client) != process:
                continue
            used = min(spent, found.units)
            if number in self._leases:
                if used:
                    self._charge(found, used, 0, now)
                self._close(number)
            else:
                self._refund_unspent(number, found.units - used, now)
            if used < found.units and self._on_freed is not None:
                self._on_freed([found.key])

    def recall(self, keys: Sequence[bytes]) -> None:
        """Ask clients to return the leases of keys. Units that they spend until then are
        counted."""
        by_borrower: dict[ClientT, list[bytes]] = {}
        for key in keys:
            if key in self._lent_units and key not in self._recalled:
                self._recalled.add(key)
                for client in dict.fromkeys([lease.client for lease in self._leases_of(key)]):
                    by_borrower.setdefault(client, []).append(key)
        for client, recalled in by_borrower.items():
            self._recall(client, recalled)

    @contextmanager
    def withheld(
        self, keys: Sequence[bytes], on_returned: Callable[[bytes], None]
    ) -> Iterator[None]:
        """Recall the leases of keys, and lend no units of these keys until the block ends.

        `on_returned` is called with each key when its last lease has ended and was charged.
        """
        for key in keys:
            self._withheld.setdefault(key, {})[on_returned] = None
        try:
            self.recall(keys)
            yield
        finally:
            for key in keys:
                del self._withheld[key][on_returned]
                if not self._withheld[key]:
                    del self._withheld[key]

    def recall_all(self) -> None:
        """Ask clients to return the leases of all keys."""
        self.recall(list(self._lent_units))

    def charge_transferred(self, keys: Sequence[bytes], now: int) -> None:
        """Charge all lent units of keys whose counters are transferred; all keys must be lent."""
        self.recall(keys)
        for key in keys:
            for number, lease in list(self._of_key[key].items()):
                self._charge(lease, lease.units, 0, now)
                self._close(number)

    @property
    def unreported_keys(self) -> list[bytes]:
        """Keys with leases that have ended without a report a moment ago."""
        return [*self._unreported_of_key]

    def forget_unreported(self, keys: Iterable[bytes]) -> None:
        """Forget the ended leases of keys whose counters are reset here, or may be reset by another
        member that gets them."""
        for key in keys:
            for number in self._unreported_numbers(key):
                self._pop_unreported(number)

    def on_units_removed(self, keys: Sequence[bytes], now: int) -> None:
        """Forget the ended leases of keys from whose counters a standby's refund or reset has
        removed units, if units of these leases may be among them."""
        for key in keys:
            units = sum([self._unreported[n].units for n in self._unreported_numbers(key)])
            if units > self._engine.used(key, now):
                self.forget_unreported([key])

    def expire(self, now: int) -> None:
        """Charge all units of expired leases whose clients have not reported what they spent."""
        if not (self._due or self._unreported):
            return
        elapsed = self._elapsed(now)
        while self._due and self._due[0][0] <= elapsed:
            until, number = heappop(self._due)
            lease = self._leases.get(number)
            if lease is not None:
                self._charge(lease, lease.units, elapsed - until, now)
                self._close(number)
                self._unreported[number] = lease
                of_key = self._unreported_of_key.setdefault(lease.key, {})
                of_key.setdefault(self._process_of(lease.client), {})[number] = None
        while self._unreported:
            number, lease = next(iter(self._unreported.items()))
            is_old = lease.until + _RETURNED_WITHIN_NS < elapsed
            if not is_old and len(self._unreported) <= _MAX_LEASES:
                break
            self._pop_unreported(number)

    def _elapsed(self, now: int) -> int:
        """Return the instant of `now` on the clock that measures leases."""
        return now if self._uptime is None else self._uptime()

    def _charge(self, lease: _Lease[ClientT], units: int, age_ns: int, now: int) -> None:
        self._engine.charge([lease.key], [units], [age_ns], now)
        if self.on_counted is not None:
            self.on_counted(lease.key, units, now - age_ns, now)
        if self._on_settled is not None:
            self._on_settled(lease.client, lease.key, units)

    def _unreported_numbers(self, key: bytes) -> list[int]:
        of_processes = self._unreported_of_key.get(key, {}).values()
        return [number for numbers in of_processes for number in numbers]

    def _pop_unreported(self, number: int) -> _Lease[ClientT]:
        lease = self._unreported.pop(number)
        of_key, process = self._unreported_of_key[lease.key], self._process_of(lease.client)
        del of_key[process][number]
        if not of_key[process]:
            del of_key[process]
        if not of_key:
            del self._unreported_of_key[lease.key]
        return lease

    def _refund_unspent(self, number: int, units: int, now: int) -> None:
        """Refund units of a lease that was charged in full when it ended, because the client could
        not report in time, for example while this process was suspended."""
        lease = self._pop_unreported(number)
        if units and self._on_returned is not None:
            units = self._on_returned(lease.client, lease.key, units)
        if units:
            age_ns = max(0, self._elapsed(now) - lease.until)
            before = self._engine.used(lease.key, now)
            self._engine.refund([lease.key], [units], [age_ns], (), (), (), now)
            if self.on_counted is not None:
                left = self._engine.used(lease.key, now)
                self.on_counted(lease.key, left - before, now - age_ns, now)
            if self._on_changed is not None:
                self._on_changed(lease.key)

    def _leases_of(self, key: bytes) -> Sequence[_Lease[ClientT]]:
        return [*self._of_key.get(key, {}).values()]

    def _open(self, lease: _Lease[ClientT]) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        self._leases[number] = lease
        self._of_key.setdefault(lease.key, {})[number] = lease
        self._lent_units[lease.key] = self._lent_units.get(lease.key, 0) + lease.units
        heappush(self._due, (lease.until, number))
        if self._on_changed is not None:
            self._on_changed(lease.key)
        return number

    def _close(self, number: int) -> None:
        lease = self._leases.pop(number)
        of_key = self._of_key[lease.key]
        del of_key[number]
        self._lent_units[lease.key] -= lease.units
        if not of_key:
            del self._of_key[lease.key], self._lent_units[lease.key]
            self._recalled.discard(lease.key)
            for on_returned in self._withheld.get(lease.key, ()):
                on_returned(lease.key)
        if self._on_changed is not None:
            self._on_changed(lease.key)


def _may_lend(rule: Rule) -> bool:
    """Return whether units of a rule may be lent to clients.

    The limit must be large enough, all units must be equal, and one data center must count them.
    Slots are released and queue positions are reported one by one. Soft margins, shadow rules and
    quota rules must be counted for each check.
    """
    limit = rule.limit
    return (
        limit is not None
        and rule.leases
        and max(limit.amount, limit.burst or 0) >= 2 * _MIN
        and limit.algorithm is not Algorithm.CONCURRENCY
        and not limit.queue
        and not limit.soft_permille
        and rule.scope == "datacenter"
        and not (rule.shadow or rule.quota)
    )


def _nothing(request: LeaseRequest, for_ns: int) -> LeaseGrant:
    return LeaseGrant(request.seq, 0, 0, for_ns, 0, 0, 0)
