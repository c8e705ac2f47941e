"""P7: connections of the HTTP port are bounded per address and in total, and idle ones closed."""

from contextlib import ExitStack
from pathlib import Path

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.ringfence.gateway.processes import fetch, until
from tests.security.gateway.http2_client import (
    IN_TOTAL,
    PER_ADDRESS,
    Caller,
    lone_gateway,
    open_files,
    raise_descriptor_limit,
)


def test_one_address_cannot_exceed_its_bound_and_the_health_page_is_served(tmp_path: Path) -> None:
    raise_descriptor_limit()
    config = tmp_path / "gateway.toml"
    config.write_text('trusted_proxies = ["127.0.0.1"]\n', "utf-8")
    with lone_gateway(tmp_path, "--config", str(config)) as gate, ExitStack() as stack:
        callers = [stack.enter_context(Caller(gate.port)) for _ in range(PER_ADDRESS + 64)]
        assert fetch(f"{gate.url}/healthz").status == 200
        until(lambda: sum([each.is_open() for each in callers]) <= PER_ADDRESS)
        trusted = [stack.enter_context(Caller(gate.port, "127.0.0.1")) for _ in range(300)]
        assert fetch(f"{gate.url}/healthz").status == 200
        assert all([each.is_open() for each in trusted])


def test_idle_connections_are_closed_for_new_ones_at_the_total_bound(tmp_path: Path) -> None:
    raise_descriptor_limit()
    config = tmp_path / "gateway.toml"
    config.write_text("header_timeout = 0.5\n", "utf-8")
    with lone_gateway(tmp_path, "--config", str(config)) as gate, ExitStack() as stack:
        for each in range(IN_TOTAL + 200):
            stack.enter_context(Caller(gate.port, f"127.0.0.{2 + each // 200}"))

        assert fetch(f"{gate.url}/healthz").status == 200
        until(lambda: open_files(gate) < IN_TOTAL)


def test_silent_connections_are_closed_earlier_than_idle_connections(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("header_timeout = 0.5\nidle_timeout = 2.0\nmax_wait = 0.1\n", "utf-8")
    with lone_gateway(tmp_path, "--config", str(config)) as gate:
        silent = Caller(gate.port)  # It sends nothing, not even a preface.
        with Caller(gate.port) as idle:
            idle.send(frame(Kind.PING, 0, 0, bytes(8)))
            until(lambda: not silent.is_open())
            assert idle.is_open()
            until(lambda: not idle.is_open())
        silent.socket.close()
