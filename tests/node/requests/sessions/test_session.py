"""Session of one connection to a node: hello, invalid bytes and bounds."""

import pytest
import trio
from msgspec.structs import replace

from ringfence.limiter import PackedSnapshot, Snapshot
from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import (
    AskMembers,
    AskRules,
    AskStats,
    Copy,
    Done,
    ErrorCode,
    Hello,
    Ping,
    Pong,
    Role,
    Rules,
    Welcome,
    encode,
)
from tests.node.requests.sessions.session_world import (
    APP,
    OPERATOR,
    SECRET,
    check,
    reason_of,
    remaining,
    running_node,
)

# Hello


async def test_a_valid_hello_is_answered_with_a_welcome(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call()

        [welcome] = await caller.send(APP)

        assert isinstance(welcome, Welcome)
        assert welcome.name == "a"


async def test_nothing_is_served_before_the_hello(autojump_clock: object) -> None:
    async with running_node() as world:
        for message in (check(1), AskMembers(1), AskRules(1), AskStats(1), Ping(1)):
            caller = await world.call()

            received = await caller.send(message, check(2))

            assert "say hello first" in reason_of(received, ErrorCode.HELLO_EXPECTED)
            assert caller.closed[0][0] == ErrorCode.HELLO_EXPECTED
        assert world.count("refused_hello_expected") == 5
        assert world.count("checks") == 0


async def test_a_second_hello_ends_the_connection(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        received = await caller.send(OPERATOR)

        assert "second hello" in reason_of(received, ErrorCode.HELLO_EXPECTED)
        assert caller.closed


@pytest.mark.parametrize(
    "hello",
    [
        Hello(Role.CLIENT, "app", b"x" * 32, 1),
        Hello(Role.CLIENT, "stranger", SECRET, 1),
        Hello(Role.NODE, "b", b"x" * 32, 1),
        Hello(Role.NODE, "app", SECRET, 1),
    ],
    ids=["wrong secret", "unknown name", "wrong cluster key", "token of a client"],
)
async def test_an_invalid_credential_is_rejected_counted_and_disconnected(
    autojump_clock: object, hello: Hello
) -> None:
    async with running_node() as world:
        caller = await world.call()

        received = await caller.send(hello)

        assert hello.name in reason_of(received, ErrorCode.BAD_CREDENTIAL)
        assert caller.closed[0][0] == ErrorCode.BAD_CREDENTIAL
        assert world.count("refused_bad_credential") == 1
        assert world.count("connections") == 0


async def test_a_peer_of_another_version_receives_the_reason(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call()
        greeting = bytearray(encode(APP))
        greeting[2] += 1  # The version is the hello's first field.

        received = await caller.send(bytes(greeting))

        assert "version" in reason_of(received, ErrorCode.WRONG_VERSION)
        assert world.count("refused_wrong_version") == 1


async def test_a_connection_without_a_hello_in_time_is_closed(autojump_clock: object) -> None:
    async with running_node() as world:
        silent, good = await world.call(), await world.call(APP)

        await trio.sleep(6)

        assert "no hello" in reason_of(silent.received, ErrorCode.HELLO_TIMEOUT)
        assert silent.closed
        assert not good.closed
        assert world.count("refused_hello_timeout") == 1
        assert world.count("connections") == 1


async def test_a_new_connection_of_a_member_ends_its_earlier_one(autojump_clock: object) -> None:
    replica = Copy(1, PackedSnapshot.of(Snapshot([], [], [], [], [])))
    async with running_node() as world:
        hello = Hello(Role.NODE, "b", b"", 1)
        earlier, other = await world.call(hello), await world.call(replace(hello, session=2))

        later = await world.call(hello)

        assert earlier.closed == [(ErrorCode.OK, "this process has connected again")]
        assert await earlier.send(replica) == []
        assert await later.send(replica) == await other.send(replica) == [Done(1)]
        assert world.count("copies_received") == 2
        assert world.count("connections") == 2


# Garbage


@pytest.mark.parametrize("greeted", [True, False])
@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (b"\xc1", "garbled"),
        (b"\x00\x01\x02", "garbled"),
        (b"\x91\x7f", "unknown_type"),
        (b"\x92\x04\x01", "bad_shape"),
        (encode(Ping(1))[:-1] + b"\xa0", "bad_field"),
    ],
)
async def test_invalid_bytes_close_their_connection_and_are_counted_by_cause(
    autojump_clock: object, payload: bytes, cause: str, greeted: bool
) -> None:
    async with running_node() as world:
        good = await world.call(APP)
        caller = await world.call(*([APP] if greeted else []))

        assert await caller.send(payload, check(1)) == []

        assert caller.closed[0][0] == ErrorCode.BAD_MESSAGE
        assert world.count(f"refused_bad_message_{cause}") == 1
        assert remaining(await good.send(check(2))) == [4]


async def test_an_unexpected_message_closes_its_connection(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        received = await caller.send(Pong(1))

        assert "Pong must answer a request" in reason_of(received, ErrorCode.BAD_MESSAGE)
        assert world.count("refused_bad_message") == 1


# Bounds


async def test_only_a_client_that_does_not_read_its_answers_is_disconnected(
    autojump_clock: object,
) -> None:
    async with running_node(rules=large_rules()) as world:
        good, greedy, slow = [await world.call(APP) for _ in range(3)]

        await greedy.send(*[AskRules(seq) for seq in range(1, 11)])
        await slow.send(*[AskRules(seq) for seq in range(1, 5)])

        assert slow.closed == []  # Four answers of 0.9 MB are below 4 MiB.
        assert greedy.closed[0][0] == ErrorCode.OVERLOADED
        assert world.count("refused_slow_reader") == 1
        assert world.count("connections") == 2
        assert [type(message) for message in await good.send(AskRules(1))] == [Rules]


def large_rules() -> RuleSet:
    """Return rules that barely fit into one message."""
    rows = "".join(
        f"  - key: client\n    value: {'v' * 60_000}{number}\n"
        "    rate_limit: {unit: minute, requests_per_unit: 5}\n"
        for number in range(15)
    )
    return load_text(f"domain: api\ndescriptors:\n{rows}").rules
