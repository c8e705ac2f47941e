"""P10: a token with the scope `check` cannot reset or lock keys of other clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Limit
from ringfence.rules import Descriptor
from ringfence.rules.loading.yaml_files import load_text
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import (
    Answer,
    ErrorCode,
    Hello,
    LeaseGrant,
    LeaseRequest,
    Message,
    Op,
    Refused,
    Request,
    Role,
    token_digest,
)
from tests.node.requests.sessions.session_world import (
    Caller,
    HandClock,
    World,
    check,
    reason_of,
    with_columns,
)

MINUTE_NS = 60 * NS_PER_SECOND
SECRET = b"s" * 32
CHECK_ONLY = frozenset({Scope.CHECK})
ACCESS = Access(
    (b"k" * 32,),
    "ringfence",
    {
        name: TokenEntry(token_digest(SECRET), scopes)
        for name, scopes in {
            "app": CHECK_ONLY,
            "other": CHECK_ONLY,
            "meter": frozenset({Scope.CHECK, Scope.REFUND}),
        }.items()
    }
    | {"tenant": TokenEntry(token_digest(SECRET), CHECK_ONLY, frozenset({"shop"}))},
)
RULES = load_text(
    "domain: api\n"
    "descriptors:\n"
    "  - key: user\n"
    "    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window}\n"
    "  - key: places\n"
    "    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: concurrency}\n"
    "  - key: hot\n"
    "    rate_limit: {unit: hour, requests_per_unit: 10000, algorithm: fixed_window}\n"
).rules


@asynccontextmanager
async def node_of_rules() -> AsyncIterator[World]:
    """Run one node that owns all shards and has `RULES`."""
    bugs: list[Exception] = []
    network = MemoryNetwork(Random(1))
    settings = NodeSettings(name="a", listen="a:1", keys="keys")
    node = Node(settings, ACCESS, RULES, clock=HandClock(), random=Random(2))
    transport = network.transport(("a", 1), on_bug=bugs.append, accept=node.accept)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport)
        yield World(network, node, nursery, bugs)
        nursery.cancel_scope.cancel()
    assert bugs == []


SESSIONS = {"app": 1, "other": 2, "meter": 3, "tenant": 4}


async def join(world: World, name: str, session: int = 0) -> Caller:
    """Connect with a token. Each token has another session, like clients in other processes."""
    return await world.call(Hello(Role.CLIENT, name, SECRET, session or SESSIONS[name]))


def key_of(rule: str, value: str) -> bytes:
    [match] = RULES.match("api", [Descriptor(((rule, value),))])
    assert match is not None
    return match.key


USER, PLACES, HOT = key_of("user", "u"), key_of("places", "p"), key_of("hot", "h")


def rule_request(
    seq: int, key: bytes, cost: int = 1, op: Op = Op.CHECK, slot_id: int = 0
) -> Request:
    slot_ids = [slot_id] if slot_id else []
    return with_columns(check(seq, key, cost=cost, op=op), limits=[], which=[], slot_ids=slot_ids)


def remaining_of(messages: list[Message]) -> int:
    [answer] = messages
    assert isinstance(answer, Answer)
    return answer.results.outcomes.remaining[0]


def refunded(messages: list[Message]) -> int:
    """Return the units that a refund gave back."""
    [answer] = messages
    assert isinstance(answer, Answer)
    return answer.results.outcomes.slot_ids[0]


async def test_a_client_cannot_refund_units_that_another_token_has_spent(
    autojump_clock: object,
) -> None:
    async with node_of_rules() as world:
        honest, attacker = await join(world, "app"), await join(world, "other")
        await honest.send(rule_request(1, USER, 5))

        after = await attacker.send(rule_request(1, USER, 5, Op.REFUND))

        assert (remaining_of(after), refunded(after)) == (0, 0)
        assert world.count("refused_refunds") == 5


async def test_a_client_can_refund_units_that_its_own_token_has_spent(
    autojump_clock: object,
) -> None:
    async with node_of_rules() as world:
        first_session, second_session = (
            await join(world, "app"),
            await join(world, "app", session=5),
        )
        await first_session.send(rule_request(1, USER, 4))

        first = await second_session.send(rule_request(1, USER, 1, Op.REFUND))
        rest = await first_session.send(rule_request(2, USER, 9, Op.REFUND))

        assert (remaining_of(first), remaining_of(rest)) == (2, 5)
        assert world.count("refused_refunds") == 6


async def test_units_are_refunded_only_once(autojump_clock: object) -> None:
    async with node_of_rules() as world:
        attacker, honest = await join(world, "other"), await join(world, "app")
        await attacker.send(rule_request(1, USER, 2))
        await attacker.send(rule_request(2, USER, 2, Op.REFUND))
        await honest.send(rule_request(1, USER, 5))

        assert remaining_of(await attacker.send(rule_request(3, USER, 2, Op.REFUND))) == 0


async def test_a_refund_of_a_past_window_does_not_reduce_the_current_window(
    autojump_clock: object,
) -> None:
    async with node_of_rules() as world:
        attacker, honest = await join(world, "other"), await join(world, "app")
        await attacker.send(rule_request(1, USER, 5))
        clock = world.node.clock.host
        assert isinstance(clock, HandClock)
        clock.time += MINUTE_NS
        await honest.send(rule_request(1, USER, 5))

        assert remaining_of(await attacker.send(rule_request(2, USER, 5, Op.REFUND))) == 0


async def test_a_token_with_the_scope_refund_can_refund_units_of_all_tokens(
    autojump_clock: object,
) -> None:
    async with node_of_rules() as world:
        app, meter = await join(world, "app"), await join(world, "meter")
        await app.send(rule_request(1, USER, 5))

        assert remaining_of(await meter.send(rule_request(1, USER, 2, Op.REFUND))) == 2
        assert world.count("refused_refunds") == 0


async def test_a_client_cannot_release_slots_of_another_token(autojump_clock: object) -> None:
    async with node_of_rules() as world:
        holder, attacker = await join(world, "app"), await join(world, "other")
        [acquired] = await holder.send(rule_request(1, PLACES, 2))
        assert isinstance(acquired, Answer)
        slot_id = acquired.results.outcomes.slot_ids[0]
        await attacker.send(rule_request(1, PLACES, 1))

        stolen = await attacker.send(rule_request(2, PLACES, 2, Op.REFUND, slot_id))
        released = await holder.send(rule_request(2, PLACES, 2, Op.REFUND, slot_id))

        assert (remaining_of(stolen), remaining_of(released)) == (0, 2)
        assert (refunded(stolen), refunded(released)) == (0, 2)


@pytest.mark.parametrize("op", [Op.REFUND, Op.RENEW])
async def test_a_token_of_one_domain_can_neither_renew_nor_release_slots_of_other_domains(
    autojump_clock: object, op: Op
) -> None:
    async with node_of_rules() as world:
        holder, tenant = await join(world, "app"), await join(world, "tenant")
        [acquired] = await holder.send(rule_request(1, PLACES, 2))
        assert isinstance(acquired, Answer)
        slot_id = acquired.results.outcomes.slot_ids[0]

        refused = await tenant.send(rule_request(1, PLACES, 2, op, slot_id))
        after = await holder.send(rule_request(2, PLACES, 0))

        assert "must use rules of shop" in reason_of(refused, ErrorCode.NOT_PERMITTED)
        assert remaining_of(after) == 1


async def test_units_spent_from_a_lease_can_be_refunded(autojump_clock: object) -> None:
    async with node_of_rules() as world:
        app = await join(world, "app")
        [grant] = await app.send(LeaseRequest(1, HOT, 64, [], []))
        assert isinstance(grant, LeaseGrant)
        assert grant.units == 64
        await app.send(LeaseRequest(2, HOT, 0, [grant.lease], [40]))

        assert remaining_of(await app.send(rule_request(1, HOT, 64, Op.REFUND))) == 10_000
        assert world.count("refused_refunds") == 24


async def test_a_limit_in_a_request_neither_resets_nor_locks_a_key_of_a_rule(
    autojump_clock: object,
) -> None:
    async with node_of_rules() as world:
        honest, attacker = await join(world, "app"), await join(world, "other")
        await honest.send(rule_request(1, USER, 4))
        huge = Limit.of_ns(2**53 - 1, 3600 * NS_PER_SECOND, Algorithm.TOKEN_BUCKET)

        [answer] = await attacker.send(with_columns(check(1, USER, cost=10**6), limits=[huge]))
        after = await honest.send(rule_request(2, USER, 0))

        assert isinstance(answer, Answer)
        assert (answer.results.outcomes.codes, answer.results.outcomes.limits) == (
            [Code.NEVER],
            [5],
        )
        assert remaining_of(after) == 1
        assert world.count("overruled_limits") == 1


@pytest.mark.parametrize("with_limit", [False, True], ids=["rule", "limit in the request"])
async def test_a_token_of_one_domain_cannot_use_rules_of_other_domains(
    autojump_clock: object, with_limit: bool
) -> None:
    async with node_of_rules() as world:
        tenant = await join(world, "tenant")
        frame = check(1) if with_limit else rule_request(1, USER)

        reason = reason_of(await tenant.send(frame), ErrorCode.NOT_PERMITTED)
        [refused] = await tenant.send(LeaseRequest(2, HOT, 64, [], []))

        assert "must use rules of shop" in reason
        remedy = "use a token without domains" if with_limit else "add the domain to its domains"
        assert remedy in reason
        assert isinstance(refused, Refused)
        assert not tenant.closed
        assert world.count("checks") == 0
