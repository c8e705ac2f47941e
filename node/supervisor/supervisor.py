"""Supervisor process, which starts the members of a host, restarts failed ones, and stops them.

It decides no check and holds no counter. When it ends, its members leave the cluster gracefully. A
failed member is restarted after a growing delay. A member that was asked to leave is not restarted.
When all members have left, the supervisor exits.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import trio

from node.config.access import KeyDir
from node.config.settings import NodeSettings
from node.supervisor.backoff import BackOff
from node.supervisor.host_members import Host, HostMember
from node.supervisor.member_plan import require_plan
from node.supervisor.member_process import LEAVING, UP
from node.supervisor.systemd import NOTIFY_SOCKET, notify_systemd
from ringfence.errors import ConfigError

__all__ = ["supervise"]

logger = logging.getLogger("ringfence.node")

_WRONG_INPUT = 2
"""Exit status of a node with wrong settings, rules or keys."""
_GRACE = 5.0
"""Seconds that members may take to exit after the handover time-out."""


async def supervise(
    settings: NodeSettings,
    words: Sequence[str],
    *,
    on_reload: Callable[[], None] | None = None,
    task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `settings.processes` members until SIGTERM, SIGINT, or until all have left.

    `words` are the `ringfence` arguments of each member; the supervisor adds the member's index.
    SIGHUP is forwarded, then `on_reload` is called. Raises `ConfigError` when a member cannot
    start.
    """
    require_plan(settings)
    host = Host.of(settings)
    supervisor = _Supervisor(host, words)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            renew = await _open_page(settings, host, nursery)
            stop_timeout = 2 * settings.drain_timeout + _GRACE
            nursery.start_soon(
                supervisor.handle_signals, signals, stop_timeout, renew, on_reload or _nothing
            )
            async with trio.open_nursery() as members:
                first, *others = host.members
                members.start_soon(supervisor.keep, first)
                # The other members join this one; otherwise each would start its own cluster.
                await first.began.wait()
                for member in others:
                    members.start_soon(supervisor.keep, member)
                for member in others:
                    await member.began.wait()
                task_status.started(host)
                notify_systemd("READY=1")
            nursery.cancel_scope.cancel()
    logger.info("all members of %s have stopped", settings.name)


async def _open_page(
    settings: NodeSettings, host: Host, nursery: trio.Nursery
) -> Callable[[], None]:
    """Open the host's admin port, if configured; return a function that reloads its certificate.

    The returned function raises `ConfigError`.
    """
    if settings.http_at is None:
        return _nothing
    from node.supervisor.host_port import open_page  # Only hosts with the port need it.

    keys = KeyDir(Path(settings.keys)) if settings.keys else None
    page = await open_page(host, settings.http_at, keys)
    logger.info("operators look at all %d members at %s", len(host.members), page.url)
    nursery.start_soon(page.run)
    return page.reload_certificate


def _nothing() -> None:
    """Do nothing, because the host has no certificate to reload, or no gateway."""


class _Supervisor:
    """Starts, watches and stops the members of a host."""

    def __init__(self, host: Host, words: Sequence[str]) -> None:
        self._host = host
        self._words = words
        self._stopping = trio.Event()
        self._deadline = inf
        """Instant at which members that have not ended are killed."""

    async def handle_signals(
        self,
        signals: AsyncIterator[int],
        stop_timeout: float,
        renew: Callable[[], None],
        on_reload: Callable[[], None],
    ) -> None:
        """Forward signals to the members; after a terminating signal, kill members that exceed the
        time-out.

        At SIGHUP `renew` also reloads the certificate of the host's port, and `on_reload` is called
        last.
        """
        async for number in signals:
            if number == signal.SIGHUP:
                try:
                    renew()
                except ConfigError as error:
                    logger.error("the old certificate of the host's port stays: %s", error)
                # A starting process reads all files anyway, and the signal would kill it.
                self._send_signal(
                    signal.SIGHUP, [each for each in self._host.members if each.is_up]
                )
                on_reload()
                continue
            if not self._stopping.is_set():
                logger.info("%d members hand over and leave", len(self._host.members))
                self._stopping.set()
                notify_systemd("STOPPING=1")
                self._deadline = trio.current_time() + stop_timeout
                for member in self._host.members:
                    member.life.deadline = self._deadline
            self._send_signal(signal.SIGTERM, self._host.members)

    @staticmethod
    def _send_signal(number: signal.Signals, members: Sequence[HostMember]) -> None:
        for member in members:
            if member.process is not None:
                with suppress(ProcessLookupError):
                    member.process.send_signal(number)

    async def keep(self, member: HostMember) -> None:
        """Run one member, and restart it whenever it fails."""
        back_off = BackOff()
        while not self._stopping.is_set():
            begun = trio.current_time()
            status = await self._live(member)
            if status == 0 or self._stopping.is_set():
                break
            if status == _WRONG_INPUT and not member.was_ever_up:
                raise ConfigError(f"member {member.name} cannot start; its log above says why")
            member.is_leaving = False
            pause = back_off.after(trio.current_time() - begun)
            member.restarts += 1
            member.began.set()
            logger.error(
                "member %s has ended with status %d and is started again in %g s",
                *(member.name, status, pause),
            )
            with trio.move_on_after(pause):
                await self._stopping.wait()
        member.began.set()
        member.has_left = True

    async def _live(self, member: HostMember) -> int:
        """Run the process of a member until it ends; return its exit status."""
        siblings = [each.address for each in self._host.members if each.is_up]
        words = [sys.executable, "-P", "-m", "node.entry", *self._words]
        words += ["--member", str(member.index)]
        for address in siblings:
            words += ["--sibling", address]
        process = await trio.lowlevel.open_process(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()
        )
        member.process = process
        member.life = trio.CancelScope(deadline=self._deadline)
        if self._stopping.is_set():  # The signal arrived during the start.
            process.terminate()
        try:
            with member.life:
                await self._follow_reports(member, process)
                await process.wait()
        finally:
            member.is_up, member.process = False, None
            with trio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.wait()
                for stream in (process.stdin, process.stdout):
                    assert stream is not None
                    await stream.aclose()
        assert process.returncode is not None
        return process.returncode

    @staticmethod
    async def _follow_reports(member: HostMember, process: trio.Process) -> None:
        """Read the reports of a member until it ends: that it serves, or that it leaves."""
        assert process.stdout is not None
        unread = b""
        while chunk := await process.stdout.receive_some():
            *lines, unread = (unread + chunk).split(b"\n")
            if UP.strip() in lines:
                member.is_up = member.was_ever_up = True
                member.began.set()
            if LEAVING.strip() in lines:
                member.is_leaving = True


def _environment() -> dict[str, str]:
    """Return the environment of a member, with the import path of this process.

    It contains no address of systemd: the supervisor reports that the host is ready when all
    members are.
    """
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    own = {name: value for name, value in os.environ.items() if name != NOTIFY_SOCKET}
    return own | {"PYTHONPATH": path}
