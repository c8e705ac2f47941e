"""P6: frames without a call must cost the port little; many of them end the connection."""

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Thread

import pytest

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.ringfence.gateway.processes import TIMEOUT, Gateway
from tests.security.gateway.http2_client import HEALTH, Caller, lone_gateway

ENHANCE_YOUR_CALM = 11
"""Error code of HTTP/2."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    with lone_gateway(tmp_path_factory.mktemp("gateway")) as gate:
        yield gate


def open_streams(caller: Caller, amount: int) -> None:
    """Start calls, with a window of zero for their responses."""
    zero_window = struct.pack(">HI", 4, 0)
    calls = b"".join([caller.call(2 * each + 1, HEALTH) for each in range(amount)])
    caller.send(frame(Kind.SETTINGS, 0, 0, zero_window) + calls)


def settings(caller: Caller) -> bytes:
    """Return 20 frames, each with 2730 values of the initial window."""
    return 20 * frame(
        *(Kind.SETTINGS, 0, 0), b"".join([struct.pack(">HI", 4, each % 2) for each in range(2730)])
    )


def window_updates(caller: Caller) -> bytes:
    return 25_000 * frame(Kind.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


@pytest.mark.parametrize("flood", [settings, window_updates])
def test_other_callers_get_responses_during_a_flood(
    gate: Gateway, flood: Callable[[Caller], bytes]
) -> None:
    with Caller(gate.grpc_port) as attacker, Caller(gate.grpc_port, "127.0.0.1") as healthy:
        healthy.send(healthy.call(1, HEALTH))
        healthy.wait_response(1)
        open_streams(attacker, 990)
        time.sleep(0.2)  # The streams must be open when the flood starts.
        frames = flood(attacker)

        def attack() -> None:
            with suppress(OSError):
                attacker.send(frames)

        thread = Thread(target=attack)
        thread.start()
        slowest = 0.0
        for number in range(3, 43, 2):
            healthy.send(healthy.call(number, HEALTH))
            slowest = max(slowest, healthy.wait_response(number))
            time.sleep(0.01)
        thread.join(TIMEOUT)

    assert slowest < 1.0


def resets(caller: Caller) -> bytes:
    numbers = range(1, 10_001, 2)
    return b"".join(
        [caller.call(each, HEALTH) + frame(Kind.RST_STREAM, 0, each, bytes(4)) for each in numbers]
    )


def empty_data(caller: Caller) -> bytes:
    header = frame(Kind.HEADERS, 4, 1, caller.header(HEALTH))
    return header + 5000 * frame(Kind.DATA, 0, 1, b"")


def pings(caller: Caller) -> bytes:
    return 5000 * frame(Kind.PING, 0, 0, bytes(8))


def empty_continuations(caller: Caller) -> bytes:
    return frame(Kind.HEADERS, 0, 1, b"") + 5000 * frame(Kind.CONTINUATION, 0, 1, b"")


def unknown_frames(caller: Caller) -> bytes:
    return 5000 * frame(0xBE, 0, 0, b"")


@pytest.mark.parametrize("flood", [resets, empty_data, pings, empty_continuations, unknown_frames])
def test_many_frames_without_a_call_end_the_connection(
    gate: Gateway, flood: Callable[[Caller], bytes]
) -> None:
    with Caller(gate.grpc_port) as attacker:
        attacker.socket.settimeout(5)
        try:
            attacker.send(flood(attacker))
        except ConnectionError:
            return  # The port closed during the send, so the GOAWAY may be lost.
        assert attacker.goaway_code() in (ENHANCE_YOUR_CALM, None)


def test_a_caller_that_sometimes_pings_and_resets_stays_connected(gate: Gateway) -> None:
    with Caller(gate.grpc_port) as caller:
        numbers = count(1, 2)
        for _ in range(800):
            completed, cancelled = next(numbers), next(numbers)
            caller.send(
                caller.call(completed, HEALTH)
                + caller.call(cancelled, HEALTH)
                + frame(Kind.RST_STREAM, 0, cancelled, bytes(4))
                + frame(Kind.PING, 0, 0, bytes(8))
            )
            caller.wait_response(completed)
