"""Gateway process beside nodes, with processes that the test ends."""

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from node.config.settings import NodeSettings
from node.supervisor import gateway
from ringfence.errors import ConfigError
from ringfence.wire import token_digest

NODE = NodeSettings(name="a", listen="127.0.0.1:7101")


class FakeGateway:
    """Process of a gateway, which the test can end, and which ends when it is killed."""

    def __init__(self, words: Sequence[str], environment: dict[str, str], *, obeys: bool) -> None:
        self.words, self.environment = words, environment
        self.began_at = trio.current_time()
        self.signals: list[int] = []
        self.returncode: int | None = None
        self._obeys = obeys
        self._ended = trio.Event()

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self.signals.append(signal.SIGTERM)
        if self._obeys:
            self.end(0)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)
        self.end(-9)


class Run:
    """Run of a node with a gateway; the test ends the node."""

    def __init__(self, node: NodeSettings = NODE, *, obeys: bool = True) -> None:
        self.gateways: list[FakeGateway] = []
        self.node_ends = trio.Event()
        self.reload: Callable[[], None] = lambda: None
        self.ended_at: float | None = None
        self.error: BaseException | None = None
        self._node = node
        self._obeys = obeys

    async def open_process(self, words: Sequence[str], **options: Any) -> FakeGateway:
        self.gateways.append(FakeGateway(words, options["env"], obeys=self._obeys))
        return self.gateways[-1]

    async def _serve(
        self, *, on_reload: Callable[[], None], task_status: trio.TaskStatus[None]
    ) -> None:
        self.reload = on_reload
        task_status.started()
        await self.node_ends.wait()

    async def run(self, config: Path | None) -> None:
        try:
            await gateway.run_with_gateway(self._serve, [self._node], config)
        except* ConfigError as group:
            self.error = group
            while isinstance(self.error, BaseExceptionGroup):
                [self.error] = self.error.exceptions
        self.ended_at = trio.current_time()


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch,
    config: Path | None = None,
    *,
    node: NodeSettings = NODE,
    obeys: bool = True,
) -> AsyncIterator[Run]:
    run = Run(node, obeys=obeys)
    monkeypatch.setattr(gateway.trio.lowlevel, "open_process", run.open_process)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run, config)
        await trio.testing.wait_all_tasks_blocked()
        yield run
        nursery.cancel_scope.cancel()


async def test_the_gateway_ends_with_its_node(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with running(monkeypatch) as run:
        await trio.sleep(100)
        [process] = run.gateways
        assert process.signals == []
        run.node_ends.set()
        await trio.testing.wait_all_tasks_blocked()

        assert process.signals == [signal.SIGTERM]
        assert run.ended_at == trio.current_time()
    assert list(process.words[1:]) == ["-m", "node.entry", "gateway", "--with-stdin"]
    assert process.environment["RINGFENCE_URL"].startswith("ringfence://127.0.0.1:7101?")
    assert "NOTIFY_SOCKET" not in process.environment


async def test_the_gateway_reads_its_settings_file(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, tmp_path: Path
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("", "ascii")

    async with running(monkeypatch, config) as run:
        assert list(run.gateways[0].words[-2:]) == ["--config", str(config)]


async def test_a_gateway_that_does_not_end_in_15_seconds_is_killed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with running(monkeypatch, obeys=False) as run:
        began = trio.current_time()
        run.node_ends.set()
        await trio.sleep(16)

        assert run.gateways[0].signals == [signal.SIGTERM, signal.SIGKILL]
        assert run.ended_at == pytest.approx(began + 15)


@pytest.mark.parametrize("status", [0, 1, 2, -9])
async def test_a_gateway_that_ends_is_started_again_after_a_second(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, status: int
) -> None:
    async with running(monkeypatch) as run:
        run.gateways[0].end(1)
        await trio.sleep(1.1)
        began = trio.current_time()
        run.gateways[1].end(status)
        await trio.sleep(2)

        assert run.gateways[2].began_at == pytest.approx(began + 1)
        assert run.gateways[0].signals == run.gateways[1].signals == []
        assert run.ended_at is None


async def test_wrong_settings_of_the_gateway_end_its_node(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with running(monkeypatch) as run:
        run.gateways[0].end(2)
        await trio.testing.wait_all_tasks_blocked()

        assert str(run.error) == "the gateway cannot start; its log above says why"
        assert len(run.gateways) == 1


def write_token(keys: Path, name: str, digits: str) -> None:
    (keys / f"{name}.token").write_text(f"{name}.{digits * 16}\n", "ascii")


def node_with_token(keys: Path) -> NodeSettings:
    """Write the token `app` of 0a bytes; return the settings of a node with these keys."""
    write_token(keys, "app", "0a")
    return NodeSettings(name="a", listen="127.0.0.1:7101", keys=str(keys))


def accept_token(keys: Path, name: str, digits: str) -> None:
    """Write the token file of the nodes, which has one token."""
    digest = token_digest(bytes.fromhex(digits * 16)).hex()
    text = f'[tokens.{name}]\ndigest = "{digest}"\nscopes = ["check"]\n'
    (keys / "tokens.toml").write_text(text, "utf-8")


async def test_each_start_of_the_gateway_uses_the_token_that_is_on_disk_then(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, tmp_path: Path
) -> None:
    node = node_with_token(tmp_path)
    async with running(monkeypatch, node=node) as run:
        write_token(tmp_path, "app", "0b")
        run.gateways[0].end(1)
        await trio.sleep(1.1)
        write_token(tmp_path, "gateway", "0c")
        run.gateways[1].end(1)
        await trio.sleep(1.1)

        urls = [process.environment["RINGFENCE_URL"] for process in run.gateways]
    tokens = [url.removeprefix("ringfence://").partition("@")[0] for url in urls]
    assert tokens == ["app." + "0a" * 16, "app." + "0b" * 16, "gateway." + "0c" * 16]


async def test_a_gateway_whose_token_is_gone_starts_when_there_is_one_again(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = node_with_token(tmp_path)
    async with running(monkeypatch, node=node) as run:
        (tmp_path / "app.token").unlink()
        run.gateways[0].end(1)
        await trio.sleep(1.5)
        assert len(run.gateways) == 1
        assert "the gateway is not started: --gateway needs a token" in caplog.text
        write_token(tmp_path, "gateway", "0b")
        await trio.sleep(1)

        assert len(run.gateways) == 2
        assert run.ended_at is None


async def test_a_reload_restarts_the_gateway_if_its_token_has_changed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, tmp_path: Path
) -> None:
    node = node_with_token(tmp_path)
    async with running(monkeypatch, node=node) as run:
        write_token(tmp_path, "other", "0c")
        run.reload()
        await trio.sleep(2)
        assert len(run.gateways) == 1
        write_token(tmp_path, "app", "0b")
        await trio.sleep(2)
        assert len(run.gateways) == 1  # The node does not accept the new token yet.
        accept_token(tmp_path, "app", "0b")
        for _ in range(3):
            run.reload()
        await trio.testing.wait_all_tasks_blocked()

        first, second = run.gateways
        assert (first.signals, second.signals) == ([signal.SIGTERM], [])
        assert second.environment["RINGFENCE_URL"].startswith(f"ringfence://app.{'0b' * 16}@")
        await trio.sleep(2)
        assert len(run.gateways) == 2
        run.node_ends.set()
        await trio.testing.wait_all_tasks_blocked()
        assert second.signals == [signal.SIGTERM]
        assert run.ended_at is not None


async def test_a_reload_without_a_token_keeps_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = node_with_token(tmp_path)
    async with running(monkeypatch, node=node) as run:
        (tmp_path / "app.token").unlink()
        run.reload()
        await trio.sleep(2)

        assert [process.signals for process in run.gateways] == [[]]
        assert "the gateway is not started again: --gateway needs a token" in caplog.text


@pytest.mark.parametrize("token", ["", "app.0b0", f"app.{'0c' * 16}", f"other.{'0b' * 16}"])
async def test_a_reload_with_a_token_that_the_nodes_reject_keeps_the_gateway(
    token: str,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = node_with_token(tmp_path)
    accept_token(tmp_path, "app", "0b")
    async with running(monkeypatch, node=node) as run:
        (tmp_path / "app.token").write_text(token, "ascii")
        run.reload()
        await trio.sleep(2)

        assert [process.signals for process in run.gateways] == [[]]
        assert "the gateway is not started again: " in caplog.text
