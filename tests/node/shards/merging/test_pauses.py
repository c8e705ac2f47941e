"""Random pauses of an owner: each unit that owner or standby confirmed counts once.

A ledger of the requests is the oracle. The standby decides during the pause. The owner has some of
these requests in its socket, and may decide them before it receives the counters of the standby.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import shard_of
from ringfence.limiter import Limit
from ringfence.wire import CheckId, LeaseRequest, Op
from tests.node.shards.ownership.ownership_host import KEY, NOW, Host, limits_of

S = 10**9
SHARD = shard_of(KEY)
LIMITS = limits_of(10_000)
RESTING = 50
"""Units of the owner that no refund removes. A refund of more units than are counted has no exact
result when two members apply it."""
Request = tuple[Op, CheckId, int]


class Pause:
    """Owner, its standby, and the requests that each of them has decided."""

    def __init__(self, seed: int, limit: Limit, parts: int, ops: list[Op]) -> None:
        self.random = Random(seed)
        self.ops = ops
        self.now = NOW
        self.owner = Host("b", limit, lends=True)
        self.standby = Host("a", limit, parts=parts)
        self.done: dict[str, list[Request]] = {"a": [], "b": []}
        """Requests during the pause."""
        self.early: dict[CheckId, int] = {}
        """Units of the checks that were admitted before the pause."""
        self.unreplicated = 0
        """Units of early checks without a replica."""
        self.queue: list[Request] = []
        """Requests that the owner has received, too, but not decided."""
        self.leases: dict[int, int] = {}
        """Units that a client got by number of the lease."""
        self._number = 0
        self.owner.start()

    def run(self, *, lends: bool = False, owner_first: bool, way: str) -> Host:
        """Return the member that has the shard at the end. In `way`, `cross` means that transfers
        of owner and standby cross, and `pull` that only the owner sends its counters."""
        random, owner, standby = self.random, self.owner, self.standby
        for _ in range(random.randint(1, 3)):
            self.decide(owner, self.new(Op.CHECK, random.randint(100, 300)))
        if lends:
            assert owner.lender is not None
            grant = owner.lender.lend("client", LeaseRequest(1, KEY, 200, [], []), owner.now)
            self.leases[grant.lease] = grant.units
        # Members compare instants by the ages in a transfer, which takes less time than this.
        self.pass_time(S)
        owner.copy_to(standby)
        self.pass_time(S)
        for _ in range(random.randint(0, 1)):
            self.unreplicated = random.randint(1, 60)
            self.decide(owner, self.new(Op.CHECK, self.unreplicated))
        self.early = self.units(Op.CHECK, self.done["b"])
        self.done["b"].clear()
        self.pass_time()
        standby.cover("b")
        self.decide_as_standby()
        if owner_first:
            for request in self.queue:
                self.decide(owner, request)
            for _ in range(random.randint(0, 2)):
                self.decide(owner, self.new(Op.CHECK, random.randint(1, 60)))
        if lends:
            assert owner.lender is not None
            self.pass_time(2 * S)
            owner.lender.expire(owner.now)
        if way != "pull":
            reply = owner.ask(standby)
            self.pass_time()
        if way == "resume":
            owner.take(standby, reply)
            last = owner
        else:
            reply = standby.ask(owner)
            self.pass_time()
            standby.take(owner, reply)
            last = standby
        for request in self.queue:
            self.decide(last, request)
        return last

    def decide_as_standby(self) -> None:
        """Decide some requests at the standby; the owner gets some of them, too."""
        random = self.random
        left = self.before - self.unreplicated - RESTING
        for _ in range(random.randint(1, 6)):
            was_reset = self.after_reset("a") != self.done["a"]
            if random.random() < 0.2 and not was_reset:  # The owner's answer was lost.
                number = random.choice([*self.early])
                self.decide(self.standby, (Op.CHECK, number, self.early[number]))
                continue
            op = random.choice(self.ops)
            cost = 0 if op is Op.RESET else random.randint(1, 60)
            if op is Op.REFUND:
                cost = min(cost, left)
                left -= cost
            request = self.new(op, cost)
            self.decide(self.standby, request)
            if random.random() < 0.5:
                self.queue.append(request)

    def pass_time(self, longer_ns: int = 0) -> None:
        self.now += longer_ns + self.random.choice([1, S // 100, S // 4])
        self.owner.now = self.standby.now = self.now

    def new(self, op: Op, cost: int) -> Request:
        self._number += 1
        return op, (1, self._number, 0), cost

    def decide(self, host: Host, request: Request) -> None:
        """Decide a request like `RequestHandler`: a known one has no effect."""
        self.pass_time()
        op, number, cost = request
        if host.checks.find([number]):
            return
        self.done[host.name].append(request)
        if op is Op.CHECK:
            host.spend(cost, check_id=number)
        elif op is Op.REFUND:
            host.refund(cost, check_id=number, at=host.now)
        else:
            host.reset(number)

    def units(self, op: Op, requests: list[Request]) -> dict[CheckId, int]:
        return {number: cost for each, number, cost in requests if each is op}

    @property
    def before(self) -> int:
        """Units that were admitted before the pause."""
        return sum(self.early.values())

    def counted(self) -> int:
        """Return the units that count if there was no reset."""
        done = [*self.done["a"], *self.done["b"]]
        checks, refunds = self.units(Op.CHECK, done), self.units(Op.REFUND, done)
        return sum((self.early | checks).values()) - sum(refunds.values())

    def after_reset(self, name: str) -> list[Request]:
        """Return the requests that a member has decided after its last reset."""
        done = self.done[name]
        resets = [place for place, (op, *_) in enumerate(done) if op is Op.RESET]
        return done[resets[-1] + 1 :] if resets else done


WAYS = st.sampled_from(["resume", "pull", "cross"])
SEEDS = st.integers(0, 10**6)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(SEEDS, st.sampled_from(LIMITS), st.booleans(), WAYS, st.integers(1, 2))
def test_each_check_and_refund_of_a_paused_owner_and_its_standby_counts_once(
    seed: int, limit: Limit, owner_first: bool, way: str, parts: int
) -> None:
    pause = Pause(seed, limit, parts if way == "cross" else 1, [Op.CHECK, Op.CHECK, Op.REFUND])
    last = pause.run(owner_first=owner_first, way=way)

    assert last.used == pytest.approx(pause.counted(), abs=1)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(SEEDS, st.sampled_from(LIMITS), st.booleans(), WAYS, st.integers(1, 2))
def test_a_reset_removes_no_units_that_were_admitted_after_it(
    seed: int, limit: Limit, owner_first: bool, way: str, parts: int
) -> None:
    """Units that only one member has reset may count until the other one receives its reset."""
    ops = [Op.CHECK, Op.CHECK, Op.REFUND, Op.RESET]
    pause = Pause(seed, limit, parts if way == "cross" else 1, ops)
    last = pause.run(owner_first=owner_first, way=way)

    kept = [*pause.after_reset("a"), *pause.after_reset("b")]
    wiped = {*pause.early} | {
        number
        for name, done in pause.done.items()
        for _, number, _ in done[: len(done) - len(pause.after_reset(name))]
    }
    checks, refunds = pause.units(Op.CHECK, kept), pause.units(Op.REFUND, kept)
    certain = sum([cost for number, cost in checks.items() if number not in wiped])
    has_reset = any([op is Op.RESET for done in pause.done.values() for op, *_ in done])
    most = sum(checks.values()) + (pause.unreplicated if has_reset else pause.before)
    assert certain - sum(refunds.values()) - 1 <= last.used <= most + 1


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(SEEDS, st.sampled_from(LIMITS), st.booleans())
def test_only_spent_units_of_a_lease_count_after_a_pause(
    seed: int, limit: Limit, owner_first: bool
) -> None:
    pause = Pause(seed, limit, 1, [Op.CHECK])
    owner = pause.run(lends=True, owner_first=owner_first, way="resume")
    [(number, units)] = pause.leases.items()
    spent = pause.random.randint(0, units)
    for _ in range(2):  # The client repeats a report without an answer.
        report = LeaseRequest(2, KEY, 0, [number], [spent])
        assert owner.lender is not None
        owner.lender.settle("client", report, owner.now)

    assert owner.used == pytest.approx(pause.counted() + spent, abs=1)
