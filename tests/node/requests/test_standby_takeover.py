"""Takeover by a standby: only an owner that answers no ping counts as silent."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import SHARDS, Member, NodeId, Ring, shard_of
from node.requests.placement import ShardPlacement
from node.requests.standby_takeover import StandbyTakeover
from node.shards.ownership.ownership import ShardOwnership
from node.shards.replicas import Replicas
from node.shards.shard_steps import ShardSteps
from ringfence.limiter import Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.peering.target import ResultCallback
from ringfence.wire import Batch, Op, Ping, Results, Source
from tests.node.shards.ownership.ownership_host import KEY as HOST_KEY
from tests.node.shards.ownership.ownership_host import NOW, Host

OWNER = NodeId("o")
KEY = bytes(7) + b"\x01k"


class Way:
    """Link to an owner that answers pings at once, or none."""

    is_lost = False

    def __init__(self, *, answers_pings: bool, answers_after: float) -> None:
        self.answers_pings = answers_pings
        self.answers_after = answers_after
        self.pings = 0
        self._since: float | None = None

    @property
    def silent_s(self) -> float:
        return 0.0 if self._since is None else trio.current_time() - self._since

    def ask(self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback) -> None:
        self._since = trio.current_time()

        async def answer() -> None:
            await trio.sleep(self.answers_after)
            self._since = None
            done(Results(decide_batch(engine(), batch, 1), [Source.OWNER]))

        trio.lowlevel.spawn_system_task(answer)

    def call(self, make: Callable[[int], object], on_reply: Callable[[object], None]) -> None:
        assert make(1) == Ping(1)
        self.pings += 1
        if self.answers_pings:
            self._since = trio.current_time()


def engine() -> Engine:
    made = Engine(max_keys=10)
    made.set_rules({1: EngineRule(Limit(5, 60))})
    return made


class Placement:
    def holder_of(self, shard: int) -> NodeId:
        return OWNER


class Ownership:
    def __init__(self) -> None:
        self.steps = ShardSteps()
        self.replicas = Replicas(1)
        self.held = bytes(SHARDS)
        self.take_over: Callable[..., None] = lambda *fields: None


def standby(way: Way, *, lag_ns: int = 0) -> tuple[StandbyTakeover, list[int]]:
    """A standby's takeover, and the shards that it has taken over."""
    taken: list[int] = []

    class Takeover(StandbyTakeover):
        def _take_over(self, shards: Sequence[int]) -> None:
            taken.extend(shards)

    made = Takeover(
        *(cast(ShardPlacement, Placement()), cast(ShardOwnership, Ownership())),
        *(lambda name: cast(Link, way), lambda: round(trio.current_time() * 1e9)),
        *(lambda name: False, lambda: lag_ns),
    )
    return made, taken


async def test_an_owner_that_answers_pings_is_waited_for(autojump_clock: MockClock) -> None:
    way = Way(answers_pings=True, answers_after=0.9)
    takeover, _ = standby(way)

    results = await takeover.ask_owner(OWNER, Batch(Op.CHECK, [KEY], [1]), 1)

    assert results is not None
    assert results.sources == [Source.OWNER]
    assert 5 <= way.pings <= 20


async def test_an_owner_that_answers_no_ping_counts_as_silent(autojump_clock: MockClock) -> None:
    way = Way(answers_pings=False, answers_after=60)
    takeover, taken = standby(way)

    began = trio.current_time()
    assert await takeover.ask_owner(OWNER, Batch(Op.CHECK, [KEY], [1]), 1) is None
    assert await takeover.take_over_if_unreachable([3])

    assert taken == [3]
    assert way.pings == 1
    assert trio.current_time() - began < 0.2


@pytest.mark.parametrize("answers_pings", [False, True])
@pytest.mark.parametrize("lag_ns", [0, 10**9])
async def test_an_owner_that_waits_for_another_data_center_is_pinged_before_a_takeover(
    autojump_clock: MockClock, *, lag_ns: int, answers_pings: bool
) -> None:
    way = Way(answers_pings=answers_pings, answers_after=60)
    takeover, taken = standby(way, lag_ns=lag_ns)
    way.ask(Batch(Op.CHECK, [KEY], [1]), hops=1, as_standby=False, done=lambda results: None)
    await trio.sleep(0.5)  # The owner has sent nothing since this request.

    assert await takeover.take_over_if_unreachable([3]) is not answers_pings

    assert taken == ([] if answers_pings else [3])
    assert way.pings == 1


def test_a_member_that_returns_learns_of_shards_that_are_on_their_way_to_it() -> None:
    """It decided by its old counters while their newer ones arrived."""
    owner, standby = Host("a"), Host("b")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover(owner.name)
    takeover = StandbyTakeover(
        *(cast(ShardPlacement, Placement()), standby.ownership, lambda name: None),
        *(lambda: NOW, lambda name: False, lambda: 0),
    )
    covered = takeover.taken_over_from(owner.name)

    sent = owner.ask(standby)

    assert covered == takeover.taken_over_from(owner.name) == [shard_of(HOST_KEY)]
    assert takeover.taken_over_from(NodeId("c")) == []
    [group] = sent.groups
    standby.ownership.acknowledge(owner.name, group.shards, group.transfer_id, NOW)
    assert takeover.taken_over_from(owner.name) == []


@pytest.mark.parametrize("names", ["", "m", "o", "mo", "ox", "mox"])
def test_a_takeover_names_the_unreachable_owner_and_its_standby(names: str) -> None:
    placement = ShardPlacement(NodeId("m"), cast(ShardOwnership, Ownership()), lambda: NOW)
    ring = placement.ring = Ring.of([Member(NodeId(name)) for name in names])
    taken: list[tuple[object, ...]] = []
    ownership = Ownership()
    ownership.take_over = lambda *fields: taken.append(fields)
    takeover = StandbyTakeover(
        *(placement, cast(ShardOwnership, ownership), lambda name: None),
        *(lambda: NOW, lambda name: False, lambda: 0),
    )

    takeover._take_over(range(100))

    foreign = [shard for shard in range(100) if names and ring.owner(shard) != "m"]
    assert taken == [
        (shard, ring.owner(shard), [], NOW, list(filter(None, [ring.standby(shard)])))
        for shard in foreign
    ]
    assert len(taken) == {"": 0, "m": 0, "o": 100, "ox": 100}.get(names, len(foreign))
