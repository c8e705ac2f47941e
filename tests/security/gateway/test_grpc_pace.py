"""P11: a busy caller is not slow when reads end inside its frames; a trickling caller is slow."""

import time
from pathlib import Path

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.security.gateway.http2_client import HEALTH, Caller, lone_gateway


def test_a_busy_caller_whose_frames_are_split_stays_connected_until_it_trickles(
    tmp_path: Path,
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("body_timeout = 0.5\n", "utf-8")
    with lone_gateway(tmp_path, "--config", str(config)) as gate, Caller(gate.grpc_port) as caller:
        started, rest, number = time.monotonic(), b"", 1
        while time.monotonic() - started < 2.5:
            call = caller.call(number, HEALTH)
            caller.send(rest + call[:-3])
            rest, number = call[-3:], number + 2
            time.sleep(0.01)
        caller.send(rest)
        caller.wait_response(number - 2)

        trickle = frame(Kind.PING, 0, 0, bytes(8))
        caller.send(trickle[:5])
        time.sleep(2.5)
        assert not caller.is_open()
