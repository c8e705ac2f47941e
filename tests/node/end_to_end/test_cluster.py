"""Several nodes and embedded clients on an in-memory network, on virtual time."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from hashring import shard_of
from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from node.requests.request_parts import Part
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import Algorithm, Code, Limit
from ringfence.rules import RuleSet, adhoc_rule, encode_key
from ringfence.rules.limit_strings import parse_limit
from ringfence.rules.loading.yaml_files import load_text
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import Batch, Op, Request, Results, Source
from tests.node.cluster import (
    NAMES,
    RULES,
    HandClock,
    World,
    address_of,
    counter,
    of,
    owned,
    ring_of,
    world,
)
from tests.ringfence.limiter.vectors.algorithms import CHARGE_VECTORS, VECTORS, Vector

# One shared limit


async def test_all_nodes_share_one_limit(autojump_clock: MockClock) -> None:
    async with world() as w:
        decisions = []
        for seed in (*NAMES, *NAMES):
            async with w.client(seed, only=True) as limiter:
                decisions.append(await limiter.check("api", {"client": "x"}))

        assert of(decisions) == [True] * 5 + [False]
        assert [decision.remaining for decision in decisions] == [4, 3, 2, 1, 0, 0]
        assert {decision.source for decision in decisions} == {Source.OWNER}


async def test_a_check_of_another_owner_is_forwarded_and_counted_once(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        for _ in range(3):
            await limiter.check("api", owned(w.rules, "client", "b"))
        await limiter.check("api", owned(w.rules, "client", "a"))

        assert [w.count(name, "forwarded") for name in NAMES] == [3, 0, 0]
        assert [w.count(name, "checks") for name in NAMES] == [1, 3, 0]


async def test_a_client_asks_the_owner_itself(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        for number in range(50):
            await limiter.check("api", {"client": str(number)})

        assert w.total("forwarded") == 0
        assert w.total("checks") == 50
        assert all(w.count(name, "checks") > 5 for name in NAMES)


async def test_a_client_is_rejected_until_the_node_runs_and_then_served(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as w:
        w.nursery.start_soon(partial(w.start, "b", pause=1.0))
        await trio.sleep(0.1)
        async with w.client("b", only=True) as limiter:
            decision = await limiter.check("api", {"client": "x"})
        await w.settle()

        assert decision.source is Source.OWNER
        assert w.count("b", "refused_starting") >= 1


async def test_every_documented_counter_is_there_from_the_start(autojump_clock: MockClock) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "node-counters.md").read_text(
        "utf-8"
    )
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row)}
    later = ("refused_", "internal_errors_")

    async with world("a") as w:
        counters = w.nodes["a"].queries.stats(1).counters

    assert len(documented) > 80
    assert {name for name in documented if not name.startswith(later)} <= counters.keys()


async def test_keys_may_change_before_a_node_runs() -> None:
    access = Access(cluster="ringfence", is_open=True)
    settings = NodeSettings(name="a", listen="a:7101")
    node = Node(settings, access, RuleSet(), clock=HandClock(), random=Random(1))

    node.change_access(Access(cluster="ringfence"))

    assert not node.access.current.is_open


async def test_each_node_logs_once_that_a_peer_is_within_reach(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Several links lead to each peer: the seed's link, the link of checks and the link of
    transfers."""
    caplog.set_level("INFO", "ringfence.node")

    def reached(name: str) -> int:
        said = f"peer {name} at {name}:7101 is within reach"
        return [record.getMessage() for record in caplog.records].count(said)

    async with world("a", "b") as w, w.client("a", only=True) as limiter:
        for number in range(20):
            await limiter.check("api", {"client": str(number)})
        await trio.sleep(5)
        assert (reached("a"), reached("b")) == (1, 1)

        await w.crash("b")
        await trio.sleep(10)
        await w.start("b")
        await w.settle()
        assert (reached("a"), reached("b")) == (2, 2)


async def test_members_connect_with_the_new_key_once_the_old_one_is_dropped(
    autojump_clock: MockClock,
) -> None:
    old, new = b"o" * 32, b"n" * 32
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        for keys in ((b"", old), (old, b""), (old,), (old, new), (new, old), (new,)):
            for node in w.nodes.values():
                node.change_access(Access(keys, "ringfence", is_open=True))
            await trio.sleep(2)

            decision = await limiter.check("api", client, 0)
            assert decision.source is Source.OWNER
        assert w.total("refused_bad_credential") >= 2
        assert w.count("b", "checks") == 7


async def test_a_request_that_meets_no_rule_never_leaves_the_process(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        decision = await limiter.check("api", {"colour": "red"})

        assert decision.allowed
        assert decision.source is Source.NO_RULE
        assert w.total("checks") == 0


async def test_a_refund_removes_the_newest_hits_of_a_log(autojump_clock: MockClock) -> None:
    rules = RULES.replace("algorithm: fixed_window", "algorithm: sliding_window_log")
    async with world(rules=rules) as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        for _ in range(2):
            await limiter.check("api", client, 2)
            w.clock.time += 20 * 10**9

        assert (await limiter.refund("api", client, 3)).remaining == 4
        w.clock.time += 20 * 10**9 - 1
        assert (await limiter.peek("api", client)).remaining == 4, "the oldest hit is left"
        w.clock.time += 1
        assert (await limiter.peek("api", client)).remaining == 5


async def test_peek_refund_and_reset_reach_the_owner_through_any_node(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client, 3)

        left = [
            (await limiter.peek("api", client)).remaining,
            (await limiter.refund("api", client, 2)).remaining,
            (await limiter.reset("api", client)).remaining,
        ]

        assert left == [2, 4, 5]
        assert w.count("b", "refunds") == w.count("b", "resets") == 1


async def test_limits_sent_with_checks_are_shared(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as one, w.client("b", only=True) as two:
        decisions = [
            await limiter.check_limit("3/minute fixed_window", "user", "42")
            for limiter in (one, two, one, two)
        ]

        assert of(decisions) == [True, True, True, False]


# Races


async def race(limiters: Sequence[Limiter], descriptor: Mapping[str, str]) -> int:
    """Send checks of one key from all clients at once; return how many were admitted."""
    decisions: list[Decision] = []

    async def ask(limiter: Limiter) -> None:
        decisions.append(await limiter.check("api", descriptor))

    async with trio.open_nursery() as nursery:
        for limiter in limiters:
            nursery.start_soon(ask, limiter)
    return sum(of(decisions))


@pytest.mark.parametrize("only", [False, True], ids=["asking the owner", "through other nodes"])
async def test_exactly_one_of_two_clients_gets_the_last_unit(
    autojump_clock: MockClock, only: bool
) -> None:
    rounds = 300
    async with world() as w, w.client("a", only=only) as one, w.client("b", only=only) as two:
        won = [await race([one, two], {"one": str(number)}) for number in range(rounds)]

        assert won == [1] * rounds
        assert (w.total("forwarded") > rounds) is only


async def test_exactly_the_limit_of_a_hundred_concurrent_checks_passes(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as one, w.client("c") as two:
        assert await race([one, two] * 50, {"client": "x"}) == 5


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    jitter=st.floats(0, 0.05),
    asks=st.lists(
        st.tuples(
            st.integers(0, 3),  # the client
            st.integers(0, 2),  # the key
            st.integers(0, 4),  # the cost
            st.floats(0, 0.1),  # the time
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_no_interleaving_admits_more_than_the_limit_or_less_than_requested(
    seed: int, jitter: float, asks: list[tuple[int, int, int, float]]
) -> None:
    spent = [0, 0, 0]
    refused: list[list[int]] = [[], [], []]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            network = MemoryNetwork(Random(seed), jitter=jitter)
            w = World(nursery, network, HandClock(), load_text(RULES).rules)
            for name in NAMES:
                await w.start(name)
            await w.settle()
            async with (
                w.client("a") as one,
                w.client("a", only=True) as two,
                w.client("b", only=True) as three,
                w.client("c", only=True) as four,
            ):
                limiters = (one, two, three, four)

                async def ask(who: int, key: int, cost: int, at: float) -> None:
                    await trio.sleep(at)
                    decision = await limiters[who].check("api", {"client": str(key)}, cost)
                    assert decision.source in (Source.OWNER, Source.CACHE, Source.LEASE)
                    if decision.allowed:
                        spent[key] += cost
                    else:
                        refused[key].append(cost)

                async with trio.open_nursery() as checks:
                    for who, key, cost, at in asks:
                        checks.start_soon(ask, who, key, cost, at)
            nursery.cancel_scope.cancel()
        assert w.bugs == []

    trio.run(run, clock=MockClock(autojump_threshold=0))

    for units, costs in zip(spent, refused, strict=True):
        assert units <= 5
        assert all(max(cost, 1) > 5 - units for cost in costs)  # No check was denied without need.


# Groups


async def test_several_descriptors_are_charged_together_or_not_at_all_across_owners(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        both = [owned(w.rules, "client", "a"), owned(w.rules, "tenant", "b")]
        for only in (False, True):
            async with w.client("c", only=only) as limiter:
                await limiter.reset("api", both)

                decisions = [await limiter.check("api", both) for _ in range(7)]
                await trio.sleep(0.1)  # until the refunds have arrived

                assert of(decisions) == [True] * 5 + [False] * 2
                assert (await limiter.peek("api", both[1])).remaining == 95


SHADOWED = (
    RULES
    + """
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: fixed_window}
"""
)


@pytest.mark.parametrize("shadow_at", ["a", "b"])
@pytest.mark.parametrize("seed", ["a", "c"])
async def test_a_shadow_rule_over_its_limit_denies_no_group(
    autojump_clock: MockClock, shadow_at: str, seed: str
) -> None:
    async with world(rules=SHADOWED) as w, w.client(seed, only=True) as limiter:
        both = [owned(w.rules, "client", "a"), owned(w.rules, "shadow", shadow_at)]

        decisions = [await limiter.check("api", both) for _ in range(6)]

        assert of(decisions) == [True] * 5 + [False]
        assert [decision.statuses[0].remaining for decision in decisions] == [4, 3, 2, 1, 0, 0]


async def test_a_shadow_rule_over_its_limit_denies_no_group_of_two_owners(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=SHADOWED) as w:
        keys = [
            counter(w.rules, name, owned(w.rules, name, owner)[name])
            for name, owner in (("client", "a"), ("shadow", "b"))
        ]
        codes, remaining = [], []
        for seq in range(1, 4):
            batch = Batch(Op.CHECK, keys, [1, 1], [2])
            request = Request(seq, 0, 500, 0, False, Batch(Op.CHECK, keys, [1, 1], [2]))
            verdicts = await w.nodes["c"].handler.decide(request, Part(None, batch))
            assert verdicts is not None
            codes.append(verdicts.outcomes.codes)
            remaining.append(verdicts.outcomes.remaining[0])

        assert codes == [[Code.ALLOWED, Code.ALLOWED], *[[Code.ALLOWED, Code.DENIED]] * 2]
        assert remaining == [4, 3, 2]


async def test_a_denied_group_through_another_node_leaves_no_charge(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("c", only=True) as limiter:
        full = owned(w.rules, "client", "a")
        await limiter.check("api", full, 5)
        others = [owned(w.rules, "tenant", name, 3) for name in NAMES]

        decision = await limiter.check("api", [*others, full], 1)
        await trio.sleep(0.1)

        assert not decision.allowed
        peeks = [await limiter.peek("api", other) for other in others]
        assert [peek.remaining for peek in peeks] == [100] * 3


# Failures


async def test_after_an_owners_death_its_standby_decides_and_is_named_as_source(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)

        await w.crash("b")
        decisions = [await limiter.check("api", client) for _ in range(6)]

        assert {decision.source for decision in decisions} == {Source.STANDBY}
        assert of(decisions) == [True] * 5 + [False]
        assert w.total("stood_in") == 6


@pytest.mark.parametrize("limit", ["5/minute fixed_window", "5/minute first_hit"])
async def test_owner_forwarder_and_standby_report_the_same_window_end(
    autojump_clock: MockClock, limit: str
) -> None:
    """gubernator#225: a node that received a count moved the end of its window at each call."""
    async with world() as w:
        ends, remaining = set(), []
        key = key_owned_by("b", parse_limit(limit), NAMES)
        for seed in NAMES:
            async with w.client(seed, only=True) as limiter:
                decision = await limiter.check_limit(limit, key)
                ends.add(w.clock.time + round(decision.reset_after * 1e9))
                remaining.append(decision.remaining)
            w.clock.time += 7 * 10**9
        await trio.sleep(0.3)  # until the replicas arrive
        await w.crash("b")
        async with w.client("a") as limiter:
            for _ in range(4):
                decision = await limiter.check_limit(limit, key)
                assert decision.source is Source.STANDBY
                ends.add(w.clock.time + round(decision.reset_after * 1e9))
                remaining.append(decision.remaining)
                w.clock.time += 10**9

            assert len(ends) == 1
            assert remaining == [4, 3, 2, 1, 0, 0, 0]
            w.clock.time = max(ends)
            assert (await limiter.check_limit(limit, key)).remaining == 4


async def test_a_forwarding_node_also_asks_the_standby(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        await w.crash("b")
        decisions = [
            await limiter.check("api", owned(w.rules, "client", "b", number))
            for number in range(20)
        ]

        assert {decision.source for decision in decisions} == {Source.STANDBY}
        assert w.count("a", "stood_in") > 0
        assert w.count("c", "stood_in") > 0


async def test_a_silent_owner_delays_the_first_check_and_no_later_one(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        await w.crash("b")

        taken = []
        for _ in range(12):
            started = trio.current_time()
            assert (await limiter.check("api", client, 0)).source is Source.STANDBY
            taken.append(trio.current_time() - started)

        assert max(taken) < 1.1  # the time-outs of the owner and of a handshake
        assert max(taken[-5:]) < 0.01


async def test_a_returned_owner_decides_again(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await w.crash("b")
        assert (await limiter.check("api", client)).source is Source.STANDBY

        await w.start("b")
        await trio.sleep(10)

        assert (await limiter.check("api", client)).source is Source.OWNER


async def test_a_forwarding_node_finds_a_returned_owner(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await w.crash("b")
        assert (await limiter.check("api", client)).source is Source.STANDBY

        await w.start("b")
        await trio.sleep(10)

        assert (await limiter.check("api", client)).source is Source.OWNER


async def test_without_reachable_nodes_each_rules_failure_policy_applies(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        for name in NAMES:
            await w.crash(name)

        allowed = [await limiter.check("api", {"client": "x"}) for _ in range(7)]
        denied = [await limiter.check("api", {"strict": "x"}) for _ in range(7)]
        alone = [await limiter.check("api", {"alone": "x"}) for _ in range(4)]

        assert of(allowed) == [True] * 7
        assert of(denied) == [False] * 7
        assert of(alone) == [True, True, False, False]
        assert {d.source for d in allowed + denied} == {Source.POLICY}
        assert {d.source for d in alone} == {Source.LOCAL}


async def test_a_node_cut_off_from_all_others_applies_the_rules(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        rules = w.rules
        await w.crash("b")
        await w.crash("c")

        # Keys of the crashed nodes that this node cannot decide as their standby.
        sources = {
            (await limiter.check("api", owned(rules, key, owner, number))).source
            for key in ("client", "strict", "alone")
            for owner in ("b", "c")
            for number in range(5)
        }

        assert sources == {Source.STANDBY, Source.POLICY, Source.LOCAL}
        assert w.count("a", "undecided") > 0


async def test_a_silent_peer_does_not_delay_a_check(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True, answer_timeout=0.3) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        for name in ("b", "c"):
            w.network.cut(address_of("a"), address_of(name))

        started = trio.current_time()
        await limiter.check("api", client)

        # Twice the shortest time-out for each of the two nodes; the asked node is alive.
        assert trio.current_time() - started < 0.85


async def test_a_silent_owner_does_not_delay_checks_of_other_owners(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        theirs, ours = owned(w.rules, "client", "b"), owned(w.rules, "client", "c")
        await race([limiter], theirs)
        w.network.cut(address_of("a"), address_of("b"))
        took: dict[str, float] = {}

        async def ask(what: str, descriptor: Mapping[str, str], after: float) -> None:
            await trio.sleep(after)
            started = trio.current_time()
            await limiter.check("api", descriptor)
            took[what] = trio.current_time() - started

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "theirs", theirs, 0.0)
            nursery.start_soon(ask, "ours", ours, 0.01)

        assert took["ours"] < 0.05
        assert took["theirs"] > 0.2


@pytest.mark.internal_errors
async def test_an_internal_error_in_a_forwarded_request_ends_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        theirs = owned(w.rules, "client", "b")
        decide = w.nodes["a"].handler.router.decide

        async def broken(*args: object, **more: object) -> Results:
            w.nodes["a"].handler.router.decide = decide  # type: ignore[method-assign]
            raise ArithmeticError("the router is broken")

        w.nodes["a"].handler.router.decide = broken  # type: ignore[method-assign, assignment]
        await limiter.check("api", theirs)

        assert (await limiter.check("api", theirs)).source is Source.OWNER
        assert w.count("a", "refused_internal") == 1
        assert "the router is broken" in caplog.text
        assert w.count("a", "internal_errors_forwarding") == 1
        assert [str(bug) for bug in w.bugs] == ["the router is broken"]
        w.bugs.clear()


# Leaving


async def test_a_draining_node_redirects_all_clients_and_loses_no_answer(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        sources: list[Source] = []

        async def ask(number: int) -> None:
            await trio.sleep(number / 1000)
            started = trio.current_time()
            decision = await limiter.check("api", {"tenant": str(number)})
            sources.append(decision.source)
            assert trio.current_time() - started < 0.1

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(ask, number)
            await trio.sleep(0.15)
            started = trio.current_time()
            await w.stop("b")
            took = trio.current_time() - started

        assert len(sources) == 300
        assert set(sources) == {Source.OWNER}
        assert took < 2.0


async def test_a_draining_node_answers_its_forwarded_requests(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True, answer_timeout=2.0) as limiter:
        w.network.set_delay(address_of("a"), address_of("b"), 0.1)
        decisions: list[Decision] = []

        async def ask() -> None:
            decisions.append(await limiter.check("api", owned(w.rules, "client", "b")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.01)
            await w.stop("a")

        assert decisions[0].source in (Source.OWNER, Source.STANDBY)


async def test_draining_is_bounded_even_when_a_client_stays(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        await limiter.check("api", {"client": "x"})
        w.network.cut(("client1", 1), address_of("b"))

        with trio.fail_after(10.1):  # to transfer shards, and then to answer requests in flight
            await w.stop("b")


async def test_a_draining_node_accepts_no_new_clients(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        w.network.cut(("client1", 1), address_of("b"))  # It keeps the node draining.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.nodes["b"].leave)
            await trio.sleep(3)
            async with w.client("b", "a") as newcomer:
                decision = await newcomer.check("api", owned(w.rules, "client", "b"))

            assert decision.source is Source.OWNER
            assert w.count("b", "refused_draining") > 0
        assert limiter.rules.domains


# Rules


async def test_new_rules_reach_clients_with_their_next_checks(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        for _ in range(2):
            await limiter.check("api", {"client": "x"})
        tighter = load_text(RULES.replace("requests_per_unit: 5", "requests_per_unit: 3")).rules
        added = load_text(
            RULES + "  - key: new\n    rate_limit: {unit: day, requests_per_unit: 1}\n"
        )

        for node in w.nodes.values():
            node.change_rules(RuleSet(tighter.contents, version=1))
        third, fourth = [await limiter.check("api", {"client": "x"}) for _ in range(2)]
        for node in w.nodes.values():
            node.change_rules(RuleSet(added.rules.contents, version=2))
        await limiter.check("api", {"client": "y"})
        await trio.sleep(1)
        new = [await limiter.check("api", {"new": "x"}) for _ in range(2)]

        assert of([third, fourth]) == [True, False]  # Spent units stay spent.
        assert of(new) == [True, False]
        assert limiter.rules.version == 2


async def test_restored_rules_with_an_older_date_reach_clients(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        tighter = load_text(RULES.replace("requests_per_unit: 5", "requests_per_unit: 1")).rules
        for node in w.nodes.values():
            node.change_rules(RuleSet(tighter.contents, version=50))
        await limiter.check("api", {"client": "y"})
        await trio.sleep(1)
        seen = limiter.rules

        for node in w.nodes.values():
            node.change_rules(RuleSet(w.rules.contents, version=7))
        await limiter.check("api", {"client": "y"})
        await trio.sleep(1)

        assert seen == tighter
        assert limiter.rules == w.rules


async def test_a_forwarding_node_applies_the_new_rules(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        for node in w.nodes.values():
            node.change_rules(RuleSet((), version=1))

        decision = await limiter.check("api", owned(w.rules, "client", "b"))

        assert decision.allowed
        assert w.count("b", "unknown_rule") > 0


async def test_a_rule_that_the_owner_does_not_have_yet_is_enforced(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        w.nodes["a"].change_rules(RuleSet(w.rules.contents, version=1))
        for name in ("b", "c"):
            w.nodes[name].change_rules(RuleSet())
        async with w.client("a") as limiter:
            client = owned(w.rules, "client", "b")

            decisions = [await limiter.check("api", client) for _ in range(6)]

            assert of(decisions) == [True] * 5 + [False]


# Different member lists


# Exactness, through the wire


@pytest.mark.parametrize("vector", [*VECTORS, *CHARGE_VECTORS], ids=lambda vector: vector.name)
async def test_a_cluster_answers_every_worked_example_through_its_client(
    autojump_clock: MockClock, vector: Vector
) -> None:
    async with world("a", "b", at=0) as w, w.client("a", only=True) as limiter:
        key = key_owned_by("b", vector.limit)

        for number, step in enumerate(vector.steps):
            w.clock.time = step.at_ns
            ask = limiter.charge_limit if step.is_charge else limiter.check_limit
            decision = await ask(vector.limit, key, cost=step.cost)

            reported = {
                "admitted": decision.allowed,
                "permanent": decision.is_permanent,
                "over_soft": decision.over_soft,
                "remaining": decision.remaining,
                "retry_after": decision.retry_after or 0.0,
                "reset_after": decision.reset_after,
                "delay": decision.delay,
            }
            expected = {
                "admitted": step.is_admitted,
                "permanent": step.is_permanent,
                "over_soft": step.is_over_soft,
                "remaining": step.remaining,
                "retry_after": in_seconds(step.retry_after_ns),
                "reset_after": in_seconds(step.reset_after_ns),
                "delay": in_seconds(step.delay_ns),
            }
            said = {name: value for name, value in expected.items() if value is not None}
            if vector.limit.algorithm is Algorithm.CONCURRENCY and "retry_after" in said:
                # The likely time of a free slot is never later than the guaranteed time.
                assert reported["retry_after"] <= said.pop("retry_after")
            assert {name: reported[name] for name in said} == said, f"step {number}"
        assert w.count("b", "checks") + w.count("b", "charges") == len(vector.steps)


def key_owned_by(owner: str, limit: Limit, names: Sequence[str] = ("a", "b")) -> str:
    rule = adhoc_rule(limit)
    ring = ring_of(names)
    keys = (str(i) for i in range(1000))
    return next(key for key in keys if ring.owner(shard_of(encode_key(rule.id, (key,)))) == owner)


def in_seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e9
