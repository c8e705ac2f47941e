from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
import trio

from hashring import Member, NodeId, View, shard_of
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.errors import AccessDenied, ConfigError, PeerUnavailable
from ringfence.limiter import Engine
from ringfence.peering.engine_choice import decide_by, engine_rules
from ringfence.rules import RuleSet
from ringfence.rules.loading.mapping import load_mapping
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import (
    Answer,
    AskLeave,
    AskMembers,
    AskPeers,
    AskRules,
    AskStats,
    Done,
    ErrorCode,
    Goodbye,
    Hello,
    MemberRow,
    Members,
    Peers,
    Ping,
    Pong,
    Refused,
    Report,
    Request,
    Results,
    Role,
    Rules,
    Source,
    Stats,
    SubscribeDenials,
    Welcome,
    decode,
    encode,
)

HERE = ("client", 1)
NOW = 30_000_000_000


def rules_of(version, **amounts):
    """One limit per minute for any value of each key."""
    descriptors = [
        {"key": name, "rate_limit": {"requests_per_unit": amount, "unit": "minute"}}
        for name, amount in amounts.items()
    ]
    made = load_mapping({"domain": "d", "descriptors": descriptors}).rules
    return RuleSet(made.contents, version=version)


def row(name, datacenter="dc1", state="alive"):
    return MemberRow(name, name, 7101, datacenter, "", 1.0, state)


def view_of(rows):
    alive = [each for each in rows if each.state in ("alive", "suspect")]
    return View.of(Member(NodeId(each.name), each.datacenter) for each in alive)


class Node:
    """A member that decides whatever it is asked."""

    def __init__(self, town, name):
        self.town = town
        self.name = name
        self.at = (name, 7101)
        self.rows = town.rows
        self.refusal = None
        self.is_old = False
        """Whether it knows nothing of clients that remember denials, or that report decisions."""
        self.mute = ()
        """Kinds of messages that it does not answer."""
        self.hellos = []
        self.heard = []
        self.connections = []
        self.told = [{"name": name}]
        """What it knows of the members."""
        self.farewell = Done
        """What it says when it is asked to leave."""
        self.plain = None
        """What it sends in place of its rules."""
        self.engine = Engine(max_keys=1000)
        self.know(town.rules)

    def know(self, rules):
        self.rules = rules
        self.engine.set_rules(engine_rules(rules.rules()))

    @property
    def view(self):
        return view_of(self.rows).hash

    def count(self, kind):
        return sum(isinstance(message, kind) for message in self.heard)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        self.transport = self.town.network.transport(self.at, on_bug=raise_, accept=self.accept)
        await self.transport.run(task_status=task_status)

    def accept(self, connection):
        self.connections.append(connection)
        return Talk(self, connection)

    def answer(self, message):
        match message:
            case Hello() if self.refusal is not None:
                return self.refusal
            case Hello():
                return Welcome(self.name, self.view, self.rules.version)
            case Request() as request:
                outcomes = decide_by(self.engine, request.batch, NOW)
                source = Source.STANDBY if request.as_standby else Source.OWNER
                sources = [source] * len(request.batch)
                return Answer(
                    request.seq, self.view, self.rules.version, Results(outcomes, sources)
                )
            case AskMembers(seq):
                return Members(seq, self.view, self.rows)
            case AskRules(seq):
                plain = self.rules.to_plain() if self.plain is None else self.plain
                return Rules(seq, self.rules.version, plain)
            case AskStats(seq):
                return Stats(seq, {"checks": self.count(Request)})
            case AskPeers(seq):
                return Peers(seq, self.told)
            case AskLeave(seq):
                return self.farewell(seq)
            case Ping(seq):
                return Pong(seq)
            case SubscribeDenials(seq) | Report(seq):
                return Done(seq)
        raise AssertionError(message)


class Talk:
    def __init__(self, node, connection):
        self.node = node
        self.connection = connection

    def on_open(self, connection):
        pass

    def on_close(self, code, reason):
        self.node.connections.remove(self.connection)

    def on_message(self, payload):
        message = decode(payload)
        (self.node.hellos if isinstance(message, Hello) else self.node.heard).append(message)
        if self.node.is_old and isinstance(message, SubscribeDenials | Report):
            self.connection.close(ErrorCode.BAD_MESSAGE, "a message of no known type")
        elif not isinstance(message, self.node.mute):
            self.connection.send(encode(self.node.answer(message)))


def raise_(error):
    raise error


class Town:
    """Members that know each other, and clients of theirs."""

    def __init__(self, nursery, transport, network, rows, rules):
        self.nursery = nursery
        self.transport = transport
        self.network = network
        self.rows = rows
        self.rules = rules
        self.nodes = {each.name: Node(self, each.name) for each in rows}

    async def serve(self, *names):
        for name in names:
            await self.nursery.start(self.nodes[name].run)

    def crash(self, *names):
        for name in names:
            self.network.crash(self.nodes[name].at)
            self.nodes[name].connections.clear()

    async def client(
        self, *seeds, rules=None, credential=b"secret", on_rules=lambda _: None, **settings
    ):
        cluster = Cluster(
            self.transport,
            [self.nodes[seed].at for seed in seeds or self.nodes],
            Hello(Role.CLIENT, "web", credential, 5),
            ClusterSettings(**settings),
            HandClock(),
            Random(3),
            rules,
            on_rules,
        )
        await self.nursery.start(cluster.run)
        return cluster

    async def joined(self, *seeds, **settings):
        cluster = await self.client(*seeds, **settings)
        assert await cluster.wait_joined(5) is None
        await trio.sleep(1)
        return cluster

    def change_members(self, *rows):
        self.rows = list(rows)
        for each in rows:
            self.nodes.setdefault(each.name, Node(self, each.name)).rows = self.rows

    def change_rules(self, rules):
        for node in self.nodes.values():
            node.know(rules)

    def requests(self):
        """How many requests each member has seen."""
        return {name: node.count(Request) for name, node in self.nodes.items()}


class HandClock:
    def now(self):
        return NOW


@asynccontextmanager
async def town(*rows, serve=True, **amounts):
    network = MemoryNetwork(Random(1), delay=0.001)
    transport = network.transport(HERE, on_bug=raise_)
    rows = list(rows) or [row(name) for name in "abc"]
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        made = Town(nursery, transport, network, rows, rules_of(1, **(amounts or {"user": 9})))
        if serve:
            await made.serve(*made.nodes)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_member_that_knows_no_reports_is_sent_one_and_no_more(autojump_clock):
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


async def sources(limiter, key="user", many=12):
    decisions = await limiter.check_many("d", [{key: str(number)} for number in range(many)])
    return {decision.source for decision in decisions}


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
                key for seen in node.heard if isinstance(seen, Request) for key in seen.batch.keys
            ]
            assert {ring.owner(shard_of(key)) for key in keys} == {name}
        assert sum(t.requests().values()) == 30


async def test_a_client_of_one_shot_asks_one_seed_that_answers(autojump_clock):
    async with town(serve=False) as t:
        await t.serve("b", "c")
        limiter = Limiter(await t.joined("a", "b", ask_owners=False))
        await sources(limiter)

        assert [name for name, count in t.requests().items() if count] == ["b"]


async def test_a_request_that_meets_no_rule_asks_nobody(autojump_clock):
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


async def test_a_refused_token_is_told_at_once(autojump_clock):
    async with town() as t:
        for node in t.nodes.values():
            node.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        cluster = await t.client()

        with trio.fail_after(1):
            error = await cluster.wait_joined(5)
        assert isinstance(error, AccessDenied)
        assert "no such token" in str(error)


async def test_a_token_that_the_only_living_member_refuses_is_told_too(autojump_clock):
    async with town(serve=False) as t:
        await t.serve("b")
        t.nodes["b"].refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")

        assert isinstance(await (await t.client()).wait_joined(5), AccessDenied)


async def test_a_member_that_has_never_said_its_name_is_told_of_by_its_address(
    autojump_clock, caplog
):
    caplog.set_level("INFO", "ringfence")
    async with town(serve=False) as t:
        await t.client("a")
        await trio.sleep(10)
        await t.serve("a")
        await trio.sleep(10)
        t.crash("a")
        await trio.sleep(10)

    told = [record.getMessage() for record in caplog.records if "node" in record.getMessage()]
    assert told[0].startswith("Ringfence: the node at a:7101 is lost: ")
    assert "node a at a:7101 is reachable" in told
    assert told[-1].startswith("Ringfence: node a at a:7101 is lost: ")


async def test_a_client_without_a_token_is_told_how_to_write_one(autojump_clock):
    async with town() as t:
        for node in t.nodes.values():
            node.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "'anonymous' is not known")
        cluster = await t.client("b", credential=b"")

        error = await cluster.wait_joined(5)
        assert isinstance(error, AccessDenied)
        assert str(error) == "b:7101: this cluster wants a token: write ringfence://TOKEN@b:7101"


async def test_until_a_member_has_told_rules_decisions_are_made_for_want_of_one(autojump_clock):
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


async def test_when_nobody_answers_the_error_names_who_was_asked_and_why(autojump_clock):
    async with town(serve=False) as t:
        begun = trio.current_time()
        error = await (await t.client("a", "b")).wait_joined(5)

        assert isinstance(error, PeerUnavailable)
        assert "within 5 s (asked a:7101, b:7101)" in str(error)
        assert "no process listens" in str(error)
        assert trio.current_time() == begun + 5


async def test_a_client_that_found_nobody_joins_when_somebody_starts(autojump_clock):
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


async def test_a_seed_under_another_name_is_the_member_that_it_says_it_is(autojump_clock):
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


async def test_a_data_center_without_members_is_never_joined_but_found_when_it_has_some(
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


# -- following what changes ------------------------------------------------------------------------


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


async def test_a_client_that_asks_nothing_hears_of_new_rules_all_the_same(autojump_clock):
    async with town(user=9) as t:
        limiter = Limiter(await t.joined())
        t.change_rules(rules_of(2, path=1))
        await trio.sleep(15)

        assert (await limiter.check("d", {"path": "/"})).limit == 1


async def test_an_idle_client_asks_rarely(autojump_clock):
    async with town() as t:
        await t.joined()
        before = sum(len(node.heard) for node in t.nodes.values())
        await trio.sleep(600)

        assert sum(len(node.heard) for node in t.nodes.values()) - before <= 2 * 60


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


async def test_many_checks_of_a_rule_that_an_owner_does_not_know_fetch_the_rules_once(
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


async def test_an_older_member_is_asked_once_whether_it_tells_of_denials_that_end(autojump_clock):
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


async def test_a_member_that_is_gone_is_not_asked_any_more(autojump_clock):
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
        for late in [message for message in node.heard if isinstance(message, Request)]:
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


async def test_members_that_make_no_ring_change_nothing(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        odd = MemberRow("d", "d", 7101, "", "", 1.0, "alive")
        for node in t.nodes.values():
            node.answer = odd_members(node, [*t.rows, odd])
        for _ in range(5):
            assert await sources(limiter) == {Source.OWNER}
            await trio.sleep(0.5)


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


# -- losing members --------------------------------------------------------------------------------


async def test_a_lost_members_keys_are_decided_by_standbys(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        t.crash("a")
        await sources(limiter)
        await trio.sleep(2)

        assert await sources(limiter) == {Source.OWNER, Source.STANDBY}


async def test_when_all_are_lost_and_come_back_their_client_does_too(autojump_clock):
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


async def test_a_member_that_says_goodbye_hands_its_keys_to_standbys_at_once(autojump_clock):
    async with town() as t:
        limiter = Limiter(await t.joined())
        node = t.nodes["a"]
        node.refusal = Refused(0, ErrorCode.DRAINING, "leaving")
        for connection in node.connections:
            connection.send(encode(Goodbye("leaving")))
        node.transport.flush()
        await trio.sleep(0.1)
        begun = trio.current_time()

        assert await sources(limiter) == {Source.OWNER, Source.STANDBY}
        assert trio.current_time() - begun < 0.1


# -- counters and the end --------------------------------------------------------------------------


async def test_every_members_counters_can_be_had_and_a_lost_one_has_none(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        t.crash("c")

        stats = await cluster.admin.all_stats()

        assert [(member.name, counters) for member, counters in stats] == [
            ("a", {"checks": 0}),
            ("b", {"checks": 0}),
            ("c", None),
        ]


async def test_a_member_tells_what_it_knows_of_all(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        a, b, c = cluster.members
        t.nodes["b"].told = "odd"
        t.crash("c")

        assert await cluster.admin.peers(a) == [{"name": "a"}]
        assert await cluster.admin.peers(b) is None
        assert await cluster.admin.peers(c) is None
        assert await cluster.admin.members_seen_by(a) == (a, b, c)
        assert await cluster.admin.members_seen_by(c) is None


async def test_a_member_is_asked_to_leave(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        a, b, c = cluster.members
        t.nodes["b"].farewell = lambda seq: Refused(seq, ErrorCode.NOT_PERMITTED, "no admin")
        t.crash("c")

        assert await cluster.admin.ask_to_leave(a)
        with pytest.raises(AccessDenied, match="no admin"):
            await cluster.admin.ask_to_leave(b)
        assert not await cluster.admin.ask_to_leave(c)
        assert t.nodes["a"].count(AskLeave) == 1


async def test_why_no_member_decides_is_known_when_one_has_said_so(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        assert cluster.outage() is None
        for node in t.nodes.values():
            node.answer = lambda message: Refused(message.seq, ErrorCode.NOT_PERMITTED, "no scope")
        await cluster.admin.all_stats()

        assert isinstance(cluster.outage(), AccessDenied)


@pytest.mark.parametrize("many", [1, 5])
async def test_what_the_token_may_not_do_raises_whatever_the_rules_say(autojump_clock, many):
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
