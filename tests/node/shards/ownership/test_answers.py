"""Transfers and replicas that cross, repeat, or answer a member that covers a shard."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from gossip import Status
from hashring import SHARDS, NodeId, shard_of
from ringfence.limiter import Snapshot
from ringfence.wire import Holding, Pull, Pulled, ReplicaRequest, ShardGroup
from tests.node.shards.ownership.ownership_host import KEY, NOW, Host, member

SHARD = shard_of(KEY)
S = 10**9


def empty_transfer(owner: Host, receiver: Host) -> ShardGroup:
    """Return the transfer of a shard that its owner holds without counters."""
    owner.sender.index.start()
    reply = owner.sender.answer(receiver.name, Pull(1, [SHARD], 0), NOW, lambda _: False)
    (group,) = reply.groups
    assert (group.hold, group.sizes, group.taken_from) == (Holding.HELD, [0], "")
    return group


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_log_whose_transfer_crossed_that_of_an_empty_owner_counts_once(
    *, is_acknowledged: bool
) -> None:
    standby, owner = Host("a"), Host("c")
    owner.start()
    standby.cover("c")
    standby.spend(2)
    [sent] = owner.ask(standby).groups  # The answer is on its way.

    group = empty_transfer(owner, standby)
    assert standby.ownership.accept_empty([SHARD], group, owner.name, NOW) == [SHARD]
    assert (standby.holds, standby.covered_owner, standby.used) == (True, None, 2)
    assert {*sent.origins} <= {*standby.ownership.origins.of(SHARD)}

    if is_acknowledged:  # The owner has counted the log.
        standby.ownership.acknowledge(owner.name, [SHARD], sent.transfer_id, NOW)
        assert standby.used == 0


def test_empty_shards_are_accepted_once_and_not_while_they_are_held() -> None:
    owner, host = Host("c"), Host("a")
    owner.start()
    group = empty_transfer(owner, host)

    assert host.ownership.accept_empty([SHARD], group, owner.name, NOW) == [SHARD]
    assert host.ownership.accept_empty([SHARD], group, owner.name, NOW) == []
    assert host.counters.as_dict()["shards_pulled"] == 1
    host.ask(host)  # Any member requests the shard.
    assert host.ownership.accept_empty([SHARD], group, owner.name, NOW) == [SHARD]
    assert not host.holds  # The transfer is old.


@pytest.mark.parametrize("is_held", [False, True])
def test_counters_that_contain_a_transfer_already_are_not_added_again(*, is_held: bool) -> None:
    sender, host = Host("b"), Host("a")
    sender.start(3)
    reply = host.ask(sender)
    [group] = reply.groups
    if is_held:
        host.take(sender, reply)
        host.spend(1)
    counts = reply.counts.unpack()

    # The same counters by another way have another number.
    again = replace(group, transfer_id=group.transfer_id + 1000)
    assert host.ownership.accept(SHARD, again, NodeId("c"), counts, [], NOW)

    assert host.used == (4 if is_held else 3)


# -- answers of the owner of a covered shard -------------------------------------------------------


@dataclass
class Answered:
    """Node that covers a shard of `b`, which has only a replica of the counters of `whose`."""

    host: Host
    owner: str | None
    used: int


def answered(whose: str, *, is_blind: bool = True, has_left: bool = False) -> Answered:
    third, host = Host("d"), Host("a")
    third.start(3)
    if not is_blind:
        third.copy_to(host)
        host.cover("d")
    host.cover("b")
    host.spend(2)
    if has_left:
        host.ownership.on_member_change(member("d"), member("d", Status.LEFT))
    counts, origins = third.engine.snapshot([KEY], NOW), third.ownership.origins.of(SHARD)
    group = ShardGroup([SHARD], [1], Holding.COPY, 1, "", "", whose, 0, origins=origins)
    host.ownership.owner_has_replica(SHARD, counts, group, NOW)
    return Answered(host, host.covered_owner, host.used)


@pytest.mark.parametrize(
    ("whose", "has_left", "covered"),
    [("", False, None), ("a", False, None), ("d", False, "d"), ("d", True, None)],
)
def test_the_owner_of_the_replica_is_covered_unless_it_is_this_node_or_has_left(
    *, whose: str, has_left: bool, covered: str | None
) -> None:
    found = answered(whose, has_left=has_left)

    assert (found.owner, found.used) == (covered, 5)


def test_a_replica_that_a_node_has_already_adds_nothing() -> None:
    found = answered("", is_blind=False)

    assert (found.owner, found.used) == (None, 5)


def test_the_sender_of_the_covered_shard_has_nothing_new_in_a_replica() -> None:
    owner, host = Host("b"), Host("a")
    standby = Host("d")
    standby.cover("b")
    standby.spend(2)
    host.pull(standby)
    assert (host.covered_owner, host.used) == ("b", 2)

    covering = host.ownership.covers[SHARD]
    covering.received_from.add(owner.name)
    group = ShardGroup([SHARD], [1], Holding.COPY, 1, "", "", "", 0, origins=(999,))
    standby.engine.charge([KEY], [7], [0], NOW)
    counts = standby.engine.snapshot([KEY], NOW)
    host.ownership.owner_has_replica(SHARD, counts, group, NOW)

    assert (host.covered_owner, host.used) == (None, 2)


def test_an_owner_without_counters_leaves_the_shard_to_its_standby() -> None:
    host = Host("a")
    host.cover("b")
    host.spend(2)

    host.ownership.owner_has_nothing(SHARD, NOW)

    assert (host.holds, host.covered_owner, host.used) == (True, None, 2)


def test_an_owner_that_has_transferred_the_shard_names_the_new_owner() -> None:
    host = Host("a")
    host.cover("b")

    host.ownership.owner_moved(SHARD, NodeId("d"), NOW)

    assert host.covered_owner == "d"


async def merge_while(
    standby: Host, meanwhile: Callable[[], Pulled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask the owner of the covered shard; `meanwhile` changes both nodes and returns the answer."""

    async def pull(name: NodeId, shards: Sequence[int], *, replicas: ReplicaRequest) -> Pulled:
        return meanwhile()

    monkeypatch.setattr(standby.handoff._receiver, "pull", pull)
    monkeypatch.setattr(standby.handoff._sources, "ours", bytes([1]) * SHARDS)
    await standby.handoff._merge_covered_shards()


@pytest.mark.trio
async def test_an_answer_without_counters_is_not_applied_to_a_newer_cover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standby, owner = Host("a"), Host("c")
    standby.cover("c")
    standby.spend(2)

    def cover_again() -> Pulled:
        answer = standby.ask(owner)
        assert answer.groups[0].hold is Holding.NOTHING
        owner.pull(standby)
        owner.spend(3)
        standby.cover("c")  # The owner is silent again and has not acknowledged the transfer.
        standby.spend(4)
        return answer

    await merge_while(standby, cover_again, monkeypatch)
    assert standby.covered_owner == "c"

    standby.now = owner.now = NOW + 16 * S
    standby.ownership.expire(standby.now)
    owner.pull(standby)
    assert owner.used >= 2 + 3 + 4


@pytest.mark.trio
async def test_an_answer_with_counters_is_applied_to_a_newer_cover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standby, owner = Host("a"), Host("c")
    owner.start(3)
    standby.cover("c")
    standby.spend(2)

    def cover_again() -> Pulled:
        answer = standby.ask(owner)
        assert answer.groups[0].hold is Holding.HELD
        [sent] = Host("d").ask(standby).groups  # Another member takes the shard and fails.
        standby.ownership.acknowledge(NodeId("d"), [SHARD], sent.transfer_id, NOW)
        standby.cover("c")
        standby.spend(4)
        return answer

    await merge_while(standby, cover_again, monkeypatch)
    assert (standby.covered_owner, standby.used) == (None, 3 + 4)


# -- replicas that arrive late ---------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "used", "to_ask"), [("d", 5, []), ("c", 2, ["c"])])
def test_only_a_member_that_may_have_a_replica_is_believed(
    asked: str, used: int, to_ask: list[str]
) -> None:
    owner, standby, host = Host("b"), Host("d"), Host("a")
    owner.start(3)
    owner.copy_to(standby)
    host.cover("b", asked)
    host.spend(2)

    host.ask_late(standby)

    assert (host.used, host.to_ask, host.covered_owner) == (used, to_ask, "b")


def test_a_member_without_a_replica_is_not_asked_again() -> None:
    host = Host("a")
    host.cover("b", "c", "d")
    nothing = Snapshot([], [], [], [], [])
    group = ShardGroup([SHARD], [0], Holding.NOTHING, 1, "", "", "", 0)

    host.ownership.replica_answered(SHARD, NodeId("d"), nothing, NOW, group)

    assert host.to_ask == ["c"]


# -- expiry ----------------------------------------------------------------------------------------


def test_a_log_is_kept_for_15_seconds_after_its_node_has_become_the_owner() -> None:
    host = Host("a")
    host.cover("b")
    host.spend(2)
    host.ownership.owner_has_nothing(SHARD, NOW)
    end = NOW + 15 * S

    host.ownership.expire(end)
    assert host.ownership.next_expiry == end
    host.ownership.expire(end + 1)
    assert host.ownership.next_expiry > end


def test_regained_units_are_kept_for_15_seconds() -> None:
    for late_ns, used in ((0, 5), (1, 8)):
        owner, host = Host("b"), Host("a")
        owner.start(5)
        host.start()
        host.ownership.restore_lost({KEY: [0, 3]}, NOW)
        assert host.used == 3
        end = NOW + 15 * S
        host.ownership.expire(end + late_ns)
        host.now = owner.now = end

        host.pull(owner)

        # The counters of the previous owner contain the regained units.
        assert host.used == used


# -- arrivals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["absent", "fresh", "held", "covering", "replica", "late replica"])
def test_counters_that_arrive_are_replicated_to_the_standby(way: str) -> None:
    owner, host = Host("b"), Host("a")
    owner.start(3)
    if way == "fresh":
        host.start()
    elif way == "held":
        host.start(9)
    elif way in ("covering", "late replica"):
        host.cover("b" if way == "covering" else "c", "d")
    host.ownership.changed.clear()

    if way == "replica":
        owner.copy_to(host)
        host.cover("b")
    elif way == "late replica":
        standby = Host("d")
        owner.copy_to(standby)
        host.ask_late(standby)
    else:
        host.pull(owner)

    assert host.used >= 3
    assert [*host.ownership.changed.keys] == [KEY]
    assert host.arrived == [KEY]


def test_an_owner_with_the_base_of_a_log_records_the_marks_of_the_log() -> None:
    owner, standby = Host("b"), Host("a")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover("b")
    standby.spend(2)
    before = owner.ownership.origins.of(SHARD)

    reply = owner.ask(standby)
    owner.take(standby, reply)

    [group] = reply.groups
    assert owner.used == 5
    assert {*owner.ownership.origins.of(SHARD)} == {*before, *group.marks}
    assert len(group.marks) == 2  # Of the transfer, and of the log.


def test_an_owner_without_the_base_of_a_log_gets_the_base_and_its_origins() -> None:
    before, again, standby = Host("b"), Host("b"), Host("a")
    before.start(3)
    before.copy_to(standby)
    standby.cover("b")
    standby.spend(2)
    again.start()
    again.spend(1)
    mine = again.ownership.origins.of(SHARD)

    reply = again.ask(standby)
    again.take(standby, reply)

    [group] = reply.groups
    assert {*again.ownership.origins.of(SHARD)} >= {*mine, *group.origins}
    assert before.ownership.origins.of(SHARD)[0] in group.origins
    assert again.used == 1 + 3 + 2


def test_the_held_states_follow_changes_of_many_shards() -> None:
    host = Host("a")
    assert not any(host.ownership.held_states())

    host.ownership.start([1, SHARD])
    states = host.ownership.held_states()
    assert {shard for shard, state in enumerate(states) if state} == {1, SHARD}
    host.ownership.release_empty([1], NOW)
    states = host.ownership.held_states()
    assert {shard for shard, state in enumerate(states) if state} == {SHARD}


@pytest.mark.parametrize(("late_ns", "is_settled"), [(0, False), (1, True)])
def test_a_node_owns_a_shard_from_before_its_restart_when_no_member_returned_it_for_15_s(
    late_ns: int, *, is_settled: bool
) -> None:
    standby, again = Host("b"), Host("a")
    standby.cover("a")
    standby.spend(2)
    again.pull(standby)
    assert (again.covered_owner, again.used) == ("a", 2)

    everything = bytes([1]) * 16_384
    at = NOW + 15 * S + late_ns
    assert again.ownership.members_to_ask(bytes(16_384), at, bool) == {}
    assert again.ownership.members_to_ask(everything, at, bool) == {}

    assert (again.covered_owner, again.used) == (None if is_settled else "a", 2)


@pytest.mark.parametrize(
    ("late_ns", "members", "is_blind", "is_settled"),
    [
        (0, "", False, False),
        (1, "", False, True),
        (1, "b", False, False),
        (1, "c", True, True),
    ],
)
def test_a_node_owns_the_shards_of_a_member_that_has_been_dead_for_15_minutes(
    late_ns: int, members: str, *, is_blind: bool, is_settled: bool
) -> None:
    host = Host("a")
    if is_blind:
        host.ownership.take_over_blind([SHARD], NodeId("b"), NOW, [])
    else:
        host.cover("b")
    host.spend(2)
    everything = bytes([1]) * 16_384

    at = NOW + 900 * S + late_ns
    asked = host.ownership.members_to_ask(everything, at, members.__contains__)

    assert asked == {"b": [SHARD]}
    assert (host.covered_owner, host.used) == (None if is_settled else "b", 2)


def test_few_shards_of_a_dead_member_change_their_state_in_one_turn() -> None:
    host = Host("a")
    host.ownership.take_over_blind(range(500), NodeId("b"), NOW, [])
    everything = bytes([1]) * 16_384

    left = []
    for _ in range(4):
        host.ownership.members_to_ask(everything, NOW + 901 * S, "".__contains__)
        left.append(len(host.ownership.covers))

    assert left == [300, 100, 0, 0]


def test_the_owner_and_silent_members_are_asked_for_covered_shards() -> None:
    host = Host("a")
    host.cover("b", "c")
    host.ownership.take_over_blind([1, 2], NodeId("b"), NOW, [NodeId("d"), NodeId("a")])
    ours = bytearray(16_384)
    ours[SHARD] = ours[1] = 1

    assert host.ownership.members_to_ask(bytes(ours), NOW, bool) == {
        "b": [SHARD, 1],
        "c": [SHARD],
        "d": [1],
    }
