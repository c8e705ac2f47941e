"""Simulation of leases with faults, on virtual time: a node lends units of a limit to clients.

The shipped code of the owner and of the clients runs. There is one hot key. Its owner has a standby
with periodic replication. Messages of the clients are delayed, lost and reordered. The owner may
crash, and the limit may change. The world records each admission. An oracle without leases checks
them afterwards.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from msgspec import Struct, field

from node.requests.leases.lease_grants import Lender
from ringfence.client.local_cache.leases import LeaseAsk, Leases
from ringfence.limiter import NS_PER_SECOND, Code, Engine, EngineRule, Limit, Snapshot
from ringfence.rules import Rule
from ringfence.wire import Batch, LeaseGrant, LeaseRequest, Op

__all__ = ["Admission", "LendingWorld", "replayed"]

_START = 1_000 * NS_PER_SECOND
_RULE_ID = 7
KEY = _RULE_ID.to_bytes(8, "big") + b"hot"
_REPLICATION_NS = 100_000_000
_DELAY_NS = 40_000_000
_RESET_WAIT_NS = 750_000_000
_NOTICE_NS = 2 * NS_PER_SECOND


class Admission(Struct, frozen=True):
    """Units that were admitted at one instant."""

    at: int
    units: int
    by_lease: bool


class _Owner(Struct):
    engine: Engine
    lender: "Lender[_Borrower]"


class _Borrower(Struct, eq=False):
    number: int
    offset: float
    """Nanoseconds by which the borrower's clock is ahead."""
    leases: Leases
    trusts: set[int] = field(default_factory=set)


class LendingWorld:
    """Simulated owner, its standby and its clients; `admitted` lists the admissions."""

    def __init__(self, seed: int, limit: Limit, borrowers: int = 4, loss: float = 0.1) -> None:
        self.now = _START
        self.admitted: list[Admission] = []
        self.resets: list[int] = []
        """For each reset, the number of admissions before it."""
        self.unsaved = 0
        """Units that crashed owners had admitted or lent since their last replication."""
        self._random = Random(seed)  # noqa: S311 - a history per seed is the point
        self._loss = loss
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._rule = Rule(_RULE_ID, "d", (("k", None),), limit)
        self._node = 0
        """Number of the present owner; each crash starts another one."""
        self._owner = self._new_owner()
        self._copy: Snapshot | None = None
        self._copied_at = self.now
        self._since_copy = 0
        self._borrowers = [self._new_borrower(number) for number in range(borrowers)]
        self._schedule(_REPLICATION_NS, self._replicate)

    @property
    def limit(self) -> Limit:
        """Return the current limit of the simulated key."""
        assert self._rule.limit is not None
        return self._rule.limit

    def lent(self) -> int:
        """Return the units in all leases that clients hold."""
        return self._owner.lender.lent_units(KEY)

    def check(self, borrower: int, cost: int = 1) -> bool:
        """Check the key at one client, which uses its lease or else asks the owner."""
        client = self._borrowers[borrower]
        if client.leases.spend(KEY, cost, self._time_of(client)) is not None:
            self.admitted.append(Admission(self.now, cost, by_lease=True))
            return True
        outcomes = self._owner.lender.decide(Batch(Op.CHECK, [KEY], [cost]), self.now)
        is_allowed = outcomes.codes[0] == Code.ALLOWED
        if is_allowed:
            self._since_copy += cost
            self.admitted.append(Admission(self.now, cost, by_lease=False))
        return is_allowed

    def run_until(self, instant: int) -> None:
        """Advance the virtual time and deliver the messages that are due."""
        while self._events and self._events[0][0] <= instant:
            self.now, _, call = heappop(self._events)
            call()
        self.now = instant
        for client in self._borrowers:
            client.leases.tick(self._time_of(client))

    def reset(self) -> None:
        """Reset the counter of the simulated key at the owner when its leases have been returned,
        or after `_RESET_WAIT_NS`; see `node.requests.leases.lease_returns`."""
        owner, waiting, is_done = self._owner, ExitStack(), False

        def decide() -> None:
            nonlocal is_done
            if not is_done and owner is self._owner:
                owner.lender.decide(Batch(Op.RESET, [KEY], [0]), self.now)
                self.resets.append(len(self.admitted))
            is_done = True
            waiting.close()

        if not owner.lender.lent_keys([KEY], self.now):
            decide()
            return
        later = partial(self._schedule, 0, decide)
        waiting.enter_context(owner.lender.withheld([KEY], lambda _: later()))
        self._schedule(_RESET_WAIT_NS, decide)

    def change_limit(self, limit: Limit) -> None:
        """Change the limit, as a node does after a change of rules."""
        self._rule = Rule(_RULE_ID, "d", (("k", None),), limit)
        self._owner.engine.set_rules({_RULE_ID: EngineRule(limit)})
        self._owner.lender.recall_all()

    def crash(self) -> None:
        """Crash the owner; the standby continues from the last replica, which contains no
        leases."""
        self.unsaved += self._since_copy
        self._since_copy = 0
        node, self._node = self._node, self._node + 1
        self._owner = self._new_owner()
        if self._copy is not None:
            self._owner.engine.restore(self._copy, self._copied_at)
        for client in self._borrowers:
            self._schedule(
                self._random.randrange(_NOTICE_NS), partial(client.leases.drop_node, node)
            )

    # -- messages ------------------------------------------------------------------------------

    def _ask(self, number: int, ask: LeaseAsk) -> bool:
        client, asked_at = self._borrowers[number], self._time_of(self._borrowers[number])
        node = self._node if ask.node is None else ask.node
        borrow = LeaseRequest(1, ask.key, ask.want, list(ask.leases), list(ask.spent))

        def on_arrival() -> None:
            if node != self._node:
                answer = None
            else:
                answer = self._owner.lender.lend(client, borrow, self.now)
                self._since_copy += answer.units
            self._send(lambda: take(answer), lambda: take(None))

        def take(answer: LeaseGrant | None) -> None:
            if node != self._node:
                answer = None
            client.leases.on_answer(ask, node, asked_at, answer)

        self._send(on_arrival, lambda: take(None))
        return True

    def _recall(self, client: _Borrower, keys: Sequence[bytes]) -> None:
        node, wanted = self._node, list(keys)
        self._send(lambda: client.leases.recall(node, wanted, self._time_of(client)), lambda: None)

    def _send(self, on_arrival: Callable[[], None], on_loss: Callable[[], None]) -> None:
        is_lost = self._random.random() < self._loss
        self._schedule(self._random.randrange(_DELAY_NS), on_loss if is_lost else on_arrival)

    # -- replication, time and the owner's answers ----------------------------------------------

    def _schedule(self, after_ns: int, call: Callable[[], None]) -> None:
        heappush(self._events, (self.now + after_ns, next(self._order), call))

    def _replicate(self) -> None:
        with self._owner.lender.counted([KEY], self.now):
            self._copy = self._owner.engine.snapshot([KEY], self.now)
        self._since_copy, self._copied_at = 0, self.now
        self._schedule(_REPLICATION_NS, self._replicate)

    def _time_of(self, client: _Borrower) -> float:
        return self.now / NS_PER_SECOND + client.offset

    def _new_owner(self) -> _Owner:
        engine = Engine(max_keys=100)
        engine.set_rules({_RULE_ID: EngineRule(self.limit)})
        first = 1 + self._node * 1_000_000
        lender = Lender[_Borrower](engine, lambda _: self._rule, self._recall, first_lease=first)
        return _Owner(engine, lender)

    def _new_borrower(self, number: int) -> _Borrower:
        leases = Leases(lambda ask: self._ask(number, ask))
        return _Borrower(number, self._random.uniform(-1e6, 1e6), leases)


def replayed(limit: Limit, admitted: Sequence[Admission]) -> int:
    """Replay admissions on an owner without leases, and return the units that it denies.

    Excess units do not count against later admissions.
    """
    engine = Engine(max_keys=100)
    engine.set_rules({_RULE_ID: EngineRule(limit)})
    over = 0
    for each in admitted:
        outcomes = engine.decide([KEY], [each.units], [], [], [], each.at)
        if outcomes.codes[0] != Code.ALLOWED:
            over += each.units
    return over
