"""P7: connections of the gRPC port are bounded per address and in total; errors are visible."""

import json
import resource
from contextlib import ExitStack
from pathlib import Path

from tests.ringfence.gateway.processes import fetch, until
from tests.security.gateway.http2_client import (
    HEALTH,
    IN_TOTAL,
    PER_ADDRESS,
    Caller,
    allowed,
    lone_gateway,
    open_files,
    raise_descriptor_limit,
    worker_of,
)


def test_one_address_cannot_exceed_its_bound_and_other_addresses_are_served(tmp_path: Path) -> None:
    raise_descriptor_limit()
    with (
        lone_gateway(tmp_path) as gate,
        Caller(gate.grpc_port, "127.0.0.1") as healthy,
        ExitStack() as stack,
    ):
        callers = [stack.enter_context(Caller(gate.grpc_port)) for _ in range(PER_ADDRESS + 64)]
        assert allowed(gate)  # Its connection is accepted after all of those.
        until(lambda: sum([each.is_open() for each in callers]) <= PER_ADDRESS)
        healthy.send(healthy.call(1, HEALTH))
        healthy.wait_response(1)


def test_at_the_total_bound_idle_connections_are_closed_for_new_ones(tmp_path: Path) -> None:
    raise_descriptor_limit()
    with lone_gateway(tmp_path) as gate, ExitStack() as stack:
        for each in range(IN_TOTAL + 64):
            host = f"127.0.0.{2 + each // 200}"
            caller = stack.enter_context(Caller(gate.grpc_port, host))
            if not each % 50:
                caller.send(caller.call(1, HEALTH))
                caller.wait_response(1)
        assert allowed(gate)
        until(lambda: open_files(gate) < IN_TOTAL + 48)


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("idle_timeout = 0.5\n", "utf-8")
    with lone_gateway(tmp_path, "--config", str(config)) as gate, Caller(gate.grpc_port) as caller:
        caller.send(caller.call(1, HEALTH))
        assert caller.goaway_code() == 0


def test_accept_errors_are_logged_and_counted_and_the_port_recovers(tmp_path: Path) -> None:
    with lone_gateway(tmp_path) as gate, ExitStack() as stack:
        assert allowed(gate)
        worker = worker_of(gate)
        before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (open_files(gate) + 4, before[1]))
        for _ in range(20):
            stack.enter_context(Caller(gate.grpc_port))
        until(lambda: "grpc port: accept failed" in gate.log)

        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)

        until(lambda: allowed(gate))
        counters = json.loads(fetch(f"{gate.url}/v1/counters").body)
        assert counters["refused_accept_error"] >= 1
