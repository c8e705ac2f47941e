"""A client joins a cluster and routes its checks."""

import asyncio

import pytest
import trio

from hashring import shard_of
from ringfence.client.limiter import Limiter
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.errors import AccessDenied, ConfigError, PeerUnavailable
from ringfence.wire import (
    AskMembers,
    AskRules,
    ErrorCode,
    Goodbye,
    MemberRow,
    Refused,
    Report,
    Request,
    Source,
    encode,
)
from tests.ringfence.client.cluster.town import row, sources, town, view_of

# -- joining ---------------------------------------------------------------------------------------


async def test_a_client_learns_members_and_rules_from_any_member(autojump_clock):
    async with town() as t:
        cluster = await t.client("b")

        assert await cluster.wait_joined(5) is None
        assert [member.name for member in cluster.members] == ["a", "b", "c"]
        assert cluster.rules == t.rules
        assert cluster.rules.version == 1
        assert cluster.view == view_of(t.rows).hash


async def test_each_key_is_asked_of_its_owner(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined("b"))
        ring = view_of(t.rows).ring("dc1")
        for number in range(30):
            await limiter.check("d", {"user": str(number)})

        for name, node in t.nodes.items():
            keys = [
                key
                for seen in node.received
                if isinstance(seen, Request)
                for key in seen.batch.keys
            ]
            assert {ring.owner(shard_of(key)) for key in keys} == {name}
        assert sum(t.requests().values()) == 30


async def test_a_client_of_one_shot_asks_one_seed_that_answers(autojump_clock):
    async with town(serve=False) as t:
        await t.serve("b", "c")
        limiter = Limiter(await t.joined("a", "b", ask_owners=False))
        await sources(limiter)

        assert [name for name, count in t.requests().items() if count] == ["b"]


@pytest.mark.parametrize("run", [asyncio.run, lambda call: trio.run(lambda: call)])
async def test_a_call_in_another_thread_is_refused(run):
    async with town(serve=False) as t:
        limiter = Limiter(await t.client("a"))
        calls = [
            lambda: limiter.check_limit("5/minute", "key"),
            lambda: limiter.check_many_limit("5/minute", ["key", "other"]),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="another thread; open a limiter in each loop"):
                await trio.to_thread.run_sync(lambda call=call: run(_awaited(call)))


async def _awaited(call):
    return await call()


async def test_a_request_without_a_matching_rule_sends_no_message(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        await limiter.check("d", {"path": "/"})
        await limiter.check("other", {"user": "a"})

        assert sum(t.requests().values()) == 0


async def test_each_connection_is_a_sender_of_its_own(autojump_clock):
    async with town() as t:
        await sources(Limiter(await t.joined()))
        t.crash("a")
        await t.serve("a")
        await trio.sleep(60)
        sessions = [{hello.session for hello in node.hellos} for node in t.nodes.values()]

        assert [len(own) for own in sessions] == [1, 1, 1]
        assert len(set.union(*sessions)) == 3


async def test_a_rejected_token_is_an_error_at_once(autojump_clock):
    async with town() as t:
        for node in t.nodes.values():
            node.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        cluster = await t.client()

        with trio.fail_after(1):
            error = await cluster.wait_joined(5)
        assert isinstance(error, AccessDenied)
        assert "no such token" in str(error)


async def test_a_token_that_the_only_live_node_rejects_is_an_error(autojump_clock):
    async with town(serve=False) as t:
        await t.serve("b")
        t.nodes["b"].refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")

        assert isinstance(await (await t.client()).wait_joined(5), AccessDenied)


async def test_a_node_without_a_known_name_is_logged_by_its_address(autojump_clock, caplog):
    caplog.set_level("INFO", "ringfence")
    async with town(serve=False) as t:
        await t.client("a")
        await trio.sleep(10)
        await t.serve("a")
        await trio.sleep(10)
        t.crash("a")
        await trio.sleep(10)

    reported = [record.getMessage() for record in caplog.records if "node" in record.getMessage()]
    assert reported[0].startswith("Ringfence: the node at a:7101 is lost: ")
    assert "node a at a:7101 is reachable" in reported
    assert reported[-1].startswith("Ringfence: node a at a:7101 is lost: ")


async def test_the_error_of_a_missing_token_shows_how_to_write_one(autojump_clock):
    async with town() as t:
        for node in t.nodes.values():
            node.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "'anonymous' is not known")
        cluster = await t.client("b", credential=b"")

        error = await cluster.wait_joined(5)
        assert isinstance(error, AccessDenied)
        assert str(error) == (
            "b:7101: this cluster requires a token; add the file of one to the address, as in "
            "ringfence://b:7101?ca=ca.pem&token_file=app.token"
        )


async def test_decisions_come_from_the_policy_until_rules_arrive(autojump_clock):
    async with town(serve=False) as t:
        cluster = await t.client()
        limiter = Limiter(cluster)
        before = await limiter.check("d", {"nothing": "a"})
        await t.serve("a", "b", "c")
        await trio.sleep(10)

        assert before.source is Source.POLICY
        assert (await limiter.check("d", {"nothing": "a"})).source is Source.NO_RULE


async def test_rules_that_arrive_later_are_looked_at_for_what_was_expected(autojump_clock, caplog):
    async with town(serve=False) as t:
        unmatched = UnmatchedChecks()
        limiter = Limiter(await t.client(on_rules=unmatched.verify), unmatched=unmatched)
        assert limiter.expect("dd", ["user"]) == []
        assert "'dd'" not in caplog.text
        await t.serve("a", "b", "c")
        await trio.sleep(10)

        assert "domain 'dd' has no rules" in caplog.text


async def test_the_error_without_an_answer_names_seeds_and_reasons(autojump_clock):
    async with town(serve=False) as t:
        started = trio.current_time()
        error = await (await t.client("a", "b")).wait_joined(5)

        assert isinstance(error, PeerUnavailable)
        assert "within 5 s (asked a:7101, b:7101)" in str(error)
        assert error.addresses == (("a", 7101), ("b", 7101))
        assert "no process listens" in str(error)
        assert trio.current_time() == started + 5


async def test_a_client_without_nodes_joins_when_nodes_start(autojump_clock):
    async with town(serve=False) as t:
        cluster = await t.client()
        limiter = Limiter(cluster)
        assert await cluster.wait_joined(5) is not None
        assert (await limiter.check_limit("1/s", "key")).source is Source.POLICY
        await t.serve("a", "b", "c")
        await trio.sleep(10)

        assert await sources(limiter) == {Source.OWNER}


@pytest.mark.parametrize("kind", [AskMembers, AskRules])
async def test_a_question_that_went_unanswered_is_asked_again(autojump_clock, kind):
    async with town() as t:
        for node in t.nodes.values():
            node.mute = kind
        cluster = await t.client()
        assert isinstance(await cluster.wait_joined(5), PeerUnavailable)
        for node in t.nodes.values():
            node.mute = ()
        await trio.sleep(10)

        assert await sources(Limiter(cluster)) == {Source.OWNER}


async def test_a_seed_by_another_address_is_identified_by_its_name(autojump_clock):
    async with town() as t:
        t.nodes["a"].rows = t.rows = [
            MemberRow("a", "another.name", 7101, "dc1", "", 1.0, "alive"),
            row("b"),
        ]
        limiter = Limiter(await t.joined("a"))

        assert await sources(limiter) == {Source.OWNER}
        assert len(t.nodes["a"].hellos) == 1


# -- data centers ----------------------------------------------------------------------------------


def two_datacenters():
    return [row("a", "east"), row("b", "west"), row("c", "west")]


async def test_a_client_asks_the_data_center_of_the_member_that_answered(autojump_clock):
    async with town(*two_datacenters()) as t:
        await sources(Limiter(await t.joined("b")))

        assert t.requests()["a"] == 0
        assert len(t.nodes["a"].hellos) == 0


async def test_a_client_can_name_its_data_center(autojump_clock):
    async with town(*two_datacenters()) as t:
        await sources(Limiter(await t.joined("b", datacenter="east")))

        assert t.requests() == {"a": 1, "b": 0, "c": 0}


async def test_a_data_center_is_joined_once_it_has_members(
    autojump_clock,
):
    async with town(*two_datacenters()) as t:
        cluster = await t.client("b", datacenter="south")
        with trio.fail_after(1):
            error = await cluster.wait_joined(5)
        assert isinstance(error, ConfigError)
        assert "in data center 'south'" in str(error)
        assert "known are 'east', 'west'" in str(error)
        t.change_members(*two_datacenters(), row("d", "south"))
        await t.serve("d")
        await trio.sleep(10)

        assert await sources(Limiter(cluster)) == {Source.OWNER}
        assert t.requests()["d"] == 1


async def test_a_data_center_that_is_down_is_an_outage(autojump_clock):
    async with town(row("a", "east", "dead"), row("b", "west")) as t:
        cluster = await t.client("b", datacenter="east")

        assert isinstance(await cluster.wait_joined(5), PeerUnavailable)


# -- losing members --------------------------------------------------------------------------------


async def test_a_lost_members_keys_are_decided_by_standbys(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        t.crash("a")
        await sources(limiter)
        await trio.sleep(2)

        assert await sources(limiter) == {Source.OWNER, Source.STANDBY}


async def test_a_client_reconnects_when_all_lost_members_return(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined("b"))
        t.crash("a", "b", "c")
        await sources(limiter)
        await trio.sleep(60)
        assert await sources(limiter) == {Source.POLICY}
        await t.serve("a", "b", "c")
        await trio.sleep(10)

        assert await sources(limiter) == {Source.OWNER}


async def test_when_the_members_known_are_gone_the_seeds_tell_of_others(autojump_clock):
    async with town(row("a"), row("b")) as t:
        t.nodes["b"].rows = [row("b")]
        limiter = Limiter(await t.joined("a", "b"))
        t.crash("a", "b")
        await sources(limiter)
        await trio.sleep(30)
        t.change_members(row("b"), row("e"))
        await t.serve("b", "e")
        await trio.sleep(10)

        assert await sources(limiter) == {Source.OWNER}
        assert t.requests()["e"] == 1


async def test_standbys_decide_at_once_after_a_goodbye(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        node = t.nodes["a"]
        node.refusal = Refused(0, ErrorCode.DRAINING, "leaving")
        for connection in node.connections:
            connection.send(encode(Goodbye("leaving")))
        node.transport.flush()
        await trio.sleep(0.1)
        started = trio.current_time()

        assert await sources(limiter) == {Source.OWNER, Source.STANDBY}
        assert trio.current_time() - started < 0.1


async def test_a_member_without_support_for_reports_receives_only_one(autojump_clock):
    async with town() as t:
        for node in t.nodes.values():
            node.is_old = True
            node.mute = (Request,)
        cluster = await t.joined()
        limiter = Limiter(cluster, local_cache=cluster.local_cache)
        for _ in range(3):
            assert await sources(limiter) <= {Source.POLICY, Source.SHED}
        await trio.sleep(100)

        assert [node.count(Report) for node in t.nodes.values()] == [1, 1, 1]


async def test_an_outage_has_the_reason_that_a_node_sent(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        assert cluster.outage() is None
        for node in t.nodes.values():
            node.answer = lambda message: Refused(message.seq, ErrorCode.NOT_PERMITTED, "no scope")
        await cluster.admin.all_stats()

        assert isinstance(cluster.outage(), AccessDenied)


@pytest.mark.parametrize("many", [1, 5])
async def test_a_missing_scope_raises_for_any_on_failure(autojump_clock, many):
    async with town() as t:
        cluster = await t.joined()
        limiter = Limiter(cluster)
        for node in t.nodes.values():
            node.answer = lambda message: Refused(message.seq, ErrorCode.NOT_PERMITTED, "no scope")

        with pytest.raises(AccessDenied, match="no scope"):
            await limiter.check_many("d", [{"user": str(number)} for number in range(many)])
        with pytest.raises(AccessDenied, match="no scope"):
            await limiter.reset("d", {"user": "a"})
        assert cluster.outage() is None


async def test_a_closed_client_decides_by_policy(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        limiter = Limiter(cluster)
        for node in t.nodes.values():
            node.mute = Request
        found = []

        async def check():
            found.append((await limiter.check("d", {"user": "a"})).source)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(check)
            await trio.sleep(0.1)
            cluster.close()
            t.transport.flush()
        await check()

        assert found == [Source.POLICY, Source.POLICY]
        await trio.sleep(0.1)
        assert not any(node.connections for node in t.nodes.values())
