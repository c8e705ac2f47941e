"""Effects of member changes on links, rings, routes and the log, and the watch of the clock."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gossip import Changed, Record, Status
from hashring import NodeId
from node.membership.cluster_view import log_change
from ringfence.errors import ConfigError
from tests.node.membership.cluster_view_world import FAR, SUSPECT_B, B, C, World, ring_of
from tests.node.membership.fake_transport import ME, NS


def test_checks_go_to_linked_members_of_the_local_data_center() -> None:
    world = World()
    world.receive(B, C, FAR, replace(B, name="joining", status=Status.JOINING))
    world.links.missing = {"c"}

    assert world.view.peer_links() == [("b", "link to b")]
    assert world.view.rings() == {"dc1": ring_of(ME, B, C), "dc2": ring_of(FAR)}


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        *[(replace(B, status=status), status <= Status.ALIVE) for status in (0, 1, 4, 5)],
        (SUSPECT_B, True),
        (replace(B, status=Status.LEAVING), False),
        (replace(B, forward_only=True), True),
        (replace(B, datacenter="dc0"), False),
        (replace(B, datacenter="dc2"), False),
    ],
)
def test_a_member_of_the_local_data_center_that_stays_is_a_local_peer(
    record: Record, *, counts: bool
) -> None:
    world = World()
    assert not world.view.has_local_peer
    assert world.view.is_alone

    world.receive(replace(record, status=Status(record.status)))

    assert world.view.has_local_peer is counts
    assert world.view.is_alone is (record.datacenter != "dc1")


@pytest.mark.parametrize(
    ("records", "has_joined"),
    [((), False), ((replace(B, status=Status.JOINING),), False), ((B,), True), ((FAR,), True)],
)
def test_a_node_has_joined_when_another_member_is_known_that_is_not_joining(
    records: Sequence[Record], *, has_joined: bool
) -> None:
    world = World()
    world.driver.set_forward_only(True)  # Changes only this node's own record.

    world.receive(*records)

    assert world.view.has_joined.is_set() is has_joined


def test_the_time_of_a_state_is_that_of_its_last_change() -> None:
    world = World()
    world.receive(B, C, after=2)
    world.receive(replace(B, incarnation=1, forward_only=True), after=1)
    world.receive(replace(C, status=Status.LEAVING), after=1)

    assert world.view.changed_at == {"b": 2 * NS, "c": 4 * NS}


def test_the_time_of_a_state_is_dropped_with_its_member() -> None:
    world = World()
    left = [replace(B, name=f"left{number}", status=Status.LEFT) for number in range(2)]
    world.receive(*left, C)
    while "left1" in world.membership.records:
        world.transport.run_timer()

    world.receive(FAR)

    assert world.view.changed_at.keys() == {"c", "far"}


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        (None, replace(B, generation=2), []),
        (B, replace(B, generation=2), ["b"]),
        (B, replace(B, generation=3), ["b"]),
        (B, replace(B, incarnation=1), []),
    ],
)
def test_replication_learns_of_members_that_restarted(
    before: Record | None, after: Record, restarted: list[str]
) -> None:
    world = World()
    if before is not None:
        world.receive(before)
    world.receive(after)

    assert world.restarted == restarted
    assert world.member_changes[-1] == (before, after)
    assert world.links.records["b"] == after


def test_counters_move_to_a_joining_member_before_checks_do() -> None:
    world = World()
    world.receive(B)
    joining = replace(C, status=Status.JOINING)
    world.ring_changes.clear()

    world.receive(joining)

    [(old, new, routed)] = world.ring_changes
    assert (old, new, routed) == (ring_of(ME, B), ring_of(ME, B, C), ring_of(ME, B))
    assert world.handler.placement.ring == world.view.ring == new
    assert world.handler.router.routes.ring == routed


def test_a_node_that_joins_finds_counters_by_the_ring_of_the_others() -> None:
    world = World(replace(ME, status=Status.JOINING))

    world.receive(B)

    assert world.ring_changes == [(ring_of(B), ring_of(ME, B), ring_of(B))]


def test_counters_leave_a_leaving_member_before_checks_do() -> None:
    world = World()
    world.receive(B, C)
    world.ring_changes.clear()

    world.receive(replace(C, status=Status.LEAVING))

    [(old, new, routed)] = world.ring_changes
    assert (old, new, routed) == (ring_of(ME, B, C), ring_of(ME, B), ring_of(ME, B, C))


def test_a_suspicion_a_restart_and_a_member_of_another_data_center_move_no_counters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.receive(B)
    world.ring_changes.clear()
    caplog.set_level(logging.INFO, "ringfence.node")

    world.receive(SUSPECT_B)
    world.receive(replace(B, generation=2))
    assert world.ring_changes == []
    assert "view of" not in caplog.text
    world.receive(FAR)

    assert [(old, new) for old, new, _ in world.ring_changes] == [(ring_of(ME, B),) * 2]


def test_a_node_connects_in_advance_to_the_members_whose_standby_it_is() -> None:
    world = World()
    world.receive(B, FAR)
    world.receive(replace(C, status=Status.JOINING))
    world.receive(replace(SUSPECT_B, incarnation=1))
    world.receive(replace(B, incarnation=1, status=Status.LEFT))

    joined = ring_of(ME, B, C).owners_of_standby(NodeId("me"))
    assert world.links.early == [("b",), joined, ("c",)]
    assert {*joined} == {"b", "c"}


def test_routes_find_members_of_both_rings_and_the_node_itself() -> None:
    world = World()
    world.receive(replace(B, status=Status.JOINING), replace(C, status=Status.LEAVING), FAR)

    assert dict(world.targets) == {
        "me": world.handler,
        "b": "link to b",
        "c": "link to c",
        "far": "link to far",
    }
    assert len(world.targets) == 4


def test_the_link_of_a_member_is_looked_up_once_per_change_of_members() -> None:
    world = World()
    world.receive(B)
    world.links.created.clear()

    for node in ("b", "b", "outside", "outside"):
        assert world.targets[NodeId(node)] == f"link to {node}"
    assert world.links.created == ["b", "outside", "outside"]
    world.links.missing = {"outside"}
    with pytest.raises(KeyError):
        world.targets[NodeId("outside")]


def test_a_member_without_a_link_is_no_target() -> None:
    world = World()
    world.links.missing = {"b"}
    world.receive(B)

    assert "b" not in world.targets
    assert list(world.targets) == ["me"]


def test_lost_members_are_probed_and_unknown_ones_ignored() -> None:
    world = World()
    world.receive(B)
    world.transport.sent.clear()

    world.view.report_unreachable("unknown")
    assert world.transport.sent == []
    world.view.report_unreachable("b")

    assert [to for _, to in world.transport.sent] == [B.address]


@pytest.mark.parametrize(("host", "stops"), [("zzz", True), ("aaa", False)])
async def test_a_node_stops_when_another_one_with_its_name_has_precedence(
    host: str, *, stops: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.receive(replace(ME, host=host))

    with trio.move_on_after(1) as scope:
        if stops:
            with pytest.raises(ConfigError, match="got 'me', which the node at zzz:1 has"):
                await world.view.raise_on_conflict()
        else:
            await world.view.raise_on_conflict()

    assert scope.cancelled_caught is not stops
    assert f"node name conflict: name=me address={host}:1" in caplog.text


# -- the clock -------------------------------------------------------------------------------------


@asynccontextmanager
async def watched_clock(*others: Record) -> Any:
    world = World()
    world.receive(*others)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.view.watch_clock)
        await trio.sleep(5)
        yield world
        nursery.cancel_scope.cancel()


async def test_a_node_only_forwards_while_its_clock_is_suspect(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ringfence.node")
    async with watched_clock(B) as world:
        assert not world.is_forward_only
        world.set_clock(suspect=True)
        await trio.sleep(0.001)
        assert world.is_forward_only
        await trio.sleep(10)
        assert world.is_forward_only
        world.set_clock(suspect=False)
        await trio.sleep(1.1)
        assert not world.is_forward_only
        await trio.sleep(10)

    assert world.counted == ["clock_suspect", "clock_trusted"]
    assert [record.getMessage() for record in caplog.records] == [
        "the clock of node me is far from the others'; it only forwards",
        "the clock of node me is again near the others'; it decides again",
    ]


@pytest.mark.parametrize(
    "others", [(), (FAR,), (replace(B, forward_only=True),), (replace(B, status=Status.LEAVING),)]
)
async def test_a_node_without_another_one_in_its_ring_decides_with_a_suspect_clock(
    others: Iterable[Record], autojump_clock: MockClock
) -> None:
    async with watched_clock(*others) as world:
        world.set_clock(suspect=True)
        await trio.sleep(3)

    assert not world.is_forward_only
    assert world.counted == []


async def test_a_node_with_a_suspect_clock_decides_again_when_the_others_are_gone(
    autojump_clock: MockClock,
) -> None:
    async with watched_clock(B) as world:
        world.set_clock(suspect=True)
        await trio.sleep(3)
        world.receive(replace(B, status=Status.LEFT))
        await trio.sleep(1.1)
        assert not world.is_forward_only
        world.receive(replace(B, name="z"))
        await trio.sleep(1.1)
        assert world.is_forward_only


@pytest.mark.parametrize(
    ("is_suspect", "held_shards", "jumps"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)
async def test_only_a_suspect_clock_of_a_node_without_counters_jumps(
    autojump_clock: MockClock, *, is_suspect: bool, held_shards: int, jumps: bool
) -> None:
    async with watched_clock(B) as world:
        world.held_shards = held_shards
        world.set_clock(suspect=True)
        if not is_suspect:
            world.set_clock(suspect=False)
        await trio.sleep(3)

    assert (world.jumps > 0) is jumps


# -- the log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (None, B, ("INFO", "alive, was unknown")),
        (replace(B, status=Status.JOINING), B, ("INFO", "alive, was joining")),
        (B, SUSPECT_B, ("WARNING", "suspect, was alive")),
        (SUSPECT_B, replace(B, status=Status.DEAD), ("WARNING", "dead, was suspect")),
        (B, replace(B, status=Status.LEFT), ("INFO", "left, was alive")),
        (B, replace(B, forward_only=True), ("INFO", "forwarding, was alive")),
        (replace(B, forward_only=True), replace(SUSPECT_B, forward_only=True), None),
        (B, replace(B, status=Status.LEAVING, forward_only=True), ("INFO", "leaving, was alive")),
        (B, replace(B, incarnation=1), None),
    ],
)
def test_a_change_of_state_is_logged(
    before: Record | None,
    after: Record,
    line: tuple[str, str] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ringfence.node")

    log_change(Changed(before, after))

    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    expected = [(line[0], f"member b at host-b:1 is {line[1]}")] if line else []
    assert logged == expected


def test_a_view_is_logged_when_it_changes_with_at_most_20_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.receive(B)
    caplog.set_level(logging.INFO, "ringfence.node")
    world.receive(*[replace(B, name=f"n{number:02}") for number in range(20)])
    world.receive(SUSPECT_B)

    views = [r.getMessage() for r in caplog.records if r.getMessage().startswith("view")]
    listed = ", ".join(["b", "me", *[f"n{number:02}" for number in range(18)]])
    assert views == [f"view of 22 members: {listed}"]


def test_a_view_of_one_member_and_an_empty_view_are_logged_in_plain_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    caplog.set_level(logging.INFO, "ringfence.node")
    world.receive(B)
    world.receive(replace(B, status=Status.LEFT))
    world.driver.leave()
    world.driver.left()

    views = [r.getMessage() for r in caplog.records if r.getMessage().startswith("view")]
    assert views == ["view of 2 members: b, me", "view of 1 member: me", "view of 0 members"]


def test_only_a_node_that_leaves_the_ring_because_of_suspicions_logs_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.receive(B, C, replace(B, name="d"))
    world.driver.set_forward_only(True)
    world.driver.set_forward_only(False)
    assert "suspected it again and again" not in caplog.text

    for accuser in ("b", "c", "d", "b"):  # The node is out of the ring after three.
        world.receive(replace(world.membership.me, status=Status.SUSPECT, accuser=accuser))

    warnings = [r.getMessage() for r in caplog.records if "suspected it" in r.getMessage()]
    assert world.membership.is_damped
    assert [text.partition(" leaves")[0] for text in warnings] == ["node me"]
