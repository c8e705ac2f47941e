"""P11: a busy caller whose reads end inside frames is not slow, but a trickling caller is."""

import time
from pathlib import Path

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.security.gateway.http2_client import HEALTH, Caller, lone_gateway


def test_a_busy_caller_whose_reads_end_inside_frames_stays(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("body_timeout = 0.5\n", "utf-8")
    with lone_gateway(tmp_path, "--config", str(config)) as gate, Caller(gate.grpc_port) as caller:
        started, kept, number = time.monotonic(), b"", 1
        while time.monotonic() - started < 2.5:
            call = caller.call(number, HEALTH)
            caller.send(kept + call[:-3])
            kept, number = call[-3:], number + 2
            time.sleep(0.01)
        caller.send(kept)
        caller.answered(number - 2)

        trickle = frame(Kind.PING, 0, 0, bytes(8))
        caller.send(trickle[:5])
        time.sleep(2.5)
        assert not caller.is_open()
