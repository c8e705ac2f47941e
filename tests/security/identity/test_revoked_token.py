"""P13: a reload of keys and tokens also applies to open connections."""

import re
import signal
from pathlib import Path

import pytest
import trio

from node.config.key_files import revoke_token, write_keys
from ringfence.wire import AskStats, ErrorCode, Pong, Refused, Stats, Welcome
from ringfence.wire import Ping as PingMessage
from tests.node.end_to_end.test_serve import started
from tests.security.connections.callers import callers, client_hello


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys", [], [], ["app:check,observe", "operator:observe,check"], 30)
    return tmp_path / "keys"


def change_tokens(keys: Path, pattern: str, replacement: str) -> None:
    path = keys / "tokens.toml"
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"), flags=re.DOTALL)
    assert count == 1
    path.write_text(text, "utf-8")


async def test_a_removed_token_ends_its_open_connections(tmp_path: Path, keys: Path) -> None:
    with started(tmp_path, {"a": ["--keys", str(keys)]}) as running:
        node = running["a"]
        async with callers(keys) as endpoint:
            app = await endpoint.open(node.port, client_hello(keys, "app"))
            operator = await endpoint.open(node.port, client_hello(keys, "operator"))
            assert isinstance(await app.wait_message(), Welcome)
            assert isinstance(await operator.wait_message(), Welcome)

            revoke_token(keys, "app")
            node.signal(signal.SIGHUP)

            refusal = await app.wait_message()
            assert isinstance(refusal, Refused)
            assert refusal.code == ErrorCode.BAD_CREDENTIAL
            assert (await app.wait_closed())[0] == ErrorCode.BAD_CREDENTIAL
            operator.send(PingMessage(2))
            assert await operator.wait_message() == Pong(2)
    assert "reloaded; tokens revoked: app; connections ended: 1" in node.log


async def test_requests_of_a_removed_scope_are_rejected_after_a_reload(
    tmp_path: Path, keys: Path
) -> None:
    with started(tmp_path, {"a": ["--keys", str(keys)]}) as running:
        node = running["a"]
        async with callers(keys) as endpoint:
            app = await endpoint.open(node.port, client_hello(keys, "app"), AskStats(1))
            assert isinstance(await app.wait_message(), Welcome)
            assert isinstance(await app.wait_message(), Stats)

            change_tokens(keys, r'"check", "observe"', '"check"')
            node.signal(signal.SIGHUP)
            answer: object = None
            with trio.fail_after(20):
                while not isinstance(answer, Refused):
                    app.send(AskStats(2))
                    answer = await app.wait_message()

            assert answer.code == ErrorCode.NOT_PERMITTED
            app.send(PingMessage(3))
            assert await app.wait_message() == Pong(3)
