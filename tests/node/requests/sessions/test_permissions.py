"""Requests that each role and scope may send."""

from ringfence.limiter import PackedSnapshot, Snapshot
from ringfence.rules import RuleSet
from ringfence.wire import (
    AskMembers,
    AskRules,
    AskStats,
    Copy,
    Done,
    ErrorCode,
    Hello,
    Members,
    Op,
    Ping,
    Pong,
    Role,
    Rules,
    Stats,
)
from tests.node.requests.sessions.session_world import (
    APP,
    LIMIT,
    OPERATOR,
    check,
    key_of,
    reason_of,
    remaining,
    running_node,
)


async def test_every_token_may_ping_and_read_members_and_rules(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        pong, members, rules = await caller.send(Ping(1), AskMembers(2), AskRules(3))

        assert pong == Pong(1)
        assert isinstance(members, Members)
        assert [(row.name, row.host, row.port) for row in members.members] == [
            ("a", "a", 1),
            ("b", "b", 1),
        ]
        assert isinstance(rules, Rules)
        assert RuleSet.from_plain(rules.plain) == RuleSet()


async def test_each_scope_allows_only_its_own_requests(autojump_clock: object) -> None:
    async with running_node() as world:
        app, operator = await world.call(APP), await world.call(OPERATOR)
        await app.send(check(1, cost=3))

        reset = await app.send(check(2, op=Op.RESET, cost=0))
        stats = await app.send(AskStats(3))

        refusal = reason_of(reset, ErrorCode.NOT_PERMITTED)
        assert "scope 'reset'" in refusal
        assert refusal.endswith("`ringfence keys add-token DIR NAME:check,reset`")
        assert "scope 'observe'" in reason_of(stats, ErrorCode.NOT_PERMITTED)
        assert not app.closed
        assert world.count("refused_not_permitted") == 2
        [counters] = await operator.send(AskStats(4))
        assert isinstance(counters, Stats)
        assert counters.counters["checks"] == 1
        assert remaining(await operator.send(check(5, op=Op.RESET, cost=0))) == [5]


async def test_a_refund_needs_the_same_permission_as_a_check(autojump_clock: object) -> None:
    async with running_node() as world:
        app = await world.call(APP)

        spent = await app.send(check(1, cost=3))
        refunded = await app.send(check(2, cost=2, op=Op.REFUND))

        assert remaining(spent + refunded) == [2, 4]


async def test_only_a_node_forwards(autojump_clock: object) -> None:
    async with running_node() as world:
        client = await world.call(APP)
        peer = await world.call(Hello(Role.NODE, "b", b"", 1))

        received = await client.send(check(1, hops=1))

        assert "only a node forwards" in reason_of(received, ErrorCode.NOT_PERMITTED)
        assert client.closed
        assert remaining(await peer.send(check(1, hops=1))) == [4]


async def test_a_member_may_send_the_counts_of_other_data_centers(autojump_clock: object) -> None:
    """The counts are maps by data center, which no message of a client contains."""
    counts = Snapshot([b"8 bytes."], [[1, 2]], [LIMIT], [0], [{"dc2": [7, 1]}])
    copy = Copy(1, PackedSnapshot.of(counts))
    async with running_node() as world:
        member = await world.call(Hello(Role.NODE, "b", b"", 1))
        client = await world.call(APP)

        assert await member.send(copy) == [Done(1)]
        await client.send(copy)

    assert member.closed == []
    assert [code for code, _ in client.closed] == [ErrorCode.BAD_MESSAGE]


async def test_a_check_forwarded_twice_is_not_forwarded_again(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        peer = await world.call(Hello(Role.NODE, "b", b"", 1))

        received = await peer.send(check(1, key_of("b"), hops=2))

        assert "will not forward" in reason_of(received, ErrorCode.NOT_HERE)
        assert world.count("refused_not_owner") == 1
        assert world.count("forwarded") == 0


async def test_a_client_may_send_checks_to_the_standby_instead_of_the_owner(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        assert remaining(await caller.send(check(1, key_of("b"), as_standby=True))) == [4]
        assert world.count("decided_as_standby") == 1
