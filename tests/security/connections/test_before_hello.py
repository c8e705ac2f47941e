"""P4, P17: before its hello, a caller costs a node one small message and little time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ringfence.wire import MAX_HELLO, ErrorCode, Hello, Pong, Role, Welcome
from ringfence.wire import Ping as PingMessage
from tests.node.end_to_end.test_serve import NodeProcess, nodes
from tests.security.connections.callers import callers, cpu_seconds

MAPS = b"\x94\x09\x01\x01\xdc\x00\x1f" + (b"\xdc\x80\x00" + b"\x80" * 0x8000) * 31
"""`Rules` of a million empty maps, almost as large as a frame may be."""
ARRAYS = b"\xdc\x00\x1f" + (b"\xdc\x80\x00" + b"\x90" * 0x8000) * 31
"""A million empty arrays."""
CLIENT = Hello(Role.CLIENT, "", b"", 7)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Start one node for all tests; no test ends it."""
    with nodes(tmp_path_factory.mktemp("node"), "a") as running:
        yield running["a"]


async def test_a_large_first_frame_is_rejected_by_its_length_without_decoding(
    node: NodeProcess,
) -> None:
    async with callers() as endpoint:
        before = cpu_seconds(node.process.pid)
        for _ in range(6):
            caller = await endpoint.open(node.port, MAPS)
            code, reason = await caller.wait_closed()

            assert code == ErrorCode.BAD_MESSAGE
            assert reason == f"a frame must have at most {MAX_HELLO} bytes, got {len(MAPS)}"

        # Before the fix, each frame took up to 1.1 s.
        assert cpu_seconds(node.process.pid) - before < 0.6


async def test_a_member_stays_alive_while_anonymous_callers_send_large_frames(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, "a", "b") as running:
        node = running["a"]
        async with callers() as endpoint:
            anonymous_callers = [await endpoint.open(node.port) for _ in range(16)]
            for anonymous in anonymous_callers:
                anonymous.send(MAPS)
            for anonymous in anonymous_callers:
                await anonymous.wait_closed()
            caller = await endpoint.open(node.port, CLIENT, PingMessage(1))

            assert isinstance(await caller.wait_message(), Welcome)
            assert await caller.wait_message() == Pong(1)
        assert "is dead" not in running["b"].log


@pytest.mark.parametrize("frame", [MAPS, ARRAYS], ids=["maps", "arrays"])
async def test_a_long_frame_of_containers_ends_the_connection_of_a_client_without_decoding(
    node: NodeProcess, frame: bytes
) -> None:
    async with callers() as endpoint:
        before = cpu_seconds(node.process.pid)
        for _ in range(8):
            caller = await endpoint.open(node.port, CLIENT, frame)

            assert isinstance(await caller.wait_message(), Welcome)
            assert (await caller.wait_closed())[0] == ErrorCode.BAD_MESSAGE
        # Before the fix, a frame took 0.12 s (arrays) or 1.1 s (maps). Now it takes 0.02 s.
        assert cpu_seconds(node.process.pid) - before < 0.6


@pytest.mark.parametrize("size", [MAX_HELLO + 1])
async def test_frames_longer_than_a_hello_may_directly_follow_it(
    node: NodeProcess, size: int
) -> None:
    async with callers() as endpoint:
        caller = await endpoint.open(node.port, CLIENT, PingMessage(1), bytes(size))
        with trio.fail_after(20):
            assert isinstance(await caller.wait_message(), Welcome)
            assert await caller.wait_message() == Pong(1)
            assert (await caller.wait_closed())[0] == ErrorCode.BAD_MESSAGE
