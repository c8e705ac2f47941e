"""Takeover by a standby: only an owner that answers no ping counts as silent."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import SHARDS, NodeId, Ring, shard_of
from hashring import Member as RingMember
from node.requests.placement import ShardPlacement
from node.requests.standby_takeover import StandbyTakeover
from node.shards.ownership.cover import Cover
from node.shards.ownership.ownership import ShardOwnership
from node.shards.replicas import Replicas
from node.shards.shard_steps import ShardSteps
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfers
from ringfence.errors import AccessDenied
from ringfence.limiter import Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.peering.target import SHED, ResultCallback
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
        self.covers: dict[int, Cover] = {}
        self.transfers = OutgoingTransfers()
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


def takeover_of(host: Host) -> StandbyTakeover:
    return StandbyTakeover(
        *(cast(ShardPlacement, Placement()), host.ownership, lambda name: None),
        *(lambda: NOW, lambda name: False, lambda: 0),
    )


def test_a_member_that_returns_learns_only_of_shards_that_may_have_decisions() -> None:
    """Thousands of others would delay these."""
    shards = [shard_of(HOST_KEY)]
    owner, standby, third = Host("a"), Host("b"), Host("c")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover(owner.name)
    assert takeover_of(standby).taken_over_from(owner.name) == []

    standby.spend(10**9)  # A denial is a decision, too.
    assert takeover_of(standby).taken_over_from(owner.name) == shards

    sent = third.ask(standby)
    third.take(standby, sent)
    assert takeover_of(third).taken_over_from(owner.name) == shards

    standby.cover(third.name)  # The transfer was not acknowledged.
    assert takeover_of(standby).taken_over_from(owner.name) == shards


def test_a_member_that_returns_learns_of_shards_that_are_on_their_way_to_it() -> None:
    """The returning member decided by its old counters while the newer ones were in flight."""
    owner, standby = Host("a"), Host("b")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover(owner.name)
    standby.spend(1)
    takeover = takeover_of(standby)
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
    ring = placement.ring = Ring.of([RingMember(NodeId(name)) for name in names])
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


class Member:
    """Link to an owner with a settable silence, which a pong ends after a while."""

    def __init__(
        self,
        *,
        silent_s: float = 0.0,
        is_lost: bool = False,
        answers_after: float | None = None,
        reply: object = None,
    ) -> None:
        self.is_lost = is_lost
        self.since = trio.current_time() - silent_s
        self.answers_after = answers_after
        self.reply = reply
        self.pinged_at: list[float] = []
        self.asked: list[tuple[int, bool]] = []

    @property
    def silent_s(self) -> float:
        return trio.current_time() - self.since

    def ask(self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback) -> None:
        self.asked.append((hops, as_standby))
        done(cast(Results, self.reply))

    def call(self, make: Callable[[int], object], on_reply: Callable[[object], None]) -> None:
        assert make(1) == Ping(1)
        self.pinged_at.append(trio.current_time())
        if self.answers_after is not None:
            trio.lowlevel.spawn_system_task(self._answer)

    async def _answer(self) -> None:
        assert self.answers_after is not None
        await trio.sleep(self.answers_after)
        self.since = trio.current_time()


class Judging:
    """Standby `m` of all shards, which judges their owner by a link to it."""

    def __init__(
        self,
        link: Member | None,
        *,
        is_suspect: bool = False,
        lag_ns: int = 0,
        ownership: Ownership | None = None,
    ) -> None:
        self.taken: list[int] = []
        self.lag_ns = lag_ns
        if ownership is None:
            ownership = Ownership()
            ownership.take_over = lambda shard, *fields: self.taken.append(shard)
        placement = ShardPlacement(NodeId("m"), cast(ShardOwnership, ownership), lambda: NOW)
        placement.ring = Ring.of([RingMember(OWNER)])
        self.takeover = StandbyTakeover(
            *(placement, cast(ShardOwnership, ownership)),
            *(lambda name: cast(Link, link), lambda: NOW + round(trio.current_time() * 1e9)),
            *(lambda name: is_suspect, lambda: self.lag_ns),
        )

    async def takes(self, *shards: int) -> bool:
        is_unreachable = await self.takeover.take_over_if_unreachable(shards or (3,))
        assert self.taken == ([*shards] or [3]) * is_unreachable
        self.taken.clear()
        return is_unreachable


async def test_an_owner_is_unreachable_without_a_link_or_if_its_link_is_lost_or_it_is_suspect(
    autojump_clock: MockClock,
) -> None:
    assert await Judging(None).takes(3, 4)
    assert not await Judging(Member()).takes()
    lost, suspect = Member(is_lost=True), Member()
    assert await Judging(lost).takes(3, 4)
    assert await Judging(suspect, is_suspect=True).takes()
    assert lost.pinged_at == suspect.pinged_at == []


@pytest.mark.parametrize(("silent_s", "is_unreachable"), [(0.099, False), (0.101, True)])
async def test_an_owner_is_unreachable_after_100_ms_of_silence_although_it_was_pinged(
    autojump_clock: MockClock, *, silent_s: float, is_unreachable: bool
) -> None:
    link = Member(silent_s=silent_s)

    assert await Judging(link).takes() is is_unreachable

    assert len(link.pinged_at) == is_unreachable


@pytest.mark.parametrize(
    ("answers_after", "is_unreachable"), [(0.02, False), (0.03, True), (None, True)]
)
async def test_a_silent_owner_has_25_ms_to_answer_a_ping(
    autojump_clock: MockClock, *, answers_after: float | None, is_unreachable: bool
) -> None:
    link = Member(silent_s=5, answers_after=answers_after)

    assert await Judging(link).takes() is is_unreachable


@pytest.mark.parametrize(("lag_ns", "waits"), [(19_999_999, False), (20_000_000, True)])
async def test_a_node_that_lags_reads_the_owners_messages_before_it_judges(
    autojump_clock: MockClock, *, lag_ns: int, waits: bool
) -> None:
    link = Member(silent_s=5)
    judging = Judging(link, lag_ns=lag_ns)
    assert await judging.takes()  # Now the owner was pinged in this silence.
    began = trio.current_time()

    assert await judging.takes()

    assert len(link.pinged_at) == 1
    assert trio.current_time() - began == pytest.approx(0.025 * waits)


async def test_an_owner_is_pinged_once_in_each_silence(autojump_clock: MockClock) -> None:
    link = Member(silent_s=5)
    judging = Judging(link)
    for _ in range(3):
        assert await judging.takes()
    assert len(link.pinged_at) == 1

    link.since = trio.current_time()
    await trio.sleep(0.2)
    assert await judging.takes()

    assert len(link.pinged_at) == 2


@pytest.mark.parametrize("is_suspect", [False, True])
async def test_an_owner_that_returned_has_half_a_second_to_be_seen_again(
    autojump_clock: MockClock, *, is_suspect: bool
) -> None:
    link = Member(silent_s=5, is_lost=not is_suspect)
    judging = Judging(link, is_suspect=is_suspect)
    assert await judging.takes()

    judging.takeover.taken_over_from(OWNER)
    began = trio.current_time()
    for _ in range(10):
        assert not await judging.takes()
    assert trio.current_time() - began == pytest.approx(0.25)
    await trio.sleep(0.249)
    assert not await judging.takes()
    assert await judging.takes()


async def test_the_silence_of_an_owner_that_returned_begins_again(
    autojump_clock: MockClock,
) -> None:
    link = Member(silent_s=5)
    judging = Judging(link)
    judging.takeover.taken_over_from(OWNER)

    await trio.sleep(0.07)
    assert not await judging.takes()
    await trio.sleep(0.01)
    assert await judging.takes()


class CoveringOwnership(Ownership):
    """Ownership in which a takeover begins a cover for the owner, or for the member `whose`."""

    def __init__(self, whose: NodeId = OWNER) -> None:
        super().__init__()
        self.take_over = lambda shard, owner, copies, now, silent: self.covers.update(
            {shard: Cover(whose, now, copied_at=now - 10**10 if shard == 4 else None)}
        )


@pytest.mark.parametrize(
    ("replica_after", "is_counting"), [(None, False), (-0.01, False), (0.01, True), (0.1, True)]
)
async def test_an_owner_that_sent_a_replica_in_its_silence_is_counting_too(
    autojump_clock: MockClock, *, replica_after: float | None, is_counting: bool
) -> None:
    """Such a replica may have a check that this node counts again."""
    link, ownership = Member(silent_s=-0.2), CoveringOwnership()
    judging = Judging(link, ownership=ownership)
    await trio.sleep(0.2 + (replica_after or 0.0))
    replica_at = NOW + round(trio.current_time() * 1e9)
    if replica_after is not None:
        judging.takeover.on_replica(OWNER)
    judging.takeover.on_replica(NodeId("x"))

    await trio.sleep(0.2)
    assert await judging.takeover.take_over_if_unreachable([3, 4])

    now = NOW + round(trio.current_time() * 1e9)
    assert ownership.covers[3].is_owner_counting(now) is is_counting
    assert ownership.covers[3].copied_at == (replica_at if is_counting else None)
    assert ownership.covers[4].copied_at == (replica_at if is_counting else now - 10**10)


async def test_a_replica_does_not_show_that_an_earlier_owner_is_counting(
    autojump_clock: MockClock,
) -> None:
    ownership = CoveringOwnership(whose=NodeId("before"))
    judging = Judging(Member(silent_s=5), ownership=ownership)
    judging.takeover.on_replica(OWNER)

    await trio.sleep(0.2)
    assert await judging.takeover.take_over_if_unreachable([3])

    assert ownership.covers[3].copied_at is None


@pytest.mark.parametrize("link", [None, "lost"])
async def test_a_lost_owner_is_not_counting_after_its_last_replica(
    autojump_clock: MockClock, link: str | None
) -> None:
    lost, ownership = Member(silent_s=0, is_lost=True), CoveringOwnership()
    judging = Judging(lost if link else None, ownership=ownership)
    judging.takeover.on_replica(OWNER)

    assert await judging.takeover.take_over_if_unreachable([3])

    assert ownership.covers[3].copied_at is None


@pytest.mark.parametrize("reply", [None, SHED, AccessDenied("no")])
async def test_only_results_are_an_answer_of_the_owner(
    autojump_clock: MockClock, reply: object
) -> None:
    link = Member(reply=reply)

    answer = await Judging(link).takeover.ask_owner(OWNER, Batch(Op.CHECK, [KEY], [1]), 2)

    assert answer is None
    assert link.asked == [(2, False)]


async def test_an_unreachable_owner_is_not_asked(autojump_clock: MockClock) -> None:
    batch = Batch(Op.CHECK, [KEY], [1])
    lost = Member(is_lost=True)

    assert await Judging(lost).takeover.ask_owner(OWNER, batch, 1) is None
    assert await Judging(None).takeover.ask_owner(OWNER, batch, 1) is None
    assert await Judging(Member()).takeover.ask_owner(None, batch, 1) is None

    assert lost.asked == []
