"""UDP transports over real sockets on loopback: the same tests on asyncio, uvloop and trio."""

import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TypeAlias

import anyio
import anyio.lowlevel
import pytest
from trio.lowlevel import in_trio_run

from ringfence.errors import ConfigError
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Address, Connection
from ringfence.transport.tls.certificate_authority import issue, new_authority, self_signed
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.transport.udp import receive_delay
from ringfence.transport.udp.udp_asyncio import AsyncioUdp
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire.errors import ErrorCode

BACKENDS = ["trio", "asyncio", "uvloop"]

NODE = """
import sys
from datetime import UTC, datetime
import trio
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.udp.udp_trio import TrioUdp

class Silent:
    def on_open(self, connection): pass
    def on_message(self, payload): pass
    def on_close(self, code, reason): pass

async def main():
    node = TrioUdp(("127.0.0.1", 0), on_bug=print, server=self_signed(datetime.now(UTC)),
                   accept=lambda connection: Silent())
    async with trio.open_nursery() as nursery:
        _, port = await nursery.start(node.run)
        print(port, flush=True)

trio.run(main)
"""


class Log:
    """Handler that records its calls; `wait_until` waits for them."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.echoes = echoes
        self.connection: Connection | None = None
        self.messages: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.changed = anyio.Event()

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self._notify()

    def on_message(self, payload: bytes) -> None:
        self.messages.append(payload)
        if self.echoes:
            assert self.connection is not None
            self.connection.send(payload)
        self._notify()

    def on_close(self, code: int, reason: str) -> None:
        self.closed = code, reason
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await self.changed.wait()


def report(error: Exception) -> None:
    raise error


Shell: TypeAlias = TrioUdp | AsyncioUdp


def shell() -> type[TrioUdp] | type[AsyncioUdp]:
    return TrioUdp if in_trio_run() else AsyncioUdp


def node(tls: ServerTls | None = None) -> Shell:
    return shell()(
        ("127.0.0.1", 0),
        on_bug=report,
        server=tls or self_signed(datetime.now(UTC)),
        accept=lambda _: Log(echoes=True),
    )


def app(tls: ClientTls | None = None) -> Shell:
    return shell()(on_bug=report, client=tls or ClientTls(verify=False))


@asynccontextmanager
async def running(*transports: Shell) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        for transport in transports:
            await tasks.start(transport.run)
        yield
        tasks.cancel_scope.cancel()


def run(backend: str, main: Callable[[], Awaitable[None]]) -> None:
    if backend == "uvloop":
        anyio.run(main, backend_options={"use_uvloop": True})
    else:
        anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_messages_are_sent_and_echoed_over_a_verified_connection(backend: str) -> None:
    now = datetime.now(UTC)
    ca, ca_key = new_authority(now, 2)
    tls = ServerTls(*issue(ca, ca_key, [], [], now, 1))

    async def main() -> None:
        server, client = node(tls), app(ClientTls(ca))
        async with running(server, client):
            log = Log()
            connection = client.connect(server.address, log)
            payloads = [b"x", bytes(50_000), b"last"]
            for payload in payloads:
                connection.send(payload)
            await log.wait_until(lambda: len(log.messages) == 3)
            assert log.messages == payloads

    run(backend, main)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps datagrams")
@pytest.mark.parametrize("backend", BACKENDS)
def test_datagrams_of_a_suspended_process_carry_their_waiting_time(backend: str) -> None:
    async def main() -> None:
        server = app()
        waits: list[int] = []
        taken: list[int] = []
        news = anyio.Event()

        def take(_: bytes, __: Address) -> None:
            waits.append(server.held_up_ns)
            taken.append(time.monotonic_ns())
            news.set()

        async def wait_for(count: int) -> None:
            nonlocal news
            while len(waits) < count:
                await news.wait()
                news = anyio.Event()

        server.receive_sealed(take)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, anyio.fail_after(30):
            async with running(server):
                address = "127.0.0.1", server.address[1]
                # The kernel starts to time-stamp datagrams a moment after the request. Until
                # then, a datagram gets its time stamp when it is read.
                while not waits or waits[-1] < 2_000_000:
                    sender.sendto(b"0", address)
                    time.sleep(0.002)  # noqa: ASYNC251 - nothing else may run
                    await wait_for(len(waits) + 1)
                first = len(waits)
                before: list[int] = []
                after: list[int] = []
                for payload, pause in ((b"1", 0.06), (b"2", 0.03)):
                    before.append(time.monotonic_ns())
                    sender.sendto(payload, address)
                    after.append(time.monotonic_ns())
                    time.sleep(pause)  # noqa: ASYNC251 - nothing else may run
                resumed = time.monotonic_ns()
                await wait_for(first + 2)
        assert resumed - after[0] >= 90_000_000
        # A datagram gets its time stamp while it is sent, and is read before `take` is called.
        # The time stamp is of the wall clock, whose rate may be adjusted.
        times = zip(waits[first:], before, after, taken[first:], strict=True)
        for wait, not_before, not_after, read in times:
            assert resumed - not_after - 1_000_000 <= wait <= read - not_before + 1_000_000

    run(backend, main)


def test_a_step_of_the_wall_clock_is_not_counted_as_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 1_000_000_000

    class Clock:
        wall, monotonic = 1000 * second, 10 * second

        def time_ns(self) -> int:
            return self.wall

        def monotonic_ns(self) -> int:
            return self.monotonic

    clock = Clock()
    monkeypatch.setattr(receive_delay, "time", clock)
    delay = receive_delay.ReceiveDelay()

    def delay_of(stamp: int) -> int:
        note = (0, 0, struct.pack("@ll", stamp // second, stamp % second))
        return delay.measure([note])

    arrived_at = clock.wall
    clock.wall += second // 2
    clock.monotonic += second // 2
    assert delay_of(arrived_at) == second // 2
    clock.wall += 60 * second  # An operator sets the clock.
    assert delay_of(arrived_at) == second // 2
    assert delay_of(clock.wall - 2_000_000) == 2_000_000
    clock.wall -= 120 * second
    assert delay_of(arrived_at) == 0
    assert delay.measure([]) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_name_is_resolved_and_goodbyes_arrive(backend: str) -> None:
    async def main() -> None:
        client, log = app(), Log()
        async with running(client):
            server = node()
            async with running(server):
                client.connect(("localhost", server.address[1]), log).send(b"hello")
                await log.wait_until(lambda: log.messages == [b"hello"])
            await log.wait_until(lambda: log.closed is not None)
            assert log.closed == (ErrorCode.DRAINING, "shutting down")

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_name_that_does_not_exist_is_reported(backend: str) -> None:
    async def main() -> None:
        client, log = app(), Log()
        async with running(client):
            client.connect(("no-such-host.invalid", 7600), log)
            await log.wait_until(lambda: log.closed is not None)
            assert log.closed is not None
            assert log.closed[0] == TransportCode.UNREACHABLE

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_timers_and_soon_calls_are_made(backend: str) -> None:
    made: dict[str, float] = {}

    async def main() -> None:
        client, done = app(), anyio.Event()
        async with running(client):
            began = client.now()

            def make(name: str) -> None:
                made[name] = client.now() - began
                if {"soon", "later"} <= made.keys():
                    done.set()

            client.call_at(began + 0.02, lambda: make("later"))
            client.call_at(began + 0.01, lambda: make("cancelled")).cancel()
            client.call_soon(lambda: make("soon"))
            with anyio.fail_after(30):
                await done.wait()

    run(backend, main)
    # A busy machine may delay both calls until they are made together, in either order.
    assert made.keys() == {"soon", "later"}
    assert made["later"] >= 0.018  # uvloop rounds to milliseconds.


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_address_that_cannot_be_bound_raises_a_clear_error(backend: str) -> None:
    def bind(address: Address) -> None:
        run(backend, lambda: shell()(address, on_bug=report).run())

    with pytest.raises(ConfigError, match="no interface of this host has that address"):
        bind(("203.0.113.1", 0))
    with pytest.raises(ConfigError, match="no such host name or address"):
        bind(("no-such-host.invalid", 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_node_is_noticed_at_the_next_message(backend: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = "127.0.0.1", int(process.stdout.readline())

    async def main() -> None:
        client, log = app(), Log()
        async with running(client):
            connection = client.connect(address, log)
            await log.wait_until(lambda: log.connection is not None)
            process.send_signal(signal.SIGKILL)
            process.wait()

            connection.send(b"anybody?")
            client.flush()
            with anyio.fail_after(30):
                await log.wait_until(lambda: log.closed is not None)

            reason = f"no process listens at 127.0.0.1:{address[1]}"
            assert log.closed == (TransportCode.UNREACHABLE, reason)

    try:
        run(backend, main)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_sealed_datagrams_are_sent_in_both_directions(backend: str, host: str) -> None:
    async def main() -> None:
        server, client = node(), app()
        received: list[bytes] = []
        server.receive_sealed(lambda datagram, source: server.send_sealed(datagram + b"!", source))
        client.receive_sealed(lambda datagram, source: received.append(datagram))
        async with running(server, client):
            with anyio.fail_after(30):
                while not received:
                    client.send_sealed(b"\x00ping", (host, server.address[1]))
                    await anyio.lowlevel.checkpoint()
            assert received[0] == b"\x00ping!"

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unreachable_peer_does_not_disturb_other_connections(backend: str) -> None:
    async def main() -> None:
        server, client = node(), app()
        received = anyio.Event()
        client.receive_sealed(lambda datagram, source: received.set())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            closed.bind(("127.0.0.1", 0))
            no_member: Address = closed.getsockname()
        async with running(server, client):
            client.send_sealed(b"\x00anybody?", no_member)
            for _ in range(3):  # The kernel's ICMP error arrives at once.
                await anyio.lowlevel.checkpoint()

            server.send_sealed(b"\x00hello", ("127.0.0.1", client.address[1]))

            with anyio.fail_after(30):
                await received.wait()

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unknown_name_for_sealed_datagrams_is_counted(backend: str) -> None:
    async def main() -> None:
        client = app()
        async with running(client):
            client.send_sealed(b"\x00ping", ("no-such-host.invalid", 7600))
            with anyio.fail_after(30):
                while not client.refusals["name_not_resolved"]:
                    await anyio.lowlevel.checkpoint()

    run(backend, main)
