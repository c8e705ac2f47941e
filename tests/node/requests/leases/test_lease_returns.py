"""Leases that clients return before a reset or a transfer of their keys."""

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import SHARDS, shard_of
from node.requests.leases.lease_grants import Lender
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.sessions.caller import Caller
from ringfence.limiter import NS_PER_SECOND, Algorithm, Engine, EngineRule, Limit
from ringfence.rules import adhoc_rule, encode_key
from ringfence.wire import Batch, LeaseRequest, Op

LIMIT = Limit.of_ns(1000, 60 * NS_PER_SECOND, Algorithm.FIXED_WINDOW)
RULE = adhoc_rule(LIMIT)
HOT, WARM, COLD = [encode_key(RULE.id, (name,)) for name in ("hot", "warm", "cold")]
CLIENT = cast(Caller, "session")


class Owner:
    """Owner that has lent units of `HOT` and `WARM`."""

    def __init__(self) -> None:
        engine = Engine(max_keys=100)
        engine.set_rules({RULE.id: EngineRule(LIMIT)})
        self.recalled: list[bytes] = []
        self.lender: Lender[Caller] = Lender(
            *(engine, {RULE.id: RULE}.get, lambda client, keys: self.recalled.extend(keys)),
            first_lease=1,
        )
        self.now = 0
        self.returns = LeaseReturns(self.lender, lambda: self.now)
        for key in (HOT, WARM):
            assert self.lend(key, 100) == 100

    def lend(self, key: bytes, want: int, *leases: int) -> int:
        request = LeaseRequest(1, key, want, [*leases], [10] * len(leases))
        return self.lender.lend(CLIENT, request, self.now).units

    async def give_back(self, key: bytes, lease: int, seconds: float) -> None:
        await trio.sleep(seconds)
        self.lend(key, 0, lease)

    async def wait(self, *keys: bytes, within: float = 10.0) -> float:
        """Return how long a reset of keys waits for leases."""
        began = trio.current_time()
        async with self.returns.awaited(keys, within):
            assert self.lend(HOT, 100) == 0
            return trio.current_time() - began


@pytest.mark.parametrize(
    ("op", "keys", "waits"),
    [
        (Op.RESET, [HOT], True),
        (Op.RESET, [COLD, WARM], True),
        (Op.RESET, [COLD], False),
        (Op.CHECK, [HOT], False),
        (Op.CHARGE, [HOT], False),
        (Op.REFUND, [HOT], False),
    ],
)
def test_only_a_reset_of_a_key_with_open_leases_waits(
    op: Op, keys: list[bytes], *, waits: bool
) -> None:
    owner = Owner()

    assert owner.returns.must_precede(Batch(op, keys, [1] * len(keys))) is waits
    owner.now = NS_PER_SECOND
    assert not owner.returns.must_precede(Batch(op, keys, [1] * len(keys)))


async def test_a_reset_waits_for_the_leases_of_all_its_keys(autojump_clock: MockClock) -> None:
    owner = Owner()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.give_back, HOT, 1, 0.1)
        nursery.start_soon(owner.give_back, WARM, 2, 0.3)
        waited = await owner.wait(HOT, COLD, WARM)

    assert waited == pytest.approx(0.3)
    assert owner.recalled == [HOT, WARM]
    assert owner.lend(HOT, 100) == 100


@pytest.mark.parametrize(("within", "seconds"), [(0.3, 0.3), (10.0, 1.0)])
async def test_a_reset_waits_at_most_for_the_given_time_or_until_the_leases_end(
    autojump_clock: MockClock, within: float, seconds: float
) -> None:
    assert await Owner().wait(HOT, within=within) == pytest.approx(seconds)


async def test_a_reset_does_not_wait_for_leases_that_have_ended(autojump_clock: MockClock) -> None:
    owner = Owner()
    owner.now = NS_PER_SECOND

    async with owner.returns.awaited([HOT], 10.0):
        pass

    assert trio.current_time() == 0


def test_the_lent_keys_of_shards_are_found() -> None:
    owner = Owner()
    hot, warm, cold = map(shard_of, (HOT, WARM, COLD))

    assert owner.returns.keys_of([hot, cold]) == [HOT]
    assert owner.returns.keys_of(range(SHARDS)) == [HOT, WARM]
    assert owner.returns.keys_of([cold]) == owner.returns.keys_of([]) == []
    owner.now = NS_PER_SECOND
    assert owner.returns.keys_of([hot, warm]) == []
