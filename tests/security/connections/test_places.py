"""P16: callers cannot use up the connections that members of the cluster need."""

from pathlib import Path

import pytest

from node.config.key_files import write_keys
from ringfence.wire import ErrorCode, Hello, Refused, Role, Welcome
from tests.node.end_to_end.test_serve import NodeProcess, started, until
from tests.security.connections.callers import Callers, callers, client_hello

MAX_CONNECTIONS = 24


def config(directory: Path, text: str) -> list[str]:
    path = directory / "node.toml"
    path.write_text(f"max_connections = {MAX_CONNECTIONS}\n{text}", "utf-8")
    return ["--config", str(path)]


async def fill(endpoint: Callers, node: NodeProcess, hello: Hello) -> int:
    """Open connections of clients, then silent connections, until the node accepts no more.

    Return how many clients the node has accepted.
    """
    accepted = 0
    for _ in range(MAX_CONNECTIONS):
        caller = await endpoint.open(node.port, hello)
        answer = await caller.wait_message()
        if isinstance(answer, Refused):
            assert answer.code == ErrorCode.OVERLOADED
            assert "connections" in answer.reason
            break
        accepted += isinstance(answer, Welcome)
    for _ in range(2 * MAX_CONNECTIONS):
        await endpoint.open(node.port)
    return accepted


async def test_a_member_joins_a_node_that_accepts_no_more_clients(tmp_path: Path) -> None:
    flags = config(tmp_path, "join = []\n")
    with started(tmp_path, {"a": [*flags, "--name", "a"]}) as running:
        node = running["a"]
        async with callers() as endpoint:
            accepted = await fill(endpoint, node, Hello(Role.CLIENT, "", b"", 7))
            assert accepted == MAX_CONNECTIONS * 3 // 4

            (tmp_path / "more").mkdir()
            join = ["--name", "b", "--join", f"127.0.0.1:{node.port}"]
            with started(tmp_path / "more", {"b": join}) as joined:
                until(lambda: "view of 2 members" in node.log)
                until(lambda: "view of 2 members" in joined["b"].log)
                assert "begins alone" not in joined["b"].log


@pytest.mark.parametrize("name", ["address", "token"])
async def test_connections_are_bounded_per_address_and_per_token(tmp_path: Path, name: str) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check", "other:check"], 30)
    flags = config(tmp_path, f'keys = "keys"\nmax_connections_per_{name} = 3\n')
    with started(tmp_path, {"a": [*flags, "--name", "a"]}) as running:
        node = running["a"]
        async with callers(tmp_path / "keys") as endpoint:
            assert await fill(endpoint, node, client_hello(tmp_path / "keys", "app")) == 3
            other = await endpoint.open(node.port, client_hello(tmp_path / "keys", "other"))

            expected = Refused if name == "address" else Welcome
            assert isinstance(await other.wait_message(), expected)
