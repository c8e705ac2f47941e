"""The proof of a node holds on one connection only, so that nobody can relay it."""

from pathlib import Path

from node.config.access import KeyDir, load_access
from node.config.key_files import write_keys
from ringfence.wire import ErrorCode, Hello, Pong, Role, Welcome
from ringfence.wire import Ping as PingMessage
from tests.node.end_to_end.test_serve import started
from tests.security.connections.callers import callers


async def test_a_proof_shown_on_one_connection_is_refused_on_another(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 30)
    access = load_access(KeyDir(tmp_path / "keys"), "ringfence")
    with started(tmp_path, {"a": ["--keys", str(tmp_path / "keys"), "--name", "a"]}) as running:
        port = running["a"].port
        async with callers(tmp_path / "keys") as here:
            one, two = await here.open(port), await here.open(port)
            assert one.connection is not None
            assert two.connection is not None
            assert len(one.connection.binding) >= 32
            assert one.connection.binding != two.connection.binding
            hello = Hello(Role.NODE, "b", access.proof_of("b", one.connection.binding), 1)

            two.send(hello)
            assert (await two.wait_closed())[0] == ErrorCode.BAD_CREDENTIAL
            one.send(hello, PingMessage(1))
            assert isinstance(await one.wait_message(), Welcome)
            assert await one.wait_message() == Pong(1)
