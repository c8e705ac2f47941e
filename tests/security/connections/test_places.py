"""P16: callers cannot use up the connections that members of the cluster need."""

from pathlib import Path

import pytest

from node.config.key_files import write_keys
from ringfence.wire import ErrorCode, Hello, Refused, Role, Welcome
from tests.node.end_to_end.test_serve import NodeProcess, started, until
from tests.security.connections.callers import Callers, callers, client_hello

MAX = 24


def config(directory: Path, text: str) -> list[str]:
    path = directory / "node.toml"
    path.write_text(f"max_connections = {MAX}\n{text}", "utf-8")
    return ["--config", str(path)]


async def fill(here: Callers, node: NodeProcess, hello: Hello) -> int:
    """Open connections of clients, and silent ones, until the node has no more of either."""
    taken = 0
    for _ in range(MAX):
        caller = await here.open(node.port, hello)
        answer = await caller.wait_message()
        if isinstance(answer, Refused):
            assert answer.code == ErrorCode.OVERLOADED
            assert "connections" in answer.reason
            break
        taken += isinstance(answer, Welcome)
    for _ in range(2 * MAX):
        await here.open(node.port)
    return taken


async def test_a_member_joins_a_node_that_callers_have_filled(tmp_path: Path) -> None:
    flags = config(tmp_path, "join = []\n")
    with started(tmp_path, {"a": [*flags, "--name", "a"]}) as running:
        node = running["a"]
        async with callers() as here:
            taken = await fill(here, node, Hello(Role.CLIENT, "", b"", 7))
            assert taken == MAX * 3 // 4

            (tmp_path / "more").mkdir()
            join = ["--name", "b", "--join", f"127.0.0.1:{node.port}"]
            with started(tmp_path / "more", {"b": join}) as more:
                until(lambda: "view of 2 members" in node.log)
                until(lambda: "view of 2 members" in more["b"].log)
                assert "begins alone" not in more["b"].log


@pytest.mark.parametrize("name", ["address", "token"])
async def test_one_address_and_one_token_have_bounds_of_their_own(
    tmp_path: Path, name: str
) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check", "other:check"], 30)
    flags = config(tmp_path, f'keys = "keys"\nmax_connections_per_{name} = 3\n')
    with started(tmp_path, {"a": [*flags, "--name", "a"]}) as running:
        node = running["a"]
        async with callers(tmp_path / "keys") as here:
            assert await fill(here, node, client_hello(tmp_path / "keys", "app")) == 3
            other = await here.open(node.port, client_hello(tmp_path / "keys", "other"))

            expected = Refused if name == "address" else Welcome
            assert isinstance(await other.wait_message(), expected)
