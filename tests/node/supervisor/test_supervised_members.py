"""Start, restart and stop of the members of a host, with processes that the test ends."""

import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import node
from node.config.settings import NodeSettings
from node.supervisor import host_port, supervisor
from node.supervisor.host_members import Host
from ringfence.errors import ConfigError

TERM, HUP = signal.SIGTERM, signal.SIGHUP


class FakePipe:
    """Standard output of a process; the test writes to it."""

    def __init__(self) -> None:
        self.write, self._read = trio.open_memory_channel[bytes](inf)
        self.is_closed = False

    async def receive_some(self) -> bytes:
        try:
            return await self._read.receive()
        except trio.EndOfChannel:
            return b""

    async def aclose(self) -> None:
        self.is_closed = True


class FakeProcess:
    """Process of one member, which the test can end, and which ends when it is killed."""

    def __init__(self, words: Sequence[str], environment: dict[str, str]) -> None:
        self.words, self.environment = words, environment
        self.began_at = trio.current_time()
        self.stdin, self.stdout = FakePipe(), FakePipe()
        self.returncode: int | None = None
        self.signals: list[int] = []
        self._ended = trio.Event()

    def be_up(self) -> None:
        self.stdout.write.send_nowait(b"u")
        self.stdout.write.send_nowait(b"p\n")

    def be_leaving(self) -> None:
        self.stdout.write.send_nowait(b"leav")
        self.stdout.write.send_nowait(b"ing\n")

    def end(self, status: int) -> None:
        self.returncode = status
        self.stdout.write.close()
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        self.signals.append(number)

    def terminate(self) -> None:
        self.send_signal(TERM)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)
        self.end(-9)

    @property
    def siblings(self) -> list[str]:
        pairs = itertools.pairwise(self.words)
        return [word for flag, word in pairs if flag == "--sibling"]


class HostRun:
    """Run of the supervisor of a host with two members."""

    def __init__(self) -> None:
        self.processes: dict[int, list[FakeProcess]] = {0: [], 1: []}
        """All processes of each member so far."""
        self.host: Host | None = None
        self.error: BaseException | None = None
        self.ended = trio.Event()
        self.signals_at_reloads: list[int] = []
        """Number of signals that the first member had received at each call of `on_reload`."""
        self.signals, self._received = trio.open_memory_channel[int](inf)

    @contextmanager
    def receive_signals(self, *numbers: int) -> Iterator[AsyncIterator[int]]:
        assert set(numbers) == {TERM, signal.SIGINT, HUP}
        yield self._received

    async def open_process(self, words: Sequence[str], **options: Any) -> FakeProcess:
        process = FakeProcess(words, options["env"])
        self.processes[int(words[words.index("--member") + 1])].append(process)
        return process

    def _on_reload(self) -> None:
        self.signals_at_reloads.append(len(self.process(0).signals))

    async def run(self, http: str) -> None:
        settings = NodeSettings(
            name="web", listen="127.0.0.1:7101", http=http, processes=2, drain_timeout=3
        )
        try:
            async with trio.open_nursery() as nursery:
                supervise = partial(supervisor.supervise, on_reload=self._on_reload)
                self.host = await nursery.start(supervise, settings, ["node", "--x"])
        except* ConfigError as group:
            self.error = group
            while isinstance(self.error, BaseExceptionGroup):
                [self.error] = self.error.exceptions
        self.ended.set()

    def process(self, index: int) -> FakeProcess:
        """Return the last process of a member."""
        return self.processes[index][-1]

    async def all_up(self) -> tuple[FakeProcess, FakeProcess]:
        for index in (0, 1):
            self.process(index).be_up()
            await trio.testing.wait_all_tasks_blocked()
        return self.process(0), self.process(1)

    async def signal(self, number: int) -> None:
        self.signals.send_nowait(number)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def run_host(monkeypatch: pytest.MonkeyPatch) -> Any:
    @asynccontextmanager
    async def run(http: str = "") -> AsyncIterator[HostRun]:
        host_run = HostRun()
        monkeypatch.setattr(supervisor.trio, "open_signal_receiver", host_run.receive_signals)
        monkeypatch.setattr(supervisor.trio.lowlevel, "open_process", host_run.open_process)
        monkeypatch.setattr(supervisor, "notify_systemd", lambda state: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host_run.run, http)
            await trio.testing.wait_all_tasks_blocked()
            yield host_run
            nursery.cancel_scope.cancel()

    return run


async def test_the_other_members_start_when_the_first_one_is_up_and_join_it(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        first = run.process(0)
        await trio.sleep(100)
        assert run.processes[1] == []
        first.be_up()
        await trio.testing.wait_all_tasks_blocked()
        assert run.host is None
        second = run.process(1)
        second.be_up()
        await trio.testing.wait_all_tasks_blocked()

        assert run.host is not None
        assert [each.is_up for each in run.host.members] == [True, True]
    assert list(first.words[1:]) == ["-P", "-m", "node.entry", "node", "--x", "--member", "0"]
    assert (first.siblings, second.siblings) == ([], ["127.0.0.1:7101"])


async def test_the_other_members_start_too_when_the_first_one_fails(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        run.process(0).end(1)
        await trio.testing.wait_all_tasks_blocked()

        assert run.process(1).siblings == []
        run.process(1).be_up()
        await trio.sleep(1)
        assert run.process(0).siblings == ["127.0.0.1:7102"]
        assert run.host is not None


async def test_a_failed_member_is_restarted_after_a_growing_delay(
    run_host: Any, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_host() as run:
        await run.all_up()
        delays = []
        for lived in (0, 0, 0, 61, 0):
            await trio.sleep(lived)
            failed, failed_at = run.process(1), trio.current_time()
            failed.end(7)
            await trio.sleep(5)
            delays.append(run.process(1).began_at - failed_at)
            assert failed.stdin.is_closed
            assert failed.stdout.is_closed
            assert not run.host.members[1].is_up
            run.process(1).be_up()

        assert delays == pytest.approx([0.5, 1, 2, 0.5, 1])
        assert [each.restarts for each in run.host.members] == [0, 5]
        assert len(run.processes[0]) == 1
    assert "member web-1 has ended with status 7 and is started again in 0.5 s" in caplog.text


async def test_a_member_that_leaves_is_not_restarted_and_the_last_one_ends_the_supervisor(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        first, second = await run.all_up()
        first.end(0)
        await trio.sleep(100)
        assert [each.has_left for each in run.host.members] == [True, False]
        assert not run.ended.is_set()

        second.end(0)
        await trio.testing.wait_all_tasks_blocked()

        assert run.ended.is_set()
        assert run.error is None
        assert [len(run.processes[index]) for index in (0, 1)] == [1, 1]


async def test_a_member_that_begins_to_leave_is_leaving_until_a_new_process_replaces_it(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        first, second = await run.all_up()
        first.be_leaving()
        second.be_leaving()
        await trio.testing.wait_all_tasks_blocked()
        assert [each.is_leaving for each in run.host.members] == [True, True]
        assert [each.is_up for each in run.host.members] == [True, True]

        first.end(0)
        second.end(7)
        await trio.testing.wait_all_tasks_blocked()

        assert [each.has_left for each in run.host.members] == [True, False]
        assert not run.host.members[1].is_leaving
        await trio.sleep(1)
        assert len(run.processes[1]) == 2


@pytest.mark.parametrize("was_up", [True, False])
async def test_a_member_that_was_never_up_ends_the_supervisor_with_wrong_settings(
    run_host: Any, autojump_clock: MockClock, *, was_up: bool
) -> None:
    async with run_host() as run:
        if was_up:
            await run.all_up()
        run.process(0).end(2)
        await trio.sleep(1)

        assert run.ended.is_set() is not was_up
        assert len(run.processes[0]) == (2 if was_up else 1)
        if not was_up:
            assert "member web-0 cannot start" in str(run.error)


@pytest.mark.parametrize("status", [1, 3, -9])
async def test_a_member_that_was_never_up_is_restarted_after_other_failures(
    run_host: Any, autojump_clock: MockClock, status: int
) -> None:
    async with run_host() as run:
        run.process(0).end(status)
        await trio.sleep(1)

        assert len(run.processes[0]) == 2


async def test_a_member_is_up_when_it_reports_ready(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        for output in (b"a line\n", b"u", b"p"):
            run.process(0).stdout.write.send_nowait(output)
            await trio.testing.wait_all_tasks_blocked()
            assert run.processes[1] == []
        run.process(0).stdout.write.send_nowait(b"\n")
        await trio.testing.wait_all_tasks_blocked()

        assert len(run.processes[1]) == 1


async def test_members_import_the_same_code_and_do_not_notify_systemd(
    run_host: Any, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    async with run_host() as run:
        environment = run.process(0).environment

    folder = str(Path(node.__file__).parents[1])
    assert environment["PYTHONPATH"] == f"{folder}{os.pathsep}/elsewhere"
    assert "NOTIFY_SOCKET" not in environment
    assert environment["PATH"] == os.environ["PATH"]


async def test_a_supervisor_that_is_cancelled_kills_its_members_and_closes_their_pipes(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        members = await run.all_up()

    for member in members:
        assert member.signals == [signal.SIGKILL]
        assert member.stdin.is_closed
        assert member.stdout.is_closed


class FakePage:
    """Admin port of a host, whose certificate cannot be reloaded at first."""

    url = "https://127.0.0.1:7180"

    def __init__(self) -> None:
        self.reloads = 0

    async def run(self) -> None:
        await trio.sleep_forever()

    def reload_certificate(self) -> None:
        self.reloads += 1
        if self.reloads == 1:
            raise ConfigError("no certificate")


async def test_members_reload_even_when_the_certificate_of_the_host_cannot_be_loaded(
    run_host: Any,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = FakePage()

    async def open_page(host: Host, address: object, keys: object) -> FakePage:
        assert (address, keys) == (("127.0.0.1", 7180), None)
        return page

    monkeypatch.setattr(host_port, "open_page", open_page)
    async with run_host("127.0.0.1:7180") as run:
        first, second = await run.all_up()
        await run.signal(HUP)
        await run.signal(HUP)
        assert first.signals == second.signals == [HUP, HUP]
        assert run.signals_at_reloads == [1, 2]

    assert page.reloads == 2
    assert caplog.text.count("the old certificate of the host's port stays: no certificate") == 1


async def test_members_that_do_not_leave_in_time_are_killed(
    run_host: Any, autojump_clock: MockClock
) -> None:
    """Twice the drain time-out, and 5 s."""
    async with run_host() as run:
        first, second = await run.all_up()
        began = trio.current_time()
        await run.signal(TERM)
        assert first.signals == second.signals == [TERM]
        await trio.sleep(1)
        first.end(0)
        await trio.sleep(1)
        await run.signal(TERM)  # An impatient operator does not prolong the time.
        assert second.signals == [TERM, TERM]
        await run.ended.wait()

        assert trio.current_time() - began == pytest.approx(11)
        assert second.signals == [TERM, TERM, signal.SIGKILL]
        assert first.signals == [TERM]
        assert run.error is None
        assert len(run.processes[1]) == 1


async def test_no_member_is_restarted_after_the_signal(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        first, second = await run.all_up()
        second.end(1)
        await trio.sleep(0.1)
        await run.signal(signal.SIGINT)
        first.end(1)
        await trio.testing.wait_all_tasks_blocked()

        assert run.ended.is_set()
        assert [len(run.processes[index]) for index in (0, 1)] == [1, 1]


async def test_a_signal_before_the_first_member_is_up_ends_all(
    run_host: Any, autojump_clock: MockClock
) -> None:
    async with run_host() as run:
        await run.signal(TERM)
        assert run.process(0).signals == [TERM]
        run.process(0).end(0)
        await trio.testing.wait_all_tasks_blocked()

        assert run.ended.is_set()
        assert run.processes[1] == []


async def test_only_members_that_are_up_reload(run_host: Any, autojump_clock: MockClock) -> None:
    """A process that starts reads its files anyway, and SIGHUP would end it."""
    async with run_host() as run:
        run.process(0).be_up()
        await trio.testing.wait_all_tasks_blocked()
        await run.signal(HUP)
        second = run.process(1)
        second.be_up()
        await trio.testing.wait_all_tasks_blocked()
        await run.signal(HUP)

        assert run.process(0).signals == [HUP, HUP]
        assert second.signals == [HUP]
        assert not run.ended.is_set()
