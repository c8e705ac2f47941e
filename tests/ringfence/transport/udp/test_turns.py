"""Turns of the transport's tasks: a long turn ends early, so that other tasks can run.

A step of the work advances a fake clock by a millisecond, which is longer than a turn may last. The
other task is ready from the first step on.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ringfence.transport.interface import Connection
from ringfence.transport.tls.certificates import ClientTls
from ringfence.transport.udp.udp_trio import TrioUdp


def report(error: Exception) -> None:
    raise error


class Turns:
    """Steps of a transport and of another task, in the order in which they ran."""

    def __init__(self, transport: TrioUdp, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        self.is_ready = trio.Event()
        self.have_run = trio.Event()
        self._now = transport.now()
        monkeypatch.setattr(transport, "now", lambda: self._now)

    def step(self, name: str) -> None:
        self.order.append(name)
        self._now += 0.001
        self.is_ready.set()
        if len(self.order) >= 4:
            self.have_run.set()

    async def run_other_task(self) -> None:
        await self.is_ready.wait()
        self.step("other task")

    async def let_other_task_run(self, seconds: float) -> None:
        """Run other tasks once, and advance the clock as if they had needed some time."""
        await trio.lowlevel.checkpoint()
        self.order.append("long task")
        self._now += seconds

    async def ends(self) -> list[str]:
        with trio.fail_after(30):
            await self.have_run.wait()
        return self.order


@asynccontextmanager
async def turns_of(transport: TrioUdp, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Turns]:
    """Run a transport, beside a task that waits for the first step."""
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        turns = Turns(transport, monkeypatch)
        nursery.start_soon(turns.run_other_task)
        await wait_all_tasks_blocked()
        yield turns
        nursery.cancel_scope.cancel()


async def order_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a transport process three datagrams, calls or timers, which are all there at once."""
    transport = TrioUdp(("127.0.0.1", 0), on_bug=report, client=ClientTls(verify=False))
    async with turns_of(transport, monkeypatch) as turns:
        names = ["first", "second", "third"]
        if kind == "datagrams":
            transport.receive_sealed(lambda datagram, _: turns.step(datagram[1:].strip().decode()))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for name in names:
                    # A small datagram would end the turn, as the last one of a burst.
                    sender.sendto(b"\x00" + name.encode().ljust(1100), transport.address)
        for name in names if kind != "datagrams" else ():
            if kind == "calls":
                transport.call_soon(partial(turns.step, name))
            else:
                transport.call_at(transport.now(), partial(turns.step, name))
        return await turns.ends()


@pytest.mark.parametrize("kind", ["datagrams", "calls", "timers"])
async def test_other_tasks_run_before_a_long_turn_continues(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = await order_of(kind, monkeypatch)

    # The second step may be in the same turn of the event loop as the other task.
    assert order.index("other task") in (1, 2)
    assert [name for name in order if name != "other task"] == ["first", "second", "third"]


@pytest.mark.parametrize("kind", ["datagrams", "calls"])
async def test_a_turn_is_longer_while_other_tasks_need_long(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = TrioUdp(("127.0.0.1", 0), on_bug=report, client=ClientTls(verify=False))
    async with turns_of(transport, monkeypatch) as turns:
        transport.receive_sealed(lambda *_: turns.step("step"))
        if kind == "datagrams":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for _ in range(40):
                    sender.sendto(bytes(1100), transport.address)
        for _ in range(40 if kind == "calls" else 0):
            transport.call_soon(partial(turns.step, "step"))
        with trio.fail_after(30):
            while turns.order.count("step") < 40:
                await turns.let_other_task_run(0.03)

    # One step, and then 10 or 11 of a millisecond after each 30 ms of the other task.
    assert turns.order.count("long task") < 8


async def test_a_turn_after_an_idle_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = TrioUdp(("127.0.0.1", 0), on_bug=report, client=ClientTls(verify=False))
    async with turns_of(transport, monkeypatch) as turns:
        transport.receive_sealed(lambda *_: turns.step("step"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(bytes(1100), transport.address)
            while not turns.order:
                await trio.lowlevel.checkpoint()
            await turns.let_other_task_run(10.0)
            for _ in range(10):
                sender.sendto(bytes(1100), transport.address)
            while turns.order.count("step") == 1:
                await trio.lowlevel.checkpoint()

    assert turns.order.count("step") <= 3


class Unused:
    """Handler of a connection to which nothing happens before the transport ends."""

    def on_open(self, connection: Connection) -> None:
        raise AssertionError

    def on_message(self, payload: bytes) -> None:
        raise AssertionError

    def on_close(self, code: int, reason: str) -> None:
        pass


async def test_each_handshake_begins_in_a_later_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    client = TrioUdp(on_bug=report, client=ClientTls(verify=False))
    async with turns_of(client, monkeypatch) as turns:
        dialer = client._endpoint.dialer
        monkeypatch.setattr(dialer, "begin", lambda *_: turns.step("handshake"))
        for port in (1, 2, 3):
            client.connect(("127.0.0.1", port), Unused())
        begun_at_once = len(turns.order)
        order = await turns.ends()

    assert begun_at_once == 0
    assert order.index("other task") in (1, 2)
