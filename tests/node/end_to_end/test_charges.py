"""Charges in a cluster: each counts exactly once, on any node and after any delay."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from node.requests.deduplication import DecidedChecks
from node.shards.fallback_log import FallbackLog
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError, PeerUnavailable
from ringfence.limiter import Algorithm, Code, Limit
from ringfence.limiter.serialization import MAX_UNITS
from ringfence.peering.link import LinkSettings
from ringfence.wire import Answer, DecidedCheck, Op, Source
from tests.node.cluster import NAMES, HandClock, address_of, of, owned, world
from tests.node.cross_dc.test_counts import two_datacenters
from tests.node.end_to_end.test_leases import HOT, heat
from tests.node.requests.sessions.session_world import APP, check, running_node, with_columns

SLOTS = """
domain: api
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: streams
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency}
"""


LOG = """
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window_log}
"""


async def used(limiter: Limiter, descriptors: dict[str, str]) -> int:
    """Return the units in use, at most 40: refund single units until one unit is free."""
    for refunds in range(40):
        left = (await limiter.peek("api", descriptors)).remaining
        if left:
            return 5 - left + refunds
        await limiter.refund("api", descriptors, 1)
    raise AssertionError("more than 40 units in use")


async def test_a_charge_through_any_node_counts_beyond_the_limit_at_the_owner(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        client = owned(w.rules, "client", "b")
        decisions: list[Decision] = []
        for seed in NAMES:
            async with w.client(seed, only=True) as limiter:
                decisions.append(await limiter.charge("api", client, 3))
        async with w.client() as limiter:
            peek = await limiter.peek("api", client)

            assert of(decisions) == [True, False, False]
            assert [each.remaining for each in decisions] == [2, 0, 0]
            assert {each.source for each in decisions} == {Source.OWNER}
            assert decisions[-1].retry_after == peek.retry_after == 30.0
            assert not peek.allowed
            assert [w.count(name, "forwarded") for name in NAMES] == [1, 0, 1]
            assert (w.count("b", "charges"), w.count("b", "overdrawn")) == (3, 2)
            assert await used(limiter, client) == 9


async def test_a_refund_from_a_log_may_take_longer_to_the_owner_than_its_check(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=LOG) as w, w.client() as limiter:
        user = owned(w.rules, "user", "b")

        async def wait() -> None:
            await trio.sleep(1)
            w.clock.time += 1_010_000_000

        async with limiter.reserve("api", user, 5) as reservation:
            await wait()
            reservation.cost = 2
        assert (await limiter.peek("api", user)).remaining == 10 - 2

        await limiter.check("api", user, 4)
        await wait()
        assert (await limiter.refund("api", user, 4, age=1)).refunded == 4
        decision = await limiter.check("api", user, 4)
        await wait()
        assert (await limiter.refund("api", user, 4, age=1, decision=decision)).refunded == 4


async def test_a_charge_reaches_the_owner_despite_a_cached_denial(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        client = owned(w.rules, "client", "b")
        for _ in range(6):
            await limiter.check("api", client)
        assert (await limiter.check("api", client)).source is Source.CACHE

        decision = await limiter.charge("api", client, 4)

        assert (decision.source, decision.allowed) == (Source.OWNER, False)
        assert await used(limiter, client) == 9


async def test_each_of_several_limits_counts_independently(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        both = [owned(w.rules, "client", "b"), owned(w.rules, "tenant", "c")]

        first = await limiter.charge("api", both, 30)
        second = await limiter.charge("api", both, 30)

        assert of([first, second]) == [False, False]
        assert [status.remaining for status in second.statuses] == [0, 40]
        assert second.rule == first.statuses[0].rule


async def test_debt_is_replicated_and_counts_once_after_the_owner_returns(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.charge("api", client, 8)
        await trio.sleep(0.3)  # until the replicas arrive

        await w.crash("b")
        at_standby = await limiter.charge("api", client, 3)
        assert (at_standby.source, at_standby.allowed) == (Source.STANDBY, False)
        await w.start("b")
        await trio.sleep(10)

        assert (await limiter.peek("api", client)).source is Source.OWNER
        assert await used(limiter, client) == 11


async def test_an_owner_receives_the_charges_of_its_standby_after_a_network_cut(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.charge("api", client, 2)
        await trio.sleep(0.3)
        w.network.pause(address_of("b"))

        decision = await limiter.charge("api", client, 9)
        assert decision.source is Source.STANDBY
        w.network.resume(address_of("b"))
        await trio.sleep(10)

        assert (await limiter.peek("api", client)).source is Source.OWNER
        assert await used(limiter, client) == 11


async def test_a_repeated_charge_counts_once(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        caller = await node.call(APP)
        charge = check(1, cost=9, op=Op.CHARGE)
        again = with_columns(replace(charge, seq=2), ids=[(APP.session, 1, 0)])

        answers = [(await caller.send(each))[-1] for each in (charge, charge, again)]
        peek = (await caller.send(with_columns(replace(charge, seq=3), costs=[0])))[-1]

        codes = [each.results.outcomes.codes for each in answers if isinstance(each, Answer)]
        assert codes == [[Code.OVERDRAWN]] * 3
        assert isinstance(peek, Answer)
        assert node.count("charges") == 2
        assert node.node.queries.stats(1).counters["repeated_checks"] == 1


def test_a_charge_counted_by_two_nodes_counts_once_after_the_split() -> None:
    decided = DecidedChecks(lambda session, seq: ((), 0))
    row = (Code.OVERDRAWN.value, 5, 0, 10**9, 10**9, 0, 0, Source.STANDBY.value)
    decided.remember((1, 7, 0), b"key of x", 9, row, 100)

    ours_first, theirs_first, refunds = decided.merge(
        [DecidedCheck((1, 7, 0), b"key of x", 9, 20, row)], 150
    )

    assert [check.cost for check in ours_first] == [9]
    assert theirs_first == refunds == []


def test_the_units_of_a_fallback_log_saturate() -> None:
    tally = FallbackLog()
    for _ in range(200):
        tally.add(b"key of x", 2**53, 10**9, 5)

    assert tally.row(b"key of x", 5)[1] == MAX_UNITS


async def test_a_charge_into_debt_recalls_the_leases_of_its_key(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as borrower, w.client() as other:
        window = owned(w.rules, "window", "a")
        await heat(borrower, window)
        assert (await borrower.check("api", window)).source is Source.LEASE

        decision = await other.charge("api", window, 50_000)
        await trio.sleep(0.02)
        after = await borrower.check("api", window)

        assert not decision.allowed
        assert (after.source, after.allowed) == (Source.OWNER, False)


async def test_a_charge_spends_no_units_of_a_lease(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        await heat(limiter, window, times=50)

        decision = await limiter.charge("api", window, 1000)
        await trio.sleep(3)

        assert decision.source is Source.OWNER
        assert (await other.peek("api", window)).remaining == 10000 - 50 - 1000


async def test_concurrency_limits_cannot_be_charged(autojump_clock: MockClock) -> None:
    async with world(rules=SLOTS) as w, w.client() as limiter:
        with pytest.raises(ConfigError, match="limits other than concurrency, got"):
            await limiter.charge("api", [{"tenant": "x"}, {"streams": "x"}], 5)
        with pytest.raises(ConfigError, match="use hold or release for slots"):
            await limiter.charge_limit(Limit(2, 1, Algorithm.CONCURRENCY), "x")

        assert (await limiter.peek("api", {"tenant": "x"})).remaining == 100
        assert w.total("charges") == 0


async def test_a_charge_without_a_reachable_node_follows_the_failure_policy(
    autojump_clock: MockClock,
) -> None:
    async with (
        world() as w,
        w.client("a") as limiter,
        w.client("a", raise_on_outage=True) as strict,
    ):
        for name in NAMES:
            await w.crash(name)

        allowed = await limiter.charge("api", {"client": "x"}, 9)
        denied = await limiter.charge("api", {"strict": "x"}, 9)
        alone = [await limiter.charge("api", {"alone": "x"}, 2) for _ in range(2)]

        assert (allowed.source, allowed.allowed) == (Source.POLICY, True)
        assert (denied.source, denied.allowed) == (Source.POLICY, False)
        assert {each.source for each in alone} == {Source.LOCAL}
        assert of(alone) == [True, False]
        with pytest.raises(PeerUnavailable, match=r"decided 1 check in time \(asked \w:7101"):
            await strict.charge("api", {"client": "x"}, 9)
        with pytest.raises(PeerUnavailable) as caught:
            await strict.check("api", {"client": "x"})
        assert caught.value.addresses
        assert {*caught.value.addresses} <= {(name, 7101) for name in NAMES}


async def test_a_charge_counts_after_any_delay(autojump_clock: MockClock) -> None:
    links = LinkSettings(deadline=0.25, answer_timeout_margin=10.0, answer_timeout=10.0)
    async with world("a") as w, w.client(link=links) as limiter:
        client = {"client": "x"}
        await limiter.check("api", client, 2)
        w.network.pause(address_of("a"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.charge, "api", client, 7)
            await trio.sleep(0.9)
            w.network.resume(address_of("a"))

        assert w.count("a", "shed") == 0
        assert await used(limiter, client) == 9


@pytest.mark.parametrize("key", ["fixed", "sliding", "token"])
async def test_debt_of_one_data_center_reaches_the_others(
    autojump_clock: MockClock, key: str
) -> None:
    async with two_datacenters() as (_, here, there):
        await here.charge("api", {key: "x"}, 2_000)
        await trio.sleep(1)

        denied = await there.peek("api", {key: "x"})

        assert not denied.allowed
        assert denied.remaining == 0
        assert denied.retry_after


async def test_a_token_can_refund_only_its_own_charges(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        caller = await node.call(APP)
        charge = check(1, cost=9, op=Op.CHARGE)

        await caller.send(charge)
        refund = with_columns(replace(charge, seq=2), op=Op.REFUND, costs=[20])
        answer = (await caller.send(refund))[-1]

        assert isinstance(answer, Answer)
        assert answer.results.outcomes.remaining == [5]
        assert node.count("refused_refunds") == 11


class TickingClock(HandClock):
    """Clock that advances by a microsecond with each reading."""

    def now(self) -> int:
        self.time += 1000
        return self.time


@pytest.mark.parametrize(("costs", "refund", "left"), [([3], 3, 9), ([1, 1, 1], 3, 9), ([4], 1, 6)])
async def test_a_token_refunds_its_latest_charges_from_a_log(
    autojump_clock: MockClock, costs: list[int], refund: int, left: int
) -> None:
    log = Limit.of_ns(9, 60 * 10**9, Algorithm.SLIDING_WINDOW_LOG)
    async with running_node(clock=TickingClock()) as node:
        caller = await node.call(APP)
        for seq, cost in enumerate(costs, 1):
            request = with_columns(check(seq, cost=cost), limits=[log], which=[1])
            await caller.send(request)
        request = with_columns(replace(request, seq=9), op=Op.REFUND, costs=[refund])

        answer = (await caller.send(request))[-1]

        assert isinstance(answer, Answer)
        assert answer.results.outcomes.remaining == [left]
