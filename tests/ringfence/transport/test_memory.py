"""The memory transport, on trio's virtual clock."""

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from ringfence.errors import ConfigError
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.memory import MemoryTransport
from ringfence.wire.errors import ErrorCode
from tests.ringfence.transport.memory_world import A, B, World, world


async def test_messages_arrive_in_order_after_the_delay(autojump_clock: MockClock) -> None:
    async with world(delay=0.01, jitter=0.05) as w:
        connection, log = w.connect()
        connection.send(b"early")
        await trio.sleep(1)
        payloads = [b"%d" % i for i in range(50)]
        for payload in payloads:
            connection.send(payload)
            w.a.flush()
        assert connection.unsent > 0
        await trio.sleep(1)

        assert log.messages == [b"early", *payloads]
        assert log.times == sorted(log.times)
        assert connection.unsent == 0
        assert connection.is_open


async def test_a_link_can_have_a_delay_of_its_own(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)
        w.network.set_delay(B, A, 0.2)
        sent = trio.current_time()
        connection.send(b"far")
        w.a.flush()
        await trio.sleep(1)

        assert log.times == [pytest.approx(sent + 0.4)]


async def test_messages_are_not_sent_before_a_flush(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)
        connection.send(b"waiting")
        await trio.sleep(1)
        assert log.messages == []

        w.a.flush()
        await trio.sleep(1)

        assert log.messages == [b"waiting"]


async def test_the_peer_receives_a_close_after_the_last_message(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)

        connection.send(b"last")
        connection.close(3, "enough")
        w.a.flush()
        await trio.sleep(1)

        assert w.accepted[0].messages == [b"last"]
        assert w.accepted[0].closed == (3, "enough")
        assert log.closed is None
        assert not connection.is_open


async def test_a_connection_to_an_address_without_a_listener_fails_at_once(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        _, log = w.connect(("nowhere", 1))

        await trio.sleep(1)

        assert log.closed == (TransportCode.UNREACHABLE, "no process listens at nowhere:1")


async def test_a_cut_link_makes_messages_wait_until_it_heals(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)

        w.network.cut(A, B)
        connection.send(b"patience")
        w.a.flush()
        await trio.sleep(20)
        assert log.messages == []
        w.network.heal(B, A)
        await trio.sleep(40)

        assert log.messages == [b"patience"]
        assert connection.is_open


async def test_a_long_cut_ends_both_sides_by_the_idle_timeout(autojump_clock: MockClock) -> None:
    async with world() as w:
        _, log = w.connect()
        await trio.sleep(1)

        w.network.cut(A, B)
        await trio.sleep(31)

        assert log.closed == (ErrorCode.IDLE, "idle timeout: b:1 went silent")
        assert w.accepted[0].closed == (ErrorCode.IDLE, "idle timeout: a:1 went silent")


async def test_over_a_cut_link_a_handshake_times_out(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.network.cut(A, B)
        began = trio.current_time()
        _, log = w.connect()

        await trio.sleep(10)

        reason = "handshake timed out (no answer from b:1)"
        assert log.closed == (TransportCode.HANDSHAKE_TIMEOUT, reason)
        assert log.closed_at == pytest.approx(began + 5)


async def test_a_handshake_whose_first_packets_were_lost_succeeds_after_a_cut(
    autojump_clock: MockClock,
) -> None:
    async with world(delay=0.0) as w:
        w.network.cut(A, B)
        connection, _ = w.connect()
        await trio.sleep(0.5)
        w.network.heal(A, B)
        await trio.sleep(0.09)
        assert not connection.is_open  # The packets after 0 and 0.2 s were lost.

        await trio.sleep(0.02)

        assert connection.is_open


async def test_a_crashed_transport_is_silent_and_its_successor_can_be_reached(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        old, old_log = w.connect()
        await trio.sleep(1)

        w.network.crash(B)
        old.send(b"hello?")
        w.a.flush()
        _, lost = w.connect()
        await trio.sleep(6)
        assert lost.closed is not None
        assert lost.closed[0] == TransportCode.HANDSHAKE_TIMEOUT
        await w.start_b()
        new, new_log = w.connect()
        new.send(b"hello")
        await trio.sleep(30)

        assert old_log.closed is not None
        assert old_log.closed[0] == ErrorCode.IDLE
        assert w.accepted[0].messages == []
        assert new_log.messages == [b"hello"]


async def test_a_reset_drops_messages_in_flight_and_closes_both_sides(
    autojump_clock: MockClock,
) -> None:
    async with world(delay=0.01) as w:
        connection, log = w.connect()
        await trio.sleep(1)
        connection.send(b"lost")
        w.a.flush()

        w.network.reset(A, B)
        await trio.sleep(1)

        assert not connection.is_open
        assert log.messages == w.accepted[0].messages == []
        for side in (log, w.accepted[0]):
            assert side.closed is not None
            assert side.closed[0] == TransportCode.UNREACHABLE
        again, _ = w.connect()
        await trio.sleep(1)
        assert again.is_open


async def test_messages_and_timers_of_a_paused_transport_wait(autojump_clock: MockClock) -> None:
    async with world(delay=0.01) as w:
        connection, log = w.connect()
        await trio.sleep(1)
        called: list[float] = []
        w.b.call_at(trio.current_time() + 0.1, lambda: called.append(trio.current_time()))
        w.network.pause(B)
        connection.send(b"knock")
        w.a.flush()
        await trio.sleep(0.3)
        assert w.accepted[0].messages == called == log.messages == []

        resumed = trio.current_time()
        w.network.resume(B)
        await trio.sleep(0.1)

        assert w.accepted[0].messages == log.messages == [b"knock"]
        assert called == [pytest.approx(resumed, abs=0.001)]


async def test_after_a_pause_a_handler_can_read_how_long_a_message_waited(
    autojump_clock: MockClock,
) -> None:
    async with world(delay=0.01) as w:
        connection, _ = w.connect()
        waits: list[int] = []
        await trio.sleep(1)
        w.accepted[0].on_message = lambda _: waits.append(w.b.held_up_ns)  # type: ignore[method-assign]
        for is_paused in (False, True, False):
            if is_paused:
                w.network.pause(B)
            connection.send(b"knock")
            w.a.flush()
            await trio.sleep(0.31)
            w.network.resume(B)
            await trio.sleep(0.1)

        assert waits == [
            pytest.approx(0, abs=1000),
            pytest.approx(300_000_000, abs=1000),  # It was on its way for 10 ms.
            pytest.approx(0, abs=1000),
        ]


async def test_a_stopping_transport_closes_its_connections(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        w = World(nursery)
        await nursery.start(w.a.run)
        scope = await w.start_b()
        _, log = w.connect()
        await trio.sleep(1)

        scope.cancel()
        await trio.sleep(1)
        _, late = w.connect()
        await trio.sleep(1)

        assert log.closed == (ErrorCode.DRAINING, "shutting down")
        assert late.closed == (TransportCode.UNREACHABLE, "no process listens at b:1")
        nursery.cancel_scope.cancel()


async def test_a_bug_in_a_handler_ends_its_connection_and_no_other(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        bad, bad_log = w.connect()
        good, good_log = w.connect()
        await trio.sleep(1)

        bad.send(b"fail")
        good.send(b"fine")
        w.a.flush()
        await trio.sleep(1)

        assert [type(bug) for bug in w.bugs] == [ZeroDivisionError]
        assert bad_log.closed == (ErrorCode.INTERNAL, "internal error")
        assert good_log.messages == [b"fine"]


async def test_two_transports_cannot_have_one_address(autojump_clock: MockClock) -> None:
    async with world() as w:
        with pytest.raises(ConfigError, match="in use"):
            await w.network.transport(A, on_bug=w.bugs.append).run()


async def test_calls_are_made_soon_and_at_their_time(autojump_clock: MockClock) -> None:
    async with world() as w:
        made: list[str] = []
        now = w.a.now()
        w.a.call_at(now + 2, partial(made.append, "late"))
        w.a.call_at(now + 1, partial(made.append, "early"))
        w.a.call_at(now + 1, partial(made.append, "never")).cancel()
        w.a.call_soon(partial(made.append, "soon"))

        await trio.sleep(3)

        assert made == ["soon", "early", "late"]


async def test_one_seed_gives_one_history(autojump_clock: MockClock) -> None:
    histories = []
    for _ in range(2):
        async with world(jitter=0.5) as w:
            connection, log = w.connect()
            began = trio.current_time()
            for i in range(20):
                connection.send(b"%d" % i)
                w.a.flush()
                await trio.sleep(0.1)
            await trio.sleep(5)
            histories.append([round(at - began, 6) for at in log.times])

    assert histories[0] == histories[1]
    assert isinstance(w.a, MemoryTransport)
