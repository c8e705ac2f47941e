"""The proof of a node is valid on one connection only, so that an attacker cannot relay it."""

from pathlib import Path

from node.config.access import KeyDir, load_access
from node.config.key_files import write_keys
from ringfence.wire import ErrorCode, Hello, Pong, Role, Welcome
from ringfence.wire import Ping as PingMessage
from tests.node.end_to_end.test_serve import started
from tests.security.connections.callers import callers


async def test_a_proof_for_one_connection_is_rejected_on_another_connection(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 30)
    access = load_access(KeyDir(tmp_path / "keys"), "ringfence")
    with started(tmp_path, {"a": ["--keys", str(tmp_path / "keys"), "--name", "a"]}) as running:
        port = running["a"].port
        async with callers(tmp_path / "keys") as endpoint:
            first, second = await endpoint.open(port), await endpoint.open(port)
            assert first.connection is not None
            assert second.connection is not None
            assert len(first.connection.binding) >= 32
            assert first.connection.binding != second.connection.binding
            hello = Hello(Role.NODE, "b", access.proof_of("b", first.connection.binding), 1)

            second.send(hello)
            assert (await second.wait_closed())[0] == ErrorCode.BAD_CREDENTIAL
            first.send(hello, PingMessage(1))
            assert isinstance(await first.wait_message(), Welcome)
            assert await first.wait_message() == Pong(1)
