"""Leases under everything that can go wrong: the real cores, owner and borrowers, in virtual time.

One hot key, an owner with a standby that gets a copy now and then, borrowers whose messages are
late, lost and overtake each other, a crash, a change of the limit. Every admission is written down
when it happens, and an oracle that knows no leases looks at them afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from node.requests.client_leases import Lender
from ringfence.client.local_cache.leases import LeaseAsk, Leases
from ringfence.limiter import NS_PER_SECOND, Code, Engine, EngineRule, Limit, Snapshot
from ringfence.rules import Rule
from ringfence.wire import Batch, LeaseGrant, LeaseRequest, Op

__all__ = ["Admission", "LendingWorld", "replayed"]

_START = 1_000 * NS_PER_SECOND
_RULE_ID = 7
KEY = _RULE_ID.to_bytes(8, "big") + b"hot"
_COPY_NS = 100_000_000
_LATE_NS = 40_000_000
_NOTICE_NS = 2 * NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Admission:
    """Units that passed at an instant."""

    at: int
    units: int
    by_lease: bool


@dataclass(slots=True)
class _Owner:
    engine: Engine
    lender: "Lender[_Borrower]"


@dataclass(slots=True, eq=False)
class _Borrower:
    number: int
    offset: float
    """Its clock is ahead by so much."""
    leases: Leases
    trusts: set[int] = field(default_factory=set)


class LendingWorld:
    """Run `check` and `run_until`; `admitted` tells what passed."""

    def __init__(self, seed: int, limit: Limit, borrowers: int = 4, loss: float = 0.1) -> None:
        self.now = _START
        self.admitted: list[Admission] = []
        self.unsaved = 0
        """Units that an owner had decided or lent after its last copy when it crashed."""
        self._random = Random(seed)  # noqa: S311 - a history per seed is the point
        self._loss = loss
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._rule = Rule(_RULE_ID, "d", (("k", None),), limit)
        self._life = 0
        self._owner = self._new_owner()
        self._copy: Snapshot | None = None
        self._copied_at = self.now
        self._since_copy = 0
        self._borrowers = [self._new_borrower(number) for number in range(borrowers)]
        self._plan(_COPY_NS, self._copy_now)

    @property
    def limit(self) -> Limit:
        """The limit in force."""
        assert self._rule.limit is not None
        return self._rule.limit

    def lent(self) -> int:
        """Units that are out now."""
        return self._owner.lender.held(KEY)

    def check(self, borrower: int, cost: int = 1) -> bool:
        """Have a borrower check the key: by its lease, else by the owner."""
        who = self._borrowers[borrower]
        if who.leases.spend(KEY, cost, self._time_of(who)) is not None:
            self.admitted.append(Admission(self.now, cost, by_lease=True))
            return True
        outcomes = self._owner.lender.decide(Batch(Op.CHECK, [KEY], [cost]), self.now)
        is_allowed = outcomes.codes[0] == Code.ALLOWED
        if is_allowed:
            self._since_copy += cost
            self.admitted.append(Admission(self.now, cost, by_lease=False))
        return is_allowed

    def run_until(self, instant: int) -> None:
        """Let time pass, and what is under way arrive."""
        while self._events and self._events[0][0] <= instant:
            self.now, _, happen = heappop(self._events)
            happen()
        self.now = instant
        for who in self._borrowers:
            who.leases.tick(self._time_of(who))

    def reset(self) -> None:
        """Forget what was counted."""
        self._owner.lender.decide(Batch(Op.RESET, [KEY], [0]), self.now)

    def change_limit(self, limit: Limit) -> None:
        """Put another limit in force, as a node does."""
        self._rule = Rule(_RULE_ID, "d", (("k", None),), limit)
        self._owner.engine.set_rules({_RULE_ID: EngineRule(limit)})
        self._owner.lender.recall_all()

    def crash(self) -> None:
        """End the owner; its standby goes on from the last copy, and knows of no lease."""
        self.unsaved += self._since_copy
        self._since_copy = 0
        life, self._life = self._life, self._life + 1
        self._owner = self._new_owner()
        if self._copy is not None:
            self._owner.engine.restore(self._copy, self._copied_at)
        for who in self._borrowers:
            self._plan(self._random.randrange(_NOTICE_NS), partial(who.leases.drop_node, life))

    # -- messages ------------------------------------------------------------------------------

    def _ask(self, number: int, ask: LeaseAsk) -> None:
        who, asked_at = self._borrowers[number], self._time_of(self._borrowers[number])
        life = self._life if ask.node is None else ask.node
        borrow = LeaseRequest(1, ask.key, ask.want, list(ask.leases), list(ask.spent))

        def arrive() -> None:
            if life != self._life:
                answer = None
            else:
                answer = self._owner.lender.lend(who, borrow, self.now)
                self._since_copy += answer.units
            self._send(lambda: take(answer), lambda: take(None))

        def take(answer: LeaseGrant | None) -> None:
            if life != self._life:
                answer = None
            who.leases.on_answer(ask, life, asked_at, answer)

        self._send(arrive, lambda: take(None))

    def _recall(self, who: _Borrower, keys: Sequence[bytes]) -> None:
        life, wanted = self._life, list(keys)
        self._send(lambda: who.leases.recall(life, wanted, self._time_of(who)), lambda: None)

    def _send(self, arrive: Callable[[], None], get_lost: Callable[[], None]) -> None:
        is_lost = self._random.random() < self._loss
        self._plan(self._random.randrange(_LATE_NS), get_lost if is_lost else arrive)

    # -- the rest ------------------------------------------------------------------------------

    def _plan(self, after_ns: int, happen: Callable[[], None]) -> None:
        heappush(self._events, (self.now + after_ns, next(self._order), happen))

    def _copy_now(self) -> None:
        with self._owner.lender.counted([KEY], self.now):
            self._copy = self._owner.engine.snapshot([KEY], self.now)
        self._since_copy, self._copied_at = 0, self.now
        self._plan(_COPY_NS, self._copy_now)

    def _time_of(self, who: _Borrower) -> float:
        return self.now / NS_PER_SECOND + who.offset

    def _new_owner(self) -> _Owner:
        engine = Engine(max_keys=100)
        engine.set_rules({_RULE_ID: EngineRule(self.limit)})
        first = 1 + self._life * 1_000_000
        lender = Lender[_Borrower](engine, lambda _: self._rule, self._recall, first_lease=first)
        return _Owner(engine, lender)

    def _new_borrower(self, number: int) -> _Borrower:
        leases = Leases(lambda ask: self._ask(number, ask))
        return _Borrower(number, self._random.uniform(-1e6, 1e6), leases)


def replayed(limit: Limit, admitted: Sequence[Admission]) -> int:
    """Count the units that an owner without leases would not have let pass at those instants.

    What was too much does not count against what follows.
    """
    engine = Engine(max_keys=100)
    engine.set_rules({_RULE_ID: EngineRule(limit)})
    over = 0
    for each in admitted:
        outcomes = engine.decide([KEY], [each.units], [], [], [], each.at)
        if outcomes.codes[0] != Code.ALLOWED:
            over += each.units
    return over
