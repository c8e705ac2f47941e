"""P5: the memory that callers occupy at the gRPC port is bounded, with decoded headers."""

from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.security.gateway.http2_client import HEALTH, Caller, allowed, lone_gateway, memory

MIB = 1 << 20
BOUND = 64 * MIB
"""Bytes that all callers together can occupy, as docs/guides/gateway.md states."""


def test_requests_with_indexed_headers_occupy_little_memory(tmp_path: Path) -> None:
    # One indexed field of 4 kB, then requests of references only, three of them to this field.
    indexed = frame(
        *(Kind.HEADERS, 5, 1),
        b"\x83\x86\x84\x40\x0dauthorization\x7f" + b"\xa1\x1e" + 4000 * b"v",
    )
    static = [bytes([0x80 | each]) for each in (15, 16, 17, 18, 19, 20, 21, 22, 23, 24)]
    distinct = [b"".join(each) for size in range(4) for each in combinations(static, size)]
    requests = b"".join(
        [
            frame(Kind.HEADERS, 5, 2 * number + 3, b"\x83\x86\x84" + 3 * b"\xbe" + block)
            for number, block in enumerate(distinct)
        ]
    )
    with lone_gateway(tmp_path) as gate, ExitStack() as stack:
        assert allowed(gate)
        memory_before = memory(gate)
        for _ in range(30):
            caller = stack.enter_context(Caller(gate.grpc_port))
            caller.send(indexed + requests)
            caller.wait_response(2 * len(distinct) + 1)

        assert memory(gate) - memory_before < BOUND // 4
        assert allowed(gate)


def test_calls_that_never_end_occupy_bounded_memory(tmp_path: Path) -> None:
    # Each connection sends 1000 headers and as much data as the windows permit. No call ends.
    with lone_gateway(tmp_path) as gate, ExitStack() as stack:
        assert allowed(gate)
        memory_before = memory(gate)
        for _ in range(60):
            caller = stack.enter_context(Caller(gate.grpc_port))
            header = caller.header(HEALTH, ("authorization", 900 * "v"))
            again = caller.header(HEALTH, ("authorization", 900 * "v"))
            numbers = range(1, 2001, 2)
            sent = [
                frame(Kind.HEADERS, 4, each, header if each == 1 else again) for each in numbers
            ]
            body = [frame(Kind.DATA, 0, each, bytes(16_000)) for each in range(1, 33, 2)]
            with suppress(OSError):  # The port disconnects the caller that occupies the most.
                caller.send(b"".join(sent + body))

        assert memory(gate) - memory_before < 3 * BOUND  # This includes overhead of Python.
        assert allowed(gate)
