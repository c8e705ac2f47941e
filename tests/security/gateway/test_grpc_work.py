"""P6: frames that bring no call must cost the port little, and in large numbers the connection."""

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

CALM = 11
"""HTTP/2's error code ENHANCE_YOUR_CALM."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    with lone_gateway(tmp_path_factory.mktemp("gateway")) as gate:
        yield gate


def open_streams(caller: Caller, amount: int) -> None:
    """Begin calls, and have no window for their answers."""
    none = struct.pack(">HI", 4, 0)
    calls = b"".join([caller.call(2 * each + 1, HEALTH) for each in range(amount)])
    caller.send(frame(Kind.SETTINGS, 0, 0, none) + calls)


def settings(caller: Caller) -> bytes:
    """2730 values of the initial window in one frame, 20 times."""
    return 20 * frame(
        *(Kind.SETTINGS, 0, 0), b"".join([struct.pack(">HI", 4, each % 2) for each in range(2730)])
    )


def updates(caller: Caller) -> bytes:
    return 25_000 * frame(Kind.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


@pytest.mark.parametrize("flood", [settings, updates])
def test_other_callers_are_answered_meanwhile(
    gate: Gateway, flood: Callable[[Caller], bytes]
) -> None:
    with Caller(gate.grpc_port) as attacker, Caller(gate.grpc_port, "127.0.0.1") as healthy:
        healthy.send(healthy.call(1, HEALTH))
        healthy.answered(1)
        open_streams(attacker, 990)
        time.sleep(0.2)  # The streams are to be open when the flood comes.
        sent = flood(attacker)

        def attack() -> None:
            with suppress(OSError):
                attacker.send(sent)

        thread = Thread(target=attack)
        thread.start()
        worst = 0.0
        for number in range(3, 43, 2):
            healthy.send(healthy.call(number, HEALTH))
            worst = max(worst, healthy.answered(number))
            time.sleep(0.01)
        thread.join(TIMEOUT)

    assert worst < 1.0


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


def unknown(caller: Caller) -> bytes:
    return 5000 * frame(0xBE, 0, 0, b"")


@pytest.mark.parametrize("flood", [resets, empty_data, pings, empty_continuations, unknown])
def test_many_frames_that_bring_no_call_end_the_connection(
    gate: Gateway, flood: Callable[[Caller], bytes]
) -> None:
    with Caller(gate.grpc_port) as attacker:
        attacker.socket.settimeout(5)
        try:
            attacker.send(flood(attacker))
        except ConnectionError:
            return  # Closed before we were done, so that the goodbye may be lost.
        assert attacker.goodbye() in (CALM, None)


def test_a_caller_that_pings_and_resets_now_and_then_stays(gate: Gateway) -> None:
    with Caller(gate.grpc_port) as caller:
        numbers = count(1, 2)
        for _ in range(800):
            asked, dropped = next(numbers), next(numbers)
            caller.send(
                caller.call(asked, HEALTH)
                + caller.call(dropped, HEALTH)
                + frame(Kind.RST_STREAM, 0, dropped, bytes(4))
                + frame(Kind.PING, 0, 0, bytes(8))
            )
            caller.answered(asked)
