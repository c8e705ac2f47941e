"""P3: calls of health `Watch`, which need no token, must not use up the room for other calls."""

from contextlib import ExitStack
from pathlib import Path

from tests.security.gateway.http2_client import HEALTH, WATCH, Caller, allowed, lone_gateway


def test_watches_without_a_token_leave_room_for_calls(tmp_path: Path) -> None:
    with lone_gateway(tmp_path) as gate, ExitStack() as stack:
        for _ in range(5):
            caller = stack.enter_context(Caller(gate.grpc_port))
            caller.send(b"".join([caller.call(2 * each + 1, WATCH) for each in range(900)]))
            caller.send(caller.call(2001, HEALTH))
            caller.wait_response(2001)  # The port has then accepted all watches.

        assert all([allowed(gate) for _ in range(5)])
