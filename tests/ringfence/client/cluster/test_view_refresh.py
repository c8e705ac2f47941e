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
from tests.ringfence.client.cluster.fake_cluster import fake_cluster, row, rules_of, sources


async def test_new_rules_come_with_the_next_answer(autojump_clock):
    async with fake_cluster(user=9) as fake:
        cluster = await fake.joined()
        limiter = Limiter(cluster)
        fake.change_rules(rules_of(2, user=9, path=1))
        await limiter.check("d", {"user": "a"})
        await trio.sleep(1)

        assert cluster.rules.version == 2
        assert (await limiter.check("d", {"path": "/"})).limit == 1


async def test_new_rules_clear_cached_denials(autojump_clock):
    async with fake_cluster(user=1) as fake:
        limiter = Limiter(cluster := await fake.joined(), local_cache=cluster.local_cache)
        for _ in range(2):
            before = await limiter.check("d", {"user": "a"})
        fake.change_rules(rules_of(2, user=9))
        await limiter.check("d", {"user": "b"})  # The answer has the version of the new rules.
        await trio.sleep(1)
        after = await limiter.check("d", {"user": "a"})

    assert (before.allowed, after.allowed) == (False, True)


async def test_an_idle_client_receives_new_rules(autojump_clock):
    async with fake_cluster(user=9) as fake:
        limiter = Limiter(await fake.joined())
        fake.change_rules(rules_of(2, path=1))
        await trio.sleep(15)

        assert (await limiter.check("d", {"path": "/"})).limit == 1


async def test_an_idle_client_asks_rarely(autojump_clock):
    async with fake_cluster() as fake:
        await fake.joined()
        before = sum(len(node.received) for node in fake.nodes.values())
        await trio.sleep(600)

        assert sum(len(node.received) for node in fake.nodes.values()) - before <= 2 * 60


async def test_a_busy_client_requests_members_and_rules_rarely(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined())
        for _ in range(100):
            await sources(limiter)
            await trio.sleep(0.1)

        assert sum(node.count(AskRules) for node in fake.nodes.values()) == 1
        assert sum(node.count(AskMembers) for node in fake.nodes.values()) <= 5


async def test_rules_that_cannot_be_read_never_replace_good_ones(autojump_clock):
    async with fake_cluster(user=9) as fake:
        cluster = await fake.joined()
        limiter = Limiter(cluster)
        for node in fake.nodes.values():
            node.set_rules(rules_of(2, user=9))
            node.plain = [99, "nonsense"]
        for _ in range(20):
            assert await sources(limiter) == {Source.OWNER}
            await trio.sleep(0.5)

        assert cluster.rules.version == 1
        assert sum(node.count(AskRules) for node in fake.nodes.values()) == 2


async def test_a_member_with_old_rules_does_not_replace_newer_ones(autojump_clock):
    async with fake_cluster(user=9) as fake:
        cluster = await fake.joined()
        fake.nodes["b"].set_rules(rules_of(2, user=8))
        limiter = Limiter(cluster)
        for _ in range(20):
            await sources(limiter)
            await trio.sleep(0.5)

        assert cluster.rules.version == 2


async def test_many_checks_of_an_unknown_rule_fetch_the_rules_once(
    autojump_clock,
):
    async with fake_cluster(user=9) as fake:
        limiter = Limiter(await fake.joined())
        before = sum(node.count(AskRules) for node in fake.nodes.values())
        for node in fake.nodes.values():
            node.engine.set_rules({})
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(limiter.check, "d", {"user": str(number)})

        assert sum(node.count(AskRules) for node in fake.nodes.values()) - before == 1
        assert (await limiter.peek("d", {"user": "1"})).remaining == 8


async def test_a_client_sends_its_own_rules_with_its_checks(autojump_clock):
    async with fake_cluster(user=9) as fake:
        own = rules_of(0, path=2).as_carried()
        limiter = Limiter(await fake.joined(rules=own))
        decisions = [await limiter.check("d", {"path": "/"}) for _ in range(3)]
        await trio.sleep(60)

        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert (await limiter.check("d", {"user": "a"})).source is Source.NO_RULE
        assert sum(node.count(AskRules) for node in fake.nodes.values()) == 0


async def test_an_older_node_is_asked_once_to_revoke_denials(autojump_clock):
    async with fake_cluster(row("a")) as fake:
        fake.nodes["a"].is_old = True
        cluster = await fake.joined()
        limiter = Limiter(cluster, local_cache=cluster.local_cache)
        decisions = [await limiter.check("d", {"user": "u"}) for _ in range(12)]

        assert {decision.source for decision in decisions} == {Source.OWNER}
        assert not decisions[-1].allowed
        assert fake.nodes["a"].count(SubscribeDenials) == 1


async def test_a_new_member_gets_the_checks_of_its_keys(autojump_clock):
    async with fake_cluster(row("a"), row("b")) as fake:
        cluster = await fake.joined()
        limiter = Limiter(cluster)
        fake.change_members(row("a"), row("b"), row("d"))
        await fake.serve("d")
        await sources(limiter)
        await trio.sleep(1)
        await sources(limiter)

        assert [member.name for member in cluster.members] == ["a", "b", "d"]
        assert fake.requests()["d"] == 1


async def test_a_member_that_left_is_not_asked(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined())
        await sources(limiter)
        before = fake.requests()["c"]
        fake.change_members(row("a"), row("b"))
        await sources(limiter)
        await trio.sleep(1)

        assert await sources(limiter) == {Source.OWNER}
        assert fake.requests()["c"] == before + 1
        assert fake.nodes["c"].connections == []


@pytest.mark.parametrize("state", ["joining", "forwarding", "dead", "left"])
async def test_only_members_in_the_ring_are_asked(autojump_clock, state):
    async with fake_cluster(row("a"), row("b", state="suspect"), row("c", state=state)) as fake:
        cluster = await fake.joined("a")

        assert await sources(Limiter(cluster)) == {Source.OWNER}
        assert fake.requests()["b"] > 0
        assert fake.nodes["c"].hellos == []
        assert [member.state for member in cluster.members] == ["alive", "suspect", state]


async def test_a_member_that_has_left_still_answers_earlier_checks(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        limiter = Limiter(cluster)
        node = fake.nodes["c"]
        node.mute = Request
        fake.change_members(row("a"), row("b"), row("c", state="left"))
        found = []

        async def ask():
            found.append(await sources(limiter))

        fake.nursery.start_soon(ask)  # The answers of other nodes have the new view.
        await trio.sleep(0.3)
        assert cluster.members[2].state == "left"
        assert not found
        for late in [message for message in node.received if isinstance(message, Request)]:
            node.connections[0].send(encode(node.answer(late)))
        node.transport.flush()
        await trio.sleep(0.1)

        assert found == [{Source.OWNER}]
        assert node.connections == []


async def test_a_member_at_a_new_address_is_asked_there(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined("a", "b")
        limiter = Limiter(cluster)
        view = cluster.view
        fake.crash("c")
        fake.nodes["c"].at = ("c-new", 7101)
        await fake.serve("c")
        moved = replace(row("c"), host="c-new")
        for name in "abc":
            fake.nodes[name].rows = [row("a"), row("b"), moved]
        await sources(limiter)
        await trio.sleep(15)

        assert cluster.view == view
        assert [member.host for member in cluster.members] == ["a", "b", "c-new"]
        assert await sources(limiter) == {Source.OWNER}


async def test_when_all_local_members_have_moved_another_data_center_names_them(autojump_clock):
    far = [row(f"far-{number}", "dc2") for number in range(9)]
    async with fake_cluster(row("a"), row("b"), *far) as fake:
        limiter = Limiter(await fake.joined("a", "b", datacenter="dc1"))
        assert [fake.nodes[each.name].hellos for each in far] == [[]] * 9
        fake.crash("a", "b")
        for name in "ab":
            fake.nodes[name].at = (f"{name}-new", 7101)
        fake.change_members(*[replace(row(name), host=f"{name}-new") for name in "ab"], *far)
        await fake.serve("a", "b")
        await sources(limiter)
        await trio.sleep(15)

        assert await sources(limiter) == {Source.OWNER}
        assert sum(len(fake.nodes[each.name].hellos) for each in far) == 3
        assert not any(fake.nodes[each.name].connections for each in far)


async def test_an_invalid_list_of_members_changes_nothing(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined())
        odd = MemberRow("d", "d", 7101, "", "", 1.0, "alive")
        for node in fake.nodes.values():
            node.answer = odd_members(node, [*fake.rows, odd])
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
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined(datacenter="dc1"))
        for node in fake.nodes.values():
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
