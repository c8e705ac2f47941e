"""Containment of internal errors: what continues after them, and which exceptions are none."""

import logging
from itertools import pairwise
from operator import attrgetter

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from hashring import NodeId
from node.context.containment import Containment
from node.membership.cluster_view import ClusterView
from ringfence.peering.link.calls import call
from ringfence.wire import ErrorCode, Ping, Pong, Refused, Source, decode
from tests.node.cluster import World, address_of, owned, world

pytestmark = pytest.mark.internal_errors


class Contained:
    def __init__(self) -> None:
        self.seen: list[Exception] = []
        logger = logging.getLogger("ringfence.node")
        self.containment = Containment(logger, trio.current_time, self.seen.append)


async def raise_(error: BaseException) -> None:
    await trio.lowlevel.checkpoint()
    raise error


def broken(*args: object) -> None:
    raise ArithmeticError("broken")


async def broken_task(*args: object) -> None:
    await trio.lowlevel.checkpoint()
    raise ArithmeticError("broken")


def contained(w: World, name: str, place: str) -> int:
    """Return how often a node has contained the error of `broken` at a place."""
    assert {str(bug) for bug in w.bugs} <= {"broken"}
    w.bugs.clear()
    return w.count(name, f"internal_errors_{place}")


async def test_errors_of_a_call_and_of_a_task_are_contained() -> None:
    made = Contained()
    error = ValueError("a")
    assert await made.containment.run("task", trio.lowlevel.checkpoint)
    assert not await made.containment.run("task", raise_, error)
    assert not made.containment.call("call", broken)

    assert made.containment.by_place == {"task": 1, "call": 1}
    assert made.seen[0] is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
async def test_interrupts_and_exits_pass(error: BaseException) -> None:
    made = Contained()
    with pytest.raises(type(error)):
        await made.containment.run("task", raise_, error)

    mixed = BaseExceptionGroup("both", [error, ValueError("a")])
    with pytest.raises(BaseExceptionGroup) as raised:
        await made.containment.run("task", raise_, mixed)
    assert raised.value.exceptions == (error,)
    assert made.containment.by_place == {"task": 1}


async def test_a_cancelled_task_ends(autojump_clock: MockClock) -> None:
    made = Contained()
    with trio.move_on_after(1) as scope:
        await made.containment.supervise("task", trio.sleep_forever)

    assert scope.cancelled_caught
    assert not made.seen


async def test_a_periodic_task_is_started_again_after_pauses_that_grow(
    autojump_clock: MockClock,
) -> None:
    made, starts = Contained(), []

    async def task() -> None:
        starts.append(trio.current_time())
        await raise_(ValueError("a"))

    with trio.move_on_after(60):
        await made.containment.supervise("task", task)

    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert max(pauses) == pytest.approx(5.0)


# On a node


async def test_a_request_that_raises_is_refused_and_the_session_continues(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        node, ours = w.nodes["a"], owned(w.rules, "client", "a")
        decide = node.handler.decide_now
        node.handler.decide_now = broken  # type: ignore[method-assign, assignment]
        await limiter.check("api", ours)
        node.handler.decide_now = decide  # type: ignore[method-assign]

        assert (await limiter.check("api", ours)).source is Source.OWNER
        assert contained(w, "a", "session") > 0
        assert w.count("a", "refused_internal") > 0
        assert w.nodes["a"].queries.stats(1).counters["connections"] > 0


async def test_a_request_that_fails_after_it_was_charged_is_not_decided_again(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as w, w.client("a", leases=False) as limiter:
        node = w.nodes["a"]
        ours = owned(w.rules, "client", "a")
        answer = node.dispatcher.answer
        node.dispatcher.answer = broken  # type: ignore[method-assign, assignment]
        await limiter.check("api", ours)
        node.dispatcher.answer = answer  # type: ignore[method-assign]

        [sender] = [each for each in node.access._senders._senders.values() if each._answers]
        [answers] = sender._answers.values()
        [refusal] = map(decode, answers[0])
        assert isinstance(refusal, Refused)
        assert refusal.code == ErrorCode.INTERNAL
        assert contained(w, "a", "session") == 1


@pytest.mark.parametrize(
    ("place", "part", "method"),
    [
        ("replication", "shards.replication", "send_changes"),
        ("cross_dc", "shards.cross_dc", "flush"),
        ("handoff", "shards.handoff", "_expire"),
        ("gossip", "membership", "tick"),
        ("gossip", "membership", "receive"),
    ],
)
async def test_failed_rounds_and_timers_run_again(
    autojump_clock: MockClock, place: str, part: str, method: str
) -> None:
    async with world(joins=True) as w, w.client("b", "c", denials=0, leases=False) as limiter:
        await w.start("d", datacenter="dc2")  # Counts travel only with two data centers.
        whole = attrgetter(part)(w.nodes["a"])
        works = getattr(whole, method)
        setattr(whole, method, broken)
        # Replication only runs when a counter has changed.
        await limiter.check("api", owned(w.rules, "client", "a"))
        await trio.sleep(0.5)
        setattr(whole, method, works)
        assert contained(w, "a", place) > 0
        rounds: list[str] = []
        setattr(whole, method, lambda *args: (rounds.append(method), works(*args))[1])
        await trio.sleep(10)
        await w.settle()

        assert rounds
        assert (await limiter.check("api", owned(w.rules, "client", "a"))).source is Source.OWNER
        assert not w.bugs


async def test_a_change_of_members_that_raised_an_error_is_applied_later(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as w:
        node = w.nodes["a"]
        route, failed = node.cluster.route, []

        def break_once() -> None:
            failed.append(1)
            if len(failed) < 5:
                broken()
            route()

        node.cluster.route = break_once  # type: ignore[method-assign]
        await w.start("c")
        await trio.sleep(5)

        assert contained(w, "a", "gossip") + contained(w, "a", "session") > 0
        assert "c" in (node.handler.router.routes.targets if node.handler.router.routes else {})


async def test_a_link_reconnects_although_its_listener_raised(autojump_clock: MockClock) -> None:
    async with world("a", "b") as w:
        link = w.nodes["b"].links.link(NodeId("a"))
        assert link is not None
        assert await call(link, Ping, Pong) is not None
        works = link.connection._events
        link.connection._events = replace(works, on_reachable=broken)
        w.network.reset(address_of("a"), address_of("b"))
        w.network.cut(address_of("a"), address_of("b"))
        await trio.sleep(1)
        w.network.heal(address_of("a"), address_of("b"))
        await trio.sleep(6)
        link.connection._events = works

        assert contained(w, "b", "transport") > 0
        assert await call(link, Ping, Pong) is not None


async def test_a_node_starts_although_a_change_of_members_raised_an_error(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, failed = ClusterView.route, []

    def break_at_first(cluster: ClusterView) -> None:
        if cluster._node.name == "b" and len(failed) < 3:
            failed.append(1)
            broken()
        route(cluster)

    monkeypatch.setattr(ClusterView, "route", break_at_first)
    async with world("a", "b", joins=True) as w, w.client("b", only=True) as limiter:
        assert len(failed) == 3
        assert contained(w, "b", "gossip") == 3
        assert (await limiter.check("api", owned(w.rules, "client", "a"))).source is Source.OWNER


async def test_a_check_that_waits_for_another_node_is_answered_after_an_error(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        node, theirs = w.nodes["a"], owned(w.rules, "client", "b")
        node.handler.decide = broken_task  # type: ignore[method-assign, assignment]
        started = trio.current_time()
        await limiter.check("api", theirs)

        assert trio.current_time() - started < 1.0
        assert contained(w, "a", "forwarding") > 0


async def test_a_request_of_a_peer_that_raises_is_refused(autojump_clock: MockClock) -> None:
    async with world("a", "b") as w:
        link = w.nodes["b"].links.link(NodeId("a"))
        assert link is not None
        w.nodes["a"].shards.handoff.answer = broken_task  # type: ignore[method-assign, assignment]
        assert await w.nodes["b"].shards.handoff._receiver.pull(NodeId("a"), [1]) is None

        assert contained(w, "a", "pull") == 1
        assert await call(link, Ping, Pong) is not None


async def test_a_callback_that_raises_does_not_prevent_other_callbacks(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as w:
        link = w.nodes["b"].links.link(NodeId("a"))
        assert link is not None
        reported: list[object] = []
        link.call(Ping, broken)
        link.call(broken, reported.append)  # type: ignore[arg-type]
        link.call(Ping, reported.append)
        await trio.sleep(1)

        assert [type(reply) for reply in reported] == [type(None), Pong]
        assert contained(w, "b", "transport") == 2


def test_the_refusal_has_a_code_that_every_client_knows() -> None:
    from node.requests.sessions.caller import internal_refusal

    assert internal_refusal(7) == Refused(7, ErrorCode.INTERNAL, internal_refusal(7).reason)
