"""A client follows changes of members and rules."""

import pytest
import trio
from msgspec.structs import replace

from ringfence.client.limiter import Limiter
from ringfence.wire import (
    Answer,
    AskMembers,
    AskRules,
    MemberRow,
    Members,
    Request,
    Source,
    SubscribeDenials,
    encode,
)
from tests.ringfence.client.cluster.town import row, rules_of, sources, town


async def test_new_rules_come_with_the_next_answer(autojump_clock):
    async with town(user=9) as t:
        cluster = await t.joined()
        limiter = Limiter(cluster)
        t.change_rules(rules_of(2, user=9, path=1))
        await limiter.check("d", {"user": "a"})
        await trio.sleep(1)

        assert cluster.rules.version == 2
        assert (await limiter.check("d", {"path": "/"})).limit == 1


async def test_denials_end_with_the_rules_that_they_were_made_by(autojump_clock):
    async with town(user=1) as t:
        limiter = Limiter(cluster := await t.joined(), local_cache=cluster.local_cache)
        for _ in range(2):
            before = await limiter.check("d", {"user": "a"})
        t.change_rules(rules_of(2, user=9))
        await limiter.check("d", {"user": "b"})  # Its answer tells of newer rules.
        await trio.sleep(1)
        after = await limiter.check("d", {"user": "a"})

    assert (before.allowed, after.allowed) == (False, True)


async def test_an_idle_client_receives_new_rules(autojump_clock):
    async with town(user=9) as t:
        limiter = Limiter(await t.joined())
        t.change_rules(rules_of(2, path=1))
        await trio.sleep(15)

        assert (await limiter.check("d", {"path": "/"})).limit == 1


async def test_an_idle_client_asks_rarely(autojump_clock):
    async with town() as t:
        await t.joined()
        before = sum(len(node.received) for node in t.nodes.values())
        await trio.sleep(600)

        assert sum(len(node.received) for node in t.nodes.values()) - before <= 2 * 60


async def test_a_busy_client_asks_for_nothing_that_it_has(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        for _ in range(100):
            await sources(limiter)
            await trio.sleep(0.1)

        assert sum(node.count(AskRules) for node in t.nodes.values()) == 1
        assert sum(node.count(AskMembers) for node in t.nodes.values()) <= 5


async def test_rules_that_cannot_be_read_never_replace_good_ones(autojump_clock):
    async with town(user=9) as t:
        cluster = await t.joined()
        limiter = Limiter(cluster)
        for node in t.nodes.values():
            node.know(rules_of(2, user=9))
            node.plain = [99, "nonsense"]
        for _ in range(20):
            assert await sources(limiter) == {Source.OWNER}
            await trio.sleep(0.5)

        assert cluster.rules.version == 1
        assert sum(node.count(AskRules) for node in t.nodes.values()) == 2


async def test_a_member_that_has_not_reloaded_takes_nothing_back(autojump_clock):
    async with town(user=9) as t:
        cluster = await t.joined()
        t.nodes["b"].know(rules_of(2, user=8))
        limiter = Limiter(cluster)
        for _ in range(20):
            await sources(limiter)
            await trio.sleep(0.5)

        assert cluster.rules.version == 2


async def test_many_checks_of_an_unknown_rule_fetch_the_rules_once(
    autojump_clock,
):
    async with town(user=9) as t:
        limiter = Limiter(await t.joined())
        before = sum(node.count(AskRules) for node in t.nodes.values())
        for node in t.nodes.values():
            node.engine.set_rules({})
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(limiter.check, "d", {"user": str(number)})

        assert sum(node.count(AskRules) for node in t.nodes.values()) - before == 1
        assert (await limiter.peek("d", {"user": "1"})).remaining == 8


async def test_rules_of_its_own_travel_with_a_clients_checks(autojump_clock):
    async with town(user=9) as t:
        own = rules_of(0, path=2).as_carried()
        limiter = Limiter(await t.joined(rules=own))
        decisions = [await limiter.check("d", {"path": "/"}) for _ in range(3)]
        await trio.sleep(60)

        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert (await limiter.check("d", {"user": "a"})).source is Source.NO_RULE
        assert sum(node.count(AskRules) for node in t.nodes.values()) == 0


async def test_an_older_node_is_asked_once_to_revoke_denials(autojump_clock):
    async with town(row("a")) as t:
        t.nodes["a"].is_old = True
        cluster = await t.joined()
        limiter = Limiter(cluster, local_cache=cluster.local_cache)
        decisions = [await limiter.check("d", {"user": "u"}) for _ in range(12)]

        assert {decision.source for decision in decisions} == {Source.OWNER}
        assert not decisions[-1].allowed
        assert t.nodes["a"].count(SubscribeDenials) == 1


async def test_a_new_member_is_asked_for_what_it_owns(autojump_clock):
    async with town(row("a"), row("b")) as t:
        cluster = await t.joined()
        limiter = Limiter(cluster)
        t.change_members(row("a"), row("b"), row("d"))
        await t.serve("d")
        await sources(limiter)
        await trio.sleep(1)
        await sources(limiter)

        assert [member.name for member in cluster.members] == ["a", "b", "d"]
        assert t.requests()["d"] == 1


async def test_a_member_that_left_is_not_asked(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        await sources(limiter)
        before = t.requests()["c"]
        t.change_members(row("a"), row("b"))
        await sources(limiter)
        await trio.sleep(1)

        assert await sources(limiter) == {Source.OWNER}
        assert t.requests()["c"] == before + 1
        assert t.nodes["c"].connections == []


@pytest.mark.parametrize("state", ["joining", "forwarding", "dead", "left"])
async def test_only_members_in_the_ring_are_asked(autojump_clock, state):
    async with town(row("a"), row("b", state="suspect"), row("c", state=state)) as t:
        cluster = await t.joined("a")

        assert await sources(Limiter(cluster)) == {Source.OWNER}
        assert t.requests()["b"] > 0
        assert t.nodes["c"].hellos == []
        assert [member.state for member in cluster.members] == ["alive", "suspect", state]


async def test_a_member_that_has_left_still_answers_what_it_was_asked(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        limiter = Limiter(cluster)
        node = t.nodes["c"]
        node.mute = Request
        t.change_members(row("a"), row("b"), row("c", state="left"))
        found = []

        async def ask():
            found.append(await sources(limiter))

        t.nursery.start_soon(ask)  # The others' answers tell of another view.
        await trio.sleep(0.3)
        assert cluster.members[2].state == "left"
        assert not found
        for late in [message for message in node.received if isinstance(message, Request)]:
            node.connections[0].send(encode(node.answer(late)))
        node.transport.flush()
        await trio.sleep(0.1)

        assert found == [{Source.OWNER}]
        assert node.connections == []


async def test_a_member_that_moved_is_asked_where_it_is(autojump_clock):
    async with town() as t:
        cluster = await t.joined("a", "b")
        limiter = Limiter(cluster)
        view = cluster.view
        t.crash("c")
        t.nodes["c"].at = ("c-new", 7101)
        await t.serve("c")
        moved = replace(row("c"), host="c-new")
        for name in "abc":
            t.nodes[name].rows = [row("a"), row("b"), moved]
        await sources(limiter)
        await trio.sleep(15)

        assert cluster.view == view
        assert [member.host for member in cluster.members] == ["a", "b", "c-new"]
        assert await sources(limiter) == {Source.OWNER}


async def test_when_all_members_nearby_have_moved_another_data_center_names_them(autojump_clock):
    far = [row(f"far-{number}", "dc2") for number in range(9)]
    async with town(row("a"), row("b"), *far) as t:
        limiter = Limiter(await t.joined("a", "b", datacenter="dc1"))
        assert [t.nodes[each.name].hellos for each in far] == [[]] * 9
        t.crash("a", "b")
        for name in "ab":
            t.nodes[name].at = (f"{name}-new", 7101)
        t.change_members(*[replace(row(name), host=f"{name}-new") for name in "ab"], *far)
        await t.serve("a", "b")
        await sources(limiter)
        await trio.sleep(15)

        assert await sources(limiter) == {Source.OWNER}
        assert sum(len(t.nodes[each.name].hellos) for each in far) == 3
        assert not any(t.nodes[each.name].connections for each in far)


async def test_members_that_make_no_ring_change_nothing(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        odd = MemberRow("d", "d", 7101, "", "", 1.0, "alive")
        for node in t.nodes.values():
            node.answer = odd_members(node, [*t.rows, odd])
        for _ in range(5):
            assert await sources(limiter) == {Source.OWNER}
            await trio.sleep(0.5)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([row(name, state="joining") for name in "ab"], "alive yet"),
        ([row("a", "dc2"), row("b", "dc2")], "in data center 'dc1'"),
    ],
)
async def test_members_that_cannot_be_asked_are_logged_once(autojump_clock, caplog, rows, what):
    async with town() as t:
        limiter = Limiter(await t.joined(datacenter="dc1"))
        for node in t.nodes.values():
            node.answer = odd_members(node, rows)
        for _ in range(5):
            assert await sources(limiter) == {Source.OWNER}
            await trio.sleep(0.5)

    logged = [text for text in caplog.messages if text.startswith("members kept")]
    assert logged == [f"members kept: no member is {what}"]


def odd_members(node, rows):
    usual = node.answer

    def answer(message):
        match message:
            case AskMembers(seq):
                return Members(seq, 99, rows)
            case Request():
                plain = usual(message)
                return Answer(plain.seq, 99, plain.rules, plain.results)
        return usual(message)

    return answer
