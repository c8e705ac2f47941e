"""P5: what callers make the gRPC port keep must be bounded, decoded headers included."""

from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.security.gateway.http2_client import HEALTH, Caller, allowed, lone_gateway, memory

MIB = 1 << 20
BOUND = 64 * MIB
"""What docs/guides/gateway.md says that all callers together can have the port keep."""


def test_headers_that_are_cached_cost_little(tmp_path: Path) -> None:
    # One indexed field of 4 kB, then requests of references alone that name it three times.
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
        quiet = memory(gate)
        for _ in range(30):
            caller = stack.enter_context(Caller(gate.grpc_port))
            caller.send(indexed + requests)
            caller.answered(2 * len(distinct) + 1)

        assert memory(gate) - quiet < BOUND // 4
        assert allowed(gate)


def test_calls_that_never_end_keep_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    # Each connection sends 1000 headers and as much of bodies as the windows let it, and no end.
    with lone_gateway(tmp_path) as gate, ExitStack() as stack:
        assert allowed(gate)
        quiet = memory(gate)
        for _ in range(60):
            caller = stack.enter_context(Caller(gate.grpc_port))
            header = caller.header(HEALTH, ("authorization", 900 * "v"))
            again = caller.header(HEALTH, ("authorization", 900 * "v"))
            numbers = range(1, 2001, 2)
            sent = [
                frame(Kind.HEADERS, 4, each, header if each == 1 else again) for each in numbers
            ]
            body = [frame(Kind.DATA, 0, each, bytes(16_000)) for each in range(1, 33, 2)]
            with suppress(OSError):  # The port disconnects the caller that has it keep most.
                caller.send(b"".join(sent + body))

        assert memory(gate) - quiet < 3 * BOUND  # Python's own share included.
        assert allowed(gate)
