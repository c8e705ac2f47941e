"""Work of one turn of the event loop while a node takes over the shards of a killed owner."""

from collections.abc import Sequence

import pytest
import trio

from hashring import Member, Ring
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.takeover_steps import MAX_COST, TakeoverSteps, cost_of
from node.shards.transfers.shard_receiver import ShardReceiver
from node.shards.transfers.shard_search import ShardSearch
from node.shards.transfers.shard_sources import ShardSources
from ringfence.limiter import Algorithm, EngineRule, Limit
from ringfence.peering.engine_choice import new_engine
from tests.node.shards.transfer_peers import DAY, NOW, RULE, A, B

KEYS = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(20_000)]

MOST_SHARDS = 2 * MAX_COST // cost_of(1)
"""Most shards with a replica in two steps: trio runs the tasks of a turn in any order."""


def standby_with_replicas() -> ShardOwnership:
    engines = [
        new_engine(
            max_keys=100_000, max_bytes=None, first_slot_id=1, secret=bytes(16), keeps_keys=True
        )
        for _ in "ab"
    ]
    for engine in engines:
        limit = Limit.of_ns(100, DAY, algorithm=Algorithm.FIXED_WINDOW)
        engine.set_rules({RULE: EngineRule(limit)})
    engines[0].charge(KEYS, [1] * len(KEYS), [0] * len(KEYS), NOW)
    ownership = ShardOwnership(
        *(B, engines[1], Counters(), lambda key: DAY, lambda keys: None, lambda shards: None),
        max_keys=100_000,
    )
    ownership.keep_replica(A, engines[0].pack(KEYS, NOW), NOW, [(5,)])
    return ownership


class Turns:
    """Shards that are held after each turn of the event loop."""

    def __init__(self, ownership: ShardOwnership) -> None:
        self.held: list[int] = []
        self._ownership = ownership

    async def run(self) -> None:
        while True:
            self.held.append(self._ownership.count)
            await trio.lowlevel.checkpoint()

    @property
    def most(self) -> int:
        return max(
            [after - before for before, after in zip(self.held, self.held[1:], strict=False)]
        )


@pytest.mark.trio
async def test_a_search_takes_over_a_killed_owners_shards_in_steps_of_bounded_work() -> None:
    ownership, killed, alone = standby_with_replicas(), Ring.of([Member(A)]), Ring.of([Member(B)])
    sources = ShardSources(B)
    sources.on_ring_change(killed, alone, alone, ownership.held)
    shards, received, turns = ownership.replicas.shards(), list[int](), Turns(ownership)
    search = ShardSearch(
        *(B, ownership, sources, ShardReceiver(Counters(), lambda name: None), lambda: NOW),
        *(received.extend, shards, None),
    )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await search.run()
        nursery.cancel_scope.cancel()

    assert all([ownership.held[shard] for shard in shards])
    assert sorted(received) == shards
    assert turns.most <= MOST_SHARDS


@pytest.mark.trio
async def test_takeovers_of_many_requests_share_the_steps() -> None:
    ownership, steps = standby_with_replicas(), TakeoverSteps()
    shards, turns = ownership.replicas.shards(), Turns(ownership)

    def take(some: Sequence[int]) -> bool:
        for shard in some:
            ownership.take_over(shard, A, [*ownership.replicas.of(shard)], NOW)
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        async with trio.open_nursery() as requests:
            for start in range(0, len(shards), 200):
                part = shards[start : start + 200]
                requests.start_soon(steps.run, part, ownership.replicas.size_of, take)
        nursery.cancel_scope.cancel()

    assert all([ownership.held[shard] for shard in shards])
    assert turns.most <= MOST_SHARDS


@pytest.mark.trio
async def test_a_takeover_ends_when_its_reason_ends_between_two_steps() -> None:
    taken: list[int] = []

    def take(some: Sequence[int]) -> bool:
        taken.extend(some)
        return len(taken) < 100

    is_done = await TakeoverSteps().run(range(1000), lambda shard: 20, take)

    assert not is_done
    assert 100 <= len(taken) < 200


@pytest.mark.trio
async def test_a_shard_with_more_keys_than_one_step_has_a_step_of_its_own() -> None:
    parts: list[list[int]] = []

    def take(some: Sequence[int]) -> bool:
        parts.append([*some])
        return True

    sizes = [1, 100_000, 1, 1]
    await TakeoverSteps().run(range(4), sizes.__getitem__, take)

    assert parts == [[0], [1], [2, 3]]
