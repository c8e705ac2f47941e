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
from tests.ringfence.client.cluster.fake_cluster import fake_cluster, row, sources, view_of

# -- joining ---------------------------------------------------------------------------------------


async def test_a_client_learns_members_and_rules_from_any_member(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.client("b")

        assert await cluster.wait_joined(5) is None
        assert [member.name for member in cluster.members] == ["a", "b", "c"]
        assert cluster.rules == fake.rules
        assert cluster.rules.version == 1
        assert cluster.view == view_of(fake.rows).hash


async def test_each_check_is_sent_to_the_owner_of_its_key(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined("b"))
        ring = view_of(fake.rows).ring("dc1")
        for number in range(30):
            await limiter.check("d", {"user": str(number)})

        for name, node in fake.nodes.items():
            keys = [
                key
                for seen in node.received
                if isinstance(seen, Request)
                for key in seen.batch.keys
            ]
            assert {ring.owner(shard_of(key)) for key in keys} == {name}
        assert sum(fake.requests().values()) == 30


async def test_without_ask_owners_one_reachable_seed_gets_all_checks(autojump_clock):
    async with fake_cluster(serve=False) as fake:
        await fake.serve("b", "c")
        limiter = Limiter(await fake.joined("a", "b", ask_owners=False))
        await sources(limiter)

        assert [name for name, count in fake.requests().items() if count] == ["b"]


@pytest.mark.parametrize("run", [asyncio.run, lambda call: trio.run(lambda: call)])
async def test_a_call_in_another_thread_is_refused(run):
    async with fake_cluster(serve=False) as fake:
        limiter = Limiter(await fake.client("a"))
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
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined())
        await limiter.check("d", {"path": "/"})
        await limiter.check("other", {"user": "a"})

        assert sum(fake.requests().values()) == 0


async def test_each_link_has_its_own_session(autojump_clock):
    async with fake_cluster() as fake:
        await sources(Limiter(await fake.joined()))
        fake.crash("a")
        await fake.serve("a")
        await trio.sleep(60)
        sessions = [{hello.session for hello in node.hellos} for node in fake.nodes.values()]

        assert [len(own) for own in sessions] == [1, 1, 1]
        assert len(set.union(*sessions)) == 3


async def test_a_rejected_token_is_an_error_at_once(autojump_clock):
    async with fake_cluster() as fake:
        for node in fake.nodes.values():
            node.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        cluster = await fake.client()

        with trio.fail_after(1):
            error = await cluster.wait_joined(5)
        assert isinstance(error, AccessDenied)
        assert "no such token" in str(error)


async def test_a_token_that_the_only_live_node_rejects_is_an_error(autojump_clock):
    async with fake_cluster(serve=False) as fake:
        await fake.serve("b")
        fake.nodes["b"].refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")

        assert isinstance(await (await fake.client()).wait_joined(5), AccessDenied)


async def test_a_node_without_a_known_name_is_logged_by_its_address(autojump_clock, caplog):
    caplog.set_level("INFO", "ringfence")
    async with fake_cluster(serve=False) as fake:
        await fake.client("a")
        await trio.sleep(10)
        await fake.serve("a")
        await trio.sleep(10)
        fake.crash("a")
        await trio.sleep(10)

    reported = [record.getMessage() for record in caplog.records if "node" in record.getMessage()]
    assert reported[0].startswith("Ringfence: the node at a:7101 is lost: ")
    assert "node a at a:7101 is reachable" in reported
    assert reported[-1].startswith("Ringfence: node a at a:7101 is lost: ")


async def test_the_error_of_a_missing_token_shows_how_to_write_one(autojump_clock):
    async with fake_cluster() as fake:
        for node in fake.nodes.values():
            node.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "'anonymous' is not known")
        cluster = await fake.client("b", credential=b"")

        error = await cluster.wait_joined(5)
        assert isinstance(error, AccessDenied)
        assert str(error) == (
            "b:7101: this cluster requires a token; add the file of one to the address, as in "
            "ringfence://b:7101?ca=ca.pem&token_file=app.token"
        )


async def test_decisions_come_from_the_policy_until_rules_arrive(autojump_clock):
    async with fake_cluster(serve=False) as fake:
        cluster = await fake.client()
        limiter = Limiter(cluster)
        before = await limiter.check("d", {"nothing": "a"})
        await fake.serve("a", "b", "c")
        await trio.sleep(10)

        assert before.source is Source.POLICY
        assert (await limiter.check("d", {"nothing": "a"})).source is Source.NO_RULE


async def test_expected_descriptors_are_verified_when_rules_arrive(autojump_clock, caplog):
    async with fake_cluster(serve=False) as fake:
        unmatched = UnmatchedChecks()
        limiter = Limiter(await fake.client(on_rules=unmatched.verify), unmatched=unmatched)
        assert limiter.expect("dd", ["user"]) == []
        assert "'dd'" not in caplog.text
        await fake.serve("a", "b", "c")
        await trio.sleep(10)

        assert "domain 'dd' has no rules" in caplog.text


async def test_the_error_without_an_answer_names_seeds_and_reasons(autojump_clock):
    async with fake_cluster(serve=False) as fake:
        started = trio.current_time()
        error = await (await fake.client("a", "b")).wait_joined(5)

        assert isinstance(error, PeerUnavailable)
        assert "within 5 s (asked a:7101, b:7101)" in str(error)
        assert error.addresses == (("a", 7101), ("b", 7101))
        assert "no process listens" in str(error)
        assert trio.current_time() == started + 5


async def test_a_client_without_nodes_joins_when_nodes_start(autojump_clock):
    async with fake_cluster(serve=False) as fake:
        cluster = await fake.client()
        limiter = Limiter(cluster)
        assert await cluster.wait_joined(5) is not None
        assert (await limiter.check_limit("1/s", "key")).source is Source.POLICY
        await fake.serve("a", "b", "c")
        await trio.sleep(10)

        assert await sources(limiter) == {Source.OWNER}


@pytest.mark.parametrize("kind", [AskMembers, AskRules])
async def test_a_request_without_an_answer_is_sent_again(autojump_clock, kind):
    async with fake_cluster() as fake:
        for node in fake.nodes.values():
            node.mute = kind
        cluster = await fake.client()
        assert isinstance(await cluster.wait_joined(5), PeerUnavailable)
        for node in fake.nodes.values():
            node.mute = ()
        await trio.sleep(10)

        assert await sources(Limiter(cluster)) == {Source.OWNER}


async def test_a_seed_by_another_address_is_identified_by_its_name(autojump_clock):
    async with fake_cluster() as fake:
        fake.nodes["a"].rows = fake.rows = [
            MemberRow("a", "another.name", 7101, "dc1", "", 1.0, "alive"),
            row("b"),
        ]
        limiter = Limiter(await fake.joined("a"))

        assert await sources(limiter) == {Source.OWNER}
        assert len(fake.nodes["a"].hellos) == 1


# -- data centers ----------------------------------------------------------------------------------


def two_datacenters():
    return [row("a", "east"), row("b", "west"), row("c", "west")]


async def test_a_client_asks_the_data_center_of_the_member_that_answered(autojump_clock):
    async with fake_cluster(*two_datacenters()) as fake:
        await sources(Limiter(await fake.joined("b")))

        assert fake.requests()["a"] == 0
        assert len(fake.nodes["a"].hellos) == 0


async def test_a_client_can_name_its_data_center(autojump_clock):
    async with fake_cluster(*two_datacenters()) as fake:
        await sources(Limiter(await fake.joined("b", datacenter="east")))

        assert fake.requests() == {"a": 1, "b": 0, "c": 0}


async def test_a_data_center_is_joined_once_it_has_members(
    autojump_clock,
):
    async with fake_cluster(*two_datacenters()) as fake:
        cluster = await fake.client("b", datacenter="south")
        with trio.fail_after(1):
            error = await cluster.wait_joined(5)
        assert isinstance(error, ConfigError)
        assert "in data center 'south'" in str(error)
        assert "known are 'east', 'west'" in str(error)
        fake.change_members(*two_datacenters(), row("d", "south"))
        await fake.serve("d")
        await trio.sleep(10)

        assert await sources(Limiter(cluster)) == {Source.OWNER}
        assert fake.requests()["d"] == 1


async def test_a_data_center_that_is_down_is_an_outage(autojump_clock):
    async with fake_cluster(row("a", "east", "dead"), row("b", "west")) as fake:
        cluster = await fake.client("b", datacenter="east")

        assert isinstance(await cluster.wait_joined(5), PeerUnavailable)


# -- losing members --------------------------------------------------------------------------------


async def test_a_lost_members_keys_are_decided_by_standbys(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined())
        fake.crash("a")
        await sources(limiter)
        await trio.sleep(2)

        assert await sources(limiter) == {Source.OWNER, Source.STANDBY}


async def test_a_client_reconnects_when_all_lost_members_return(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined("b"))
        fake.crash("a", "b", "c")
        await sources(limiter)
        await trio.sleep(60)
        assert await sources(limiter) == {Source.POLICY}
        await fake.serve("a", "b", "c")
        await trio.sleep(10)

        assert await sources(limiter) == {Source.OWNER}


async def test_when_all_known_members_are_lost_the_seeds_name_others(autojump_clock):
    async with fake_cluster(row("a"), row("b")) as fake:
        fake.nodes["b"].rows = [row("b")]
        limiter = Limiter(await fake.joined("a", "b"))
        fake.crash("a", "b")
        await sources(limiter)
        await trio.sleep(30)
        fake.change_members(row("b"), row("e"))
        await fake.serve("b", "e")
        await trio.sleep(10)

        assert await sources(limiter) == {Source.OWNER}
        assert fake.requests()["e"] == 1


async def test_standbys_decide_at_once_after_a_goodbye(autojump_clock, caplog):
    async with fake_cluster() as fake:
        caplog.set_level("INFO", "ringfence")
        limiter = Limiter(await fake.joined())
        node = fake.nodes["a"]
        node.refusal = Refused(0, ErrorCode.DRAINING, "leaving")
        for connection in node.connections:
            connection.send(encode(Goodbye("leaving")))
        node.transport.flush()
        await trio.sleep(0.1)
        started = trio.current_time()

        assert await sources(limiter) == {Source.OWNER, Source.STANDBY}
        assert trio.current_time() - started < 0.1
    logged = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert logged[-1] == ("INFO", "node a at a:7101 is leaving")


async def test_a_member_without_support_for_reports_receives_only_one(autojump_clock):
    async with fake_cluster() as fake:
        for node in fake.nodes.values():
            node.is_old = True
            node.mute = (Request,)
        cluster = await fake.joined()
        limiter = Limiter(cluster, local_cache=cluster.local_cache)
        for _ in range(3):
            assert await sources(limiter) <= {Source.POLICY, Source.SHED}
        await trio.sleep(100)

        assert [node.count(Report) for node in fake.nodes.values()] == [1, 1, 1]


async def test_an_outage_has_the_reason_that_a_node_sent(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        assert cluster.outage() is None
        for node in fake.nodes.values():
            node.answer = lambda message: Refused(message.seq, ErrorCode.NOT_PERMITTED, "no scope")
        await cluster.admin.all_stats()

        assert isinstance(cluster.outage(), AccessDenied)


@pytest.mark.parametrize("many", [1, 5])
async def test_a_missing_scope_raises_for_any_on_failure(autojump_clock, many):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        limiter = Limiter(cluster)
        for node in fake.nodes.values():
            node.answer = lambda message: Refused(message.seq, ErrorCode.NOT_PERMITTED, "no scope")

        with pytest.raises(AccessDenied, match="no scope"):
            await limiter.check_many("d", [{"user": str(number)} for number in range(many)])
        with pytest.raises(AccessDenied, match="no scope"):
            await limiter.reset("d", {"user": "a"})
        assert cluster.outage() is None


async def test_a_closed_client_decides_by_policy(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        limiter = Limiter(cluster)
        for node in fake.nodes.values():
            node.mute = Request
        found = []

        async def check():
            found.append((await limiter.check("d", {"user": "a"})).source)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(check)
            await trio.sleep(0.1)
            cluster.close()
            fake.transport.flush()
        await check()

        assert found == [Source.POLICY, Source.POLICY]
        await trio.sleep(0.1)
        assert not any(node.connections for node in fake.nodes.values())
