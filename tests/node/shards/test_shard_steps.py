"""Work of one turn of the event loop while a node takes over, sends or receives many shards."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, count

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.shard_steps import MAX_COST, ShardSteps, cost_of
from node.shards.transfers.shard_receiver import IncomingTransfer, ShardReceiver
from node.shards.transfers.shard_search import ShardSearch
from node.shards.transfers.shard_sender import ShardSender
from node.shards.transfers.shard_sources import ShardSources
from node.shards.transfers.unacknowledged_transfers import Reply
from ringfence.limiter import Algorithm, Engine, EngineRule, Limit
from ringfence.peering.engine_choice import new_engine
from ringfence.wire import Holding, Pull, ReplicaRequest
from tests.node.shards.transfer_peers import DAY, NOW, RULE, A, B, C, Peer, Peers, ring

KEYS = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(20_000)]

MOST_SHARDS = MAX_COST // cost_of(1)
"""Most shards with a replica in one step."""


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


class Turns(trio.abc.Instrument):
    """Number of shards, keys or tasks after each turn of the event loop."""

    def __init__(self, size: Callable[[], int]) -> None:
        self.sizes = [size()]
        self._size = size
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self.sizes.append(self._size())

    @property
    def most(self) -> int:
        return max(
            [abs(after - before) for before, after in zip(self.sizes, self.sizes[1:], strict=False)]
        )


def slow_processor() -> Callable[[], int]:
    """Return a stopwatch that advances by 0.3 ms each time it is read."""
    return partial(next, count(0, 300_000))


@asynccontextmanager
async def returning_owner() -> AsyncIterator[
    tuple[Peer, Peer, Callable[[Sequence[int]], Awaitable[None]]]
]:
    """Standby A, owner B, and a function by which B fetches shards back from A."""
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        standby, owner = peers.add(A), peers.add(B)
        await wait_all_tasks_blocked()  # Both have started.

        async def reclaim(shards: Sequence[int]) -> None:
            is_done = trio.Event()
            owner.handoff.reclaim(A, shards, is_done.set)
            await is_done.wait()

        yield standby, owner, reclaim
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_search_takes_over_a_killed_owners_shards_in_steps_of_bounded_work() -> None:
    ownership, killed, alone = standby_with_replicas(), Ring.of([Member(A)]), Ring.of([Member(B)])
    sources = ShardSources(B)
    sources.on_ring_change(killed, alone, alone, ownership.held)
    shards, received, turns = (
        ownership.replicas.shards(),
        list[int](),
        Turns(lambda: ownership.count),
    )
    search = ShardSearch(
        *(
            B,
            ownership,
            sources,
            ShardReceiver(Counters(), lambda name: None, ownership.steps),
            lambda: NOW,
        ),
        *(received.extend, shards, None),
    )

    await search.run()

    assert all([ownership.held[shard] for shard in shards])
    assert sorted(received) == shards
    assert turns.most <= MOST_SHARDS


@pytest.mark.trio
async def test_takeovers_of_many_requests_share_the_steps() -> None:
    ownership, steps = standby_with_replicas(), ShardSteps()
    shards, turns = ownership.replicas.shards(), Turns(lambda: ownership.count)

    def take(some: Sequence[int]) -> bool:
        for shard in some:
            ownership.take_over(shard, A, [*ownership.replicas.of(shard)], NOW)
        return True

    async with trio.open_nursery() as requests:
        for start in range(0, len(shards), 200):
            part = shards[start : start + 200]
            requests.start_soon(steps.run, part, ownership.replicas.size_of, take)

    assert all([ownership.held[shard] for shard in shards])
    assert turns.most <= MOST_SHARDS


@pytest.mark.trio
async def test_a_takeover_on_a_slow_processor_has_more_steps() -> None:
    ownership, steps = standby_with_replicas(), ShardSteps()
    shards, turns = ownership.replicas.shards(), Turns(lambda: ownership.count)
    now_ns = 0
    steps.stopwatch = lambda: now_ns

    def take(some: Sequence[int]) -> bool:
        nonlocal now_ns
        now_ns += 600_000
        for shard in some:
            ownership.take_over(shard, A, [*ownership.replicas.of(shard)], NOW)
        return True

    assert await steps.run(shards, ownership.replicas.size_of, take)

    assert all([ownership.held[shard] for shard in shards])
    assert turns.most <= 50 // cost_of(1) * 2


@pytest.mark.trio
async def test_a_takeover_ends_when_its_reason_ends_between_two_steps() -> None:
    taken: list[int] = []

    def take(some: Sequence[int]) -> bool:
        taken.extend(some)
        return len(taken) < 100

    is_done = await ShardSteps().run(range(1000), lambda shard: 20, take)

    assert not is_done
    assert 100 <= len(taken) < 200


@pytest.mark.trio
async def test_a_shard_with_more_keys_than_one_step_has_a_step_of_its_own() -> None:
    parts: list[list[int]] = []

    def take(some: Sequence[int]) -> bool:
        parts.append([*some])
        return True

    sizes = [1, 100_000, 1, 1]
    await ShardSteps().run(range(4), sizes.__getitem__, take)

    assert parts == [[0], [1], [2, 3]]


async def test_two_owners_send_shards_to_a_new_member_in_steps_of_bounded_work(
    autojump_clock: MockClock,
) -> None:
    keys = KEYS[:6000]
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owners, new, before = [peers.add(A), peers.add(C)], peers.add(B), ring(A, C)
        for peer in owners:
            peer.fill(*[key for key in keys if before.owner(shard_of(key)) == peer.name], hits=2)
        sent = [Turns(lambda peer=peer: peer.ownership.count) for peer in owners]
        received = Turns(lambda: len(new.engine))

        new.handoff.on_ring_change(before, ring(B), ring(B))
        await new.handoff.wait_all_fetched()
        nursery.cancel_scope.cancel()

    assert sum(new.used(*keys)) == 2 * len(keys)
    assert min(turns.sizes[0] for turns in sent) > 1000
    assert max(turns.most for turns in sent) <= 32
    assert received.most <= 50  # Keys of 32 shards.


async def test_the_other_shards_with_counters_are_asked_for_together(
    autojump_clock: MockClock,
) -> None:
    """The first answer has 16 of 200 shards, so the others would need 12 round trips of 1 ms."""
    keys = [*{shard_of(key): key for key in KEYS}.values()][:200]
    async with returning_owner() as (standby, owner, reclaim):
        standby.fill(*keys, hits=2)
        started_at = trio.current_time()

        await reclaim(sorted(map(shard_of, keys)))

        assert trio.current_time() - started_at < 0.005
    assert owner.used(*keys) == [2] * 200


async def test_few_shards_at_a_time_are_sent_to_a_slow_node_and_not_yet_received(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node decides their checks."""
    keys = [*{shard_of(key): key for key in KEYS}.values()][:1000]
    async with returning_owner() as (standby, owner, reclaim):
        standby.fill(*keys, hits=2)
        turn, is_busy = owner.ownership.steps.turn, trio.Lock()

        async def slow_turn() -> None:
            await turn()
            async with is_busy:
                await trio.sleep(0.01)

        monkeypatch.setattr(owner.ownership.steps, "turn", slow_turn)
        total = standby.ownership.count
        moving = Turns(lambda: total - standby.ownership.count - owner.ownership.count)

        await reclaim(sorted(map(shard_of, keys)))

        assert max(moving.sizes) <= 4 * 16
    assert owner.used(*keys) == [2] * 1000


async def test_members_on_a_slow_processor_move_fewer_shards_in_a_turn(
    autojump_clock: MockClock,
) -> None:
    async with returning_owner() as (standby, owner, reclaim):
        standby.fill(*KEYS[:80], hits=2)
        for peer in (standby, owner):
            peer.ownership.steps.stopwatch = slow_processor()
        sent = Turns(lambda: standby.ownership.count)
        received = Turns(lambda: owner.ownership.count)

        await reclaim(sorted({*map(shard_of, KEYS[:80])}))

    assert sum(owner.used(*KEYS[:80])) == 160
    assert max(sent.most, received.most) <= 4


@pytest.mark.trio
async def test_shards_without_counters_elsewhere_are_processed_in_short_turns() -> None:
    seen: list[int] = []
    steps = ShardSteps(slow_processor())
    receiver, turns = ShardReceiver(Counters(), lambda name: None, steps), Turns(lambda: len(seen))
    reply = Reply()
    reply.add_nothing([*range(100)], "")

    def take(sender: NodeId, transfer: IncomingTransfer) -> bool:
        seen.append(transfer.shard)
        return False

    await receiver.receive(A, reply.pulled(1), {*range(100)}, take)

    assert len(seen) == 100
    assert turns.most <= 4


def test_an_answer_with_replicas_is_measured_from_its_own_start() -> None:
    ownership = standby_with_replicas()
    ownership.steps.stopwatch = lambda: 10**12
    sender = ShardSender(ownership, Engine(max_keys=10), Counters(), first_transfer=1)
    shards = ownership.replicas.shards()[:4]

    reply = sender.answer(A, Pull(1, shards, 0, 0, ReplicaRequest.ONLY), NOW, lambda shard: False)

    copies = [each.shards for each in reply.groups if each.hold is Holding.COPY]
    assert sorted(chain.from_iterable(copies)) == shards


async def test_a_member_answers_one_of_many_requests_for_shards_in_a_turn(
    autojump_clock: MockClock,
) -> None:
    async with returning_owner() as (standby, owner, reclaim):
        standby.fill(*KEYS[:6000], hits=2)
        turns = Turns(lambda: standby.ownership.count)

        await reclaim([shard for shard, is_held in enumerate(standby.ownership.held) if is_held])

    assert sum(owner.used(*KEYS[:6000])) == 12_000
    assert turns.most <= 32


@pytest.mark.parametrize(("is_slow", "most"), [(False, 32), (True, 4)])
async def test_an_owner_receives_shards_without_counters_that_were_covered_in_small_steps(
    autojump_clock: MockClock, *, is_slow: bool, most: int
) -> None:
    async with returning_owner() as (standby, owner, reclaim):
        standby.ownership.take_over_blind(range(1000), B, NOW, [])
        if is_slow:
            owner.ownership.steps.stopwatch = slow_processor()
        turns = Turns(lambda: owner.ownership.count)

        await reclaim(range(1000))

    assert owner.ownership.count == 1000
    assert turns.most <= most


async def test_a_member_that_waited_long_for_its_step_answers_a_request_for_shards(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with returning_owner() as (standby, owner, reclaim):
        standby.fill(*KEYS[:100], hits=2)
        monkeypatch.setattr(standby.ownership.steps, "turn", partial(trio.sleep, 60))

        await reclaim([*{*map(shard_of, KEYS[:100])}])

    assert sum(owner.used(*KEYS[:100])) == 200


async def test_steps_run_one_in_a_turn_in_the_order_in_which_they_were_asked_for(
    autojump_clock: MockClock,
) -> None:
    steps, asked, ran = ShardSteps(), list[int](), list[int]()

    async def step(number: int) -> None:
        asked.append(number)
        await steps.turn()
        ran.append(number)

    turns = Turns(lambda: len(ran))
    async with trio.open_nursery() as tasks:
        for number in range(20):
            tasks.start_soon(step, number)

    assert ran == asked
    assert turns.most == 1


async def test_a_step_whose_task_is_cancelled_does_not_hold_up_the_next_one(
    autojump_clock: MockClock,
) -> None:
    steps = ShardSteps()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            nursery.start_soon(steps.turn)
            await wait_all_tasks_blocked()
            first.cancel()
            await steps.turn()
        with trio.fail_after(1):
            await steps.turn()
