"""P7: waiting requests at `/v1/acquire` are bounded; further requests are denied immediately."""

import json
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.node.end_to_end.test_serve import started
from tests.ringfence.gateway.processes import TIMEOUT, fetch, gateway, until

MAX_PER_CALLER = 250
"""Waiting requests per caller, as docs/guides/gateway.md states."""
CHECK = {"domain": "api", "descriptors": [{"client": "x"}]}
JSON = {"Content-Type": "application/json"}


def test_waiting_requests_above_the_bound_per_caller_are_denied_immediately(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("max_wait = 120\n", "utf-8")
    rules = tmp_path / "api.yaml"
    rules.write_text(
        "domain: api\n"
        "descriptors:\n"
        "  - key: client\n"
        "    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: sliding_window_log}\n",
        "utf-8",
    )
    body = json.dumps({**CHECK, "max_wait": 100}).encode()
    head = "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with (
        started(tmp_path, {"a": ["--name", "a", "--rules", str(rules)]}) as running,
        gateway(tmp_path, running["a"].url, "--config", str(config)) as gate,
        ExitStack() as stack,
    ):
        fetch(f"{gate.url}/v1/check", body=json.dumps(CHECK).encode(), headers=JSON)
        connections = []
        for _ in range(MAX_PER_CALLER + 20):
            connection = socket.create_connection(("127.0.0.1", gate.port), timeout=TIMEOUT)
            stack.enter_context(connection).sendall(request)
            connection.setblocking(False)
            connections.append(connection)

        answers: list[bytes] = []

        def denied_count() -> int:
            for each in connections:
                with suppress(BlockingIOError):
                    answers.append(each.recv(65_536))
            return sum([each.startswith(b"HTTP/1.1 429") for each in answers])

        until(lambda: denied_count() == 20)
        assert fetch(f"{gate.url}/healthz").status == 200
