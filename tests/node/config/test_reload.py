"""Signals to a node in this process: reload of keys, certificates and rules, and the end."""

import logging
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from pathlib import Path

import pytest
import trio
import trio.testing

from node import serve as serve_module
from node.config.access import KeyDir
from node.config.key_files import add_token, renew, revoke_token, rotate, write_keys
from node.config.settings import NodeSettings
from node.node import Node

RULES = (
    "domain: api\ndescriptors:\n  - key: client\n"
    "    rate_limit: {{unit: minute, requests_per_unit: {}}}\n"
)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Served:
    """A node that runs, with its files and its log."""

    def __init__(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        write_keys(directory / "keys", [], ["127.0.0.1"], ["app:check"], 40, ["a"])
        self.keys = KeyDir(directory / "keys")
        self.rules = directory / "api.yaml"
        self.write_rules(5)
        self.node: Node | None = None
        self.has_ended = False
        self.reloads = 0
        self._admin_port = 0
        self._caplog = caplog
        self._send, self._signals = trio.open_memory_channel[int](inf)

    @contextmanager
    def receive_signals(self, *numbers: int) -> Iterator[AsyncIterator[int]]:
        yield self._signals

    async def run(self) -> None:
        settings = NodeSettings(
            name="a",
            listen=f"127.0.0.1:{free_port()}",
            keys=str(self.keys.path),
            rules=str(self.rules),
            http="0.0.0.0:0",
            reload_interval=0,
        )
        async with trio.open_nursery() as nursery:
            serve = partial(serve_module.serve, settings, on_reload=self._on_reload)
            self.node = await nursery.start(serve)
            [line] = self.log("node a listens on")
            self._admin_port = int(line.rpartition(":")[2])
        self.has_ended = True

    def _on_reload(self) -> None:
        self.reloads += 1

    def write_rules(self, amount: int) -> None:
        self.rules.write_text(RULES.format(amount), "ascii")

    def amount(self) -> int:
        assert self.node is not None
        limit = self.node.rules.current.rules()[0].limit
        assert limit is not None
        return limit.amount

    def log(self, start: str) -> list[str]:
        texts = [record.getMessage() for record in self._caplog.records]
        return [text for text in texts if text.startswith(start)]

    async def signal(self, number: int) -> None:
        self._caplog.clear()
        self._send.send_nowait(number)
        await trio.testing.wait_all_tasks_blocked()

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(20):
            while not holds():  # noqa: ASYNC110 - a thread reads the rules.
                await trio.sleep(0.005)

    async def presented_certificate(self) -> str:
        """Return the certificate that the admin port presents on a new connection."""
        address = ("127.0.0.1", self._admin_port)
        return await trio.to_thread.run_sync(ssl.get_server_certificate, address)

    async def hup(self) -> str:
        """Reload all files; return the line about the keys."""
        await self.signal(signal.SIGHUP)
        [line] = self.log("keys")
        return line


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Served:
    caplog.set_level(logging.INFO, "ringfence.node")
    made = Served(tmp_path, caplog)
    monkeypatch.setattr(trio, "open_signal_receiver", made.receive_signals)
    # These functions would change the garbage collection and the memory of this process.
    monkeypatch.setattr(serve_module, "_tune_garbage_collector", lambda: None)
    monkeypatch.setattr(serve_module, "_return_large_blocks", lambda: None)
    return made


@asynccontextmanager
async def running(served: Served) -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.run)
        await served.until(lambda: served.node is not None)
        assert served.node is not None
        yield served.node
        nursery.cancel_scope.cancel()


async def test_keys_are_reloaded_on_sighup_as_often_as_they_change(served: Served) -> None:
    async with running(served) as node:
        assert await served.hup() == "keys and certificates reloaded; nothing changed"
        add_token(served.keys.path, "web:check")
        rotate(served.keys.path, "add")
        assert await served.hup() == (
            "keys and certificates reloaded; tokens added: web; "
            "cluster keys changed: 2 accepted, the same is used"
        )
        assert node.access.current.tokens.keys() == {"app", "web"}
        assert len(node.access.current.cluster_keys) == 2
        revoke_token(served.keys.path, "app")
        assert await served.hup() == "keys and certificates reloaded; tokens revoked: app"
        assert node.access.current.tokens.keys() == {"web"}
        assert await served.hup() == "keys and certificates reloaded; nothing changed"
        assert not served.has_ended


async def test_a_node_has_the_milliseconds_of_its_start_as_generation(served: Served) -> None:
    """The generation of a restarted node is therefore larger than before."""
    before = time.time_ns() // 1_000_000
    async with running(served) as node:
        assert before <= node.membership.me.generation <= time.time_ns() // 1_000_000


async def test_a_renewed_certificate_is_used_and_its_expiry_logged(served: Served) -> None:
    async with running(served) as node:
        before, presented = node.certificates_expire, await served.presented_certificate()
        assert served.log("certificate nodes/a.pem expires")
        await served.hup()
        assert not served.log("certificate")
        renew(served.keys.path, [], 80)

        assert await served.hup() == "keys and certificates reloaded; certificate renewed"
        [line] = served.log("certificate nodes/a.pem")
        assert line.endswith("in 79 days")
        after = node.certificates_expire
        assert after["node"] - before["node"] == pytest.approx(40 * 86_400, abs=60)
        assert after["ca"] == before["ca"]
        assert await served.presented_certificate() != presented


@pytest.mark.parametrize("name", ["tokens.toml", "cluster.key", "nodes/a.pem", "nodes/a.key"])
async def test_no_file_is_reloaded_when_one_is_invalid(served: Served, name: str) -> None:
    async with running(served) as node:
        access, expiry = node.access.current, node.certificates_expire
        presented = await served.presented_certificate()
        add_token(served.keys.path, "web:check")
        renew(served.keys.path, [], 80)
        good = (served.keys.path / name).read_bytes()
        (served.keys.path / name).write_bytes(b"broken")

        line = await served.hup()
        assert line.startswith("keys not reloaded, the old ones stay in force: ")
        assert name in line
        assert served.reloads == 0
        assert (node.access.current, node.certificates_expire) == (access, expiry)
        assert await served.presented_certificate() == presented
        (served.keys.path / name).write_bytes(good)

        assert await served.hup() == (
            "keys and certificates reloaded; tokens added: web; certificate renewed"
        )
        assert served.reloads == 1
        assert not served.has_ended


@pytest.mark.parametrize("content", ["", "[tokens]\n", "# none\n"])
async def test_a_token_file_without_tokens_is_not_reloaded(served: Served, content: str) -> None:
    async with running(served) as node:
        good = served.keys.tokens.read_text("utf-8")
        served.keys.tokens.write_text(content, "utf-8")

        line = await served.hup()
        assert line.startswith("keys not reloaded, the old ones stay in force: ")
        assert f"{served.keys.tokens}: must have at least one token at a reload, got none" in line
        assert node.access.current.tokens.keys() == {"app"}

        served.keys.tokens.write_text(good, "utf-8")
        assert await served.hup() == "keys and certificates reloaded; nothing changed"


async def test_a_node_without_tokens_starts_and_reloads(served: Served) -> None:
    served.keys.tokens.write_text("", "utf-8")
    async with running(served) as node:
        assert await served.hup() == "keys and certificates reloaded; nothing changed"
        assert node.access.current.tokens == {}


async def test_rules_are_reloaded_on_sighup_and_invalid_ones_counted(served: Served) -> None:
    async with running(served) as node:
        assert served.amount() == 5
        for amount in (6, 7):
            served.write_rules(amount)
            await served.signal(signal.SIGHUP)
            await served.until(lambda amount=amount: served.amount() == amount)  # type: ignore[misc]
        served.rules.write_text("domain: [", "ascii")
        await served.signal(signal.SIGHUP)
        await served.until(lambda: bool(served.log("rules not reloaded")))
        await served.until(lambda: node.rules.refusal != "")
        assert served.amount() == 7
        assert node.counters.as_dict()["reloads_refused"] == 1
        assert node.counters.as_dict()["reloads"] == 2

        served.write_rules(8)
        await served.signal(signal.SIGHUP)
        await served.until(lambda: served.amount() == 8)
        assert node.rules.refusal == ""


async def test_the_log_names_the_rules_in_force_only_after_a_change(served: Served) -> None:
    async with running(served) as node:
        version = node.rules.current.version
        await served.signal(signal.SIGHUP)
        await served.until(lambda: bool(served.log("rules")))
        assert served.log("rules") == ["rules reloaded; nothing changed"]
        assert node.rules.current.version == version

        served.write_rules(6)
        await served.signal(signal.SIGHUP)
        await served.until(lambda: bool(served.log("rules")))
        assert served.log("rules") == [
            f"rules of version {node.rules.current.version} in force, 1 in all"
        ]
        assert node.rules.current.version > version


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_terminating_signal_ends_the_node(served: Served, number: int) -> None:
    async with running(served) as node:
        await served.signal(signal.SIGHUP)
        assert node.state == "alive"
        await served.signal(number)
        await served.until(lambda: served.has_ended)

        assert served.log("node a hands over and leaves")
        assert served.log("node a has stopped")
