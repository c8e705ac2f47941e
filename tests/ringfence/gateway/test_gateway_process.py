"""The gateway as a process: both ports, hostile clients, tokens, and shutdown."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.config.key_files import revoke_token, write_keys
from ringfence.wire.credentials import token_digest
from tests.node.end_to_end.test_serve import (
    ROOT,
    TIMEOUT,
    asked,
    free_port,
    nodes,
    ringfence,
    started,
)
from tests.ringfence.gateway.processes import (
    Gateway,
    fetch,
    free_tcp_ports,
    gateway,
    is_up,
    program,
    until,
)

JSON = {"Content-Type": "application/json"}
SECRET = bytes(range(16))
BEARER = {"Authorization": f"Bearer app.{SECRET.hex()}"}
OBSERVER = {"Authorization": f"Bearer looker.{SECRET.hex()}"}
TOKENS = (
    f'[tokens.app]\ndigest = "{token_digest(SECRET).hex()}"\nscopes = ["check", "reset"]\n'
    f'[tokens.looker]\ndigest = "{token_digest(SECRET).hex()}"\nscopes = ["observe"]\n'
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway with tokens before one node, for all tests that do not stop it."""
    directory = tmp_path_factory.mktemp("gateway")
    tokens = directory / "tokens.toml"
    tokens.write_text(TOKENS, "utf-8")
    flags = ("--tokens", str(tokens), "--workers", "2")
    with (
        nodes(directory, "a", amount=3) as running,
        gateway(directory, running["a"].url, *flags) as gate,
    ):
        yield gate


def check(client: str) -> bytes:
    return json.dumps({"domain": "api", "descriptors": [{"client": client}]}).encode()


def should_rate_limit(client: str) -> rls_pb2.RateLimitRequest:
    request = rls_pb2.RateLimitRequest(domain="api")
    request.descriptors.add().entries.add(key="client", value=client)
    return request


def test_http_and_grpc_share_one_budget_over_all_workers(shared: Gateway) -> None:
    metadata = [("authorization", BEARER["Authorization"])]
    with grpc.insecure_channel(shared.grpc) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        over_grpc = [
            stub.ShouldRateLimit(should_rate_limit("x"), timeout=TIMEOUT, metadata=metadata)
            for _ in range(2)
        ]
    over_http = [
        json.loads(fetch(f"{shared.url}/v1/check", body=check("x"), headers=JSON | BEARER).body)
        for _ in range(2)
    ]

    assert [each.statuses[0].limit_remaining for each in over_grpc] == [2, 1]
    assert [(each["allowed"], each["remaining"]) for each in over_http] == [(True, 0), (False, 0)]


def test_requests_need_a_token_with_the_right_scope(shared: Gateway) -> None:
    def status(path: str, headers: dict[str, str]) -> int:
        return fetch(f"{shared.url}{path}", body=check("t"), headers=JSON | headers).status

    wrong = {"Authorization": "Bearer app." + "00" * 16}
    assert [status("/v1/check", each) for each in ({}, wrong, {"Authorization": "Basic x"})] == [
        401
    ] * 3
    assert [status("/v1/check", OBSERVER), status("/v1/peek", OBSERVER)] == [403, 200]
    assert [status("/v1/reset", OBSERVER), status("/v1/reset", BEARER)] == [403, 200]
    assert fetch(f"{shared.url}/healthz").status == 200


def test_a_slot_is_released_by_another_worker_or_connection(shared: Gateway) -> None:
    limit = {"limit": "1 concurrent", "key": ["job"]}

    def call(path: str, body: object) -> dict[str, object]:
        body = json.dumps(body).encode()
        reply = fetch(f"{shared.url}{path}", body=body, headers=JSON | BEARER)
        assert reply.status == 200, reply.body
        answer: dict[str, object] = json.loads(reply.body)
        return answer

    for _ in range(8):  # Each call opens a connection, which either of the two workers accepts.
        slots = {"slots": call("/v1/acquire", limit)["slots"]}
        assert not call("/v1/check", limit)["allowed"]
        assert call("/v1/renew", slots) == {"renewed": True, "slots_expire_after": 60.0}
        assert call("/v1/release", slots) == {"released": 1}
        assert call("/v1/release", slots)["released"] == 0
        assert call("/v1/renew", slots)["renewed"] is False


def test_a_revoked_token_is_refused_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(TOKENS, "utf-8")
    flags = ("--tokens", str(tmp_path / "tokens.toml"))
    with gateway(tmp_path, "ringfence://127.0.0.1:1", *flags, ready=False) as running:

        def status() -> int | None:
            try:
                headers = {"authorization": f"Bearer looker.{SECRET.hex()}"}
                return fetch(f"{running.url}/v1/counters", headers=headers).status
            except OSError:
                return None

        until(lambda: status() == 200)
        revoke_token(tmp_path, "looker")
        until(lambda: status() == 401)


def test_a_path_with_invalid_bytes_is_not_treated_as_the_root(
    shared: Gateway,
) -> None:
    sent = BEARER | {"X-Forwarded-Uri": "/login?\xff"}

    assert fetch(f"{shared.url}/v1/auth", headers=sent).status == 429


def test_grpc_errors_state_the_reason(shared: Gateway) -> None:
    metadata = [("authorization", BEARER["Authorization"])]
    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    with grpc.insecure_channel(shared.grpc) as channel:
        ask = channel.unary_unary(path)

        def refusal(payload: bytes, metadata: list[tuple[str, str]]) -> grpc.StatusCode:
            with pytest.raises(grpc.RpcError) as caught:
                ask(payload, timeout=TIMEOUT, metadata=metadata)
            code = caught.value.code()
            assert isinstance(code, grpc.StatusCode)
            return code

        valid = should_rate_limit("g").SerializeToString()
        observer = [("authorization", OBSERVER["Authorization"])]
        assert refusal(valid, []) is grpc.StatusCode.UNAUTHENTICATED
        assert refusal(valid, observer) is grpc.StatusCode.PERMISSION_DENIED
        assert refusal(b"", metadata) is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal(b"\xff\xff\xff", metadata) is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal(bytes(70_000), metadata) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask(valid, timeout=TIMEOUT, metadata=metadata)


def test_the_health_service_accepts_the_service_names_that_proxies_send(shared: Gateway) -> None:
    with grpc.insecure_channel(shared.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def send_raw(shared: Gateway, sent: bytes, *, until_closed: bool = True) -> bytes:
    """Send bytes; return what the gateway sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", shared.port), timeout=TIMEOUT) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
            if not until_closed:
                break
        return received


POST = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_too_large_or_invalid_requests_are_refused_and_the_gateway_stays_available(
    shared: Gateway,
) -> None:
    bearer = f"Authorization: {BEARER['Authorization']}\r\n".encode()
    huge = send_raw(
        shared, POST + bearer + b"Connection: close\r\nContent-Length: 99999999\r\n\r\n{"
    )
    endless = send_raw(
        shared,
        POST
        + bearer
        + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"10000\r\n"
        + b" " * 65_536
        + b"\r\n"
        + b"10000\r\n"
        + b" " * 65_536
        + b"\r\n",
    )
    headers = send_raw(
        shared, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n"
    )
    garbage = send_raw(shared, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    broken = fetch(f"{shared.url}/v1/check", body=b'{"domain', headers=JSON | BEARER)

    assert huge.startswith(b"HTTP/1.1 413")
    assert endless.startswith(b"HTTP/1.1 413")
    assert headers.startswith(b"HTTP/1.1 431")
    assert garbage == b"" or garbage.startswith(b"HTTP/1.1 400")
    assert broken.status == 400
    assert fetch(f"{shared.url}/healthz").status == 200


def test_slow_clients_are_disconnected(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running:
        config = tmp_path / "gateway.toml"
        config.write_text("header_timeout = 0.3\nbody_timeout = 0.3\n", "utf-8")
        with gateway(tmp_path, running["a"].url, "--config", str(config)) as gate:
            slow_headers = send_raw(gate, b"GET /healthz HTTP/1.1\r\nHost:")
            slow_body = send_raw(gate, POST + b"Content-Length: 10\r\n\r\n{")

            assert slow_headers == b"" or slow_headers.startswith(b"HTTP/1.1 408")
            assert slow_body.startswith(b"HTTP/1.1 408")
            counters = json.loads(fetch(f"{gate.url}/v1/counters").body)
            assert counters["refused_request_timeout"] == 1


def test_http_2_works_without_an_upgrade(shared: Gateway) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = bytes.fromhex("000000040000000000")
    # :method GET, :scheme http, :path /healthz, :authority x
    block = b"\x82\x86\x04\x08/healthz\x01\x01x"
    headers = len(block).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x01" + block
    with socket.create_connection(("127.0.0.1", shared.port), timeout=TIMEOUT) as connection:
        connection.sendall(preface + settings + headers)
        received = b""
        while b'{"status":"alive"}' not in received:
            piece = connection.recv(65_536)
            assert piece, received
            received += piece


def test_schemathesis_finds_no_failure(shared: Gateway, tmp_path: Path) -> None:
    here = Path(__file__).parent
    result = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(here / "schemathesis.toml")),
            *("run", f"{shared.url}/openapi.json", "--no-color", "--seed", "1"),
            *("--max-examples", "3", "--phases", "coverage,fuzzing"),
            *("-H", f"Authorization: {BEARER['Authorization']}"),
        ],
        cwd=tmp_path,  # Schemathesis creates a folder in its working directory.
        env=os.environ
        | {
            "SCHEMATHESIS_HOOKS": "tests.ringfence.gateway.schemathesis_hooks",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout
    counters = json.loads(fetch(f"{shared.url}/v1/counters", headers=BEARER).body)
    assert "bugs" not in counters


def test_sigterm_stops_the_gateway_cleanly_and_a_dead_worker_is_replaced(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, "a") as running, gateway(tmp_path, running["a"].url) as gate:
        children = Path(f"/proc/{gate.process.pid}/task/{gate.process.pid}/children")
        [worker] = children.read_text("ascii").split()
        os.kill(int(worker), signal.SIGKILL)
        until(lambda: children.read_text("ascii").split() not in ([], [worker]))
        gate.wait_ready()

        gate.process.send_signal(signal.SIGTERM)

        assert gate.process.wait(TIMEOUT) == 0
        assert "Traceback" not in gate.log


def test_workers_end_when_the_main_process_is_killed(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running, gateway(tmp_path, running["a"].url) as gate:
        gate.process.kill()
        gate.process.wait()

        until(lambda: not is_up(f"{gate.url}/readyz"))


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGKILL])
def test_a_node_starts_and_stops_its_gateway(tmp_path: Path, stop_signal: signal.Signals) -> None:
    http, grpc_port = free_tcp_ports(2)
    config = tmp_path / "gateway.toml"
    config.write_text(f'listen = "127.0.0.1:{http}"\ngrpc = "127.0.0.1:{grpc_port}"\n', "utf-8")
    flags = {"a": ["--name", "a", "--gateway-config", str(config)]}
    url = f"http://127.0.0.1:{http}/readyz"
    with started(tmp_path, flags) as running:
        until(lambda: is_up(url))

        running["a"].signal(stop_signal)

        until(lambda: running["a"].process.poll() is not None)
        until(lambda: not is_up(url))
        assert running["a"].process.returncode == (
            0 if stop_signal is signal.SIGTERM else -stop_signal
        )


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--http", "7180"], "got http = 127.0.0.1:7180 and the gateway's listen = 127.0.0.1:7180"),
        (["--http", "0.0.0.0:7181"], "http and the gateway's grpc must have different ports"),
        (
            ["--http", "7179", "--processes", "3"],
            "http of the members = 127.0.0.1:7180 to 7182 and the gateway's listen",
        ),
    ],
)
def test_a_node_and_its_gateway_must_have_different_ports(
    tmp_path: Path, flags: list[str], error: str
) -> None:
    write_keys(tmp_path / "keys", (), (), ("app:check",), 1)

    status, _, err = asked("node", "--gateway", "--keys", str(tmp_path / "keys"), *flags)

    assert status == 2
    assert error in err


def test_a_node_stops_with_an_error_if_its_gateway_cannot_start(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        config.write_text(f'listen = "127.0.0.1:{port}"\ngrpc = ""\n', "utf-8")
        flags = ["--listen", str(free_port()), "--gateway-config", str(config)]

        status, _, err = ringfence("node", *flags)

    assert status == 2
    assert f"cannot listen on 127.0.0.1:{port}: another program has this TCP port" in err
    assert "ringfence: the gateway cannot start; its log above says why" in err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--cluster", ""), "no cluster"),
        (("--cluster", "ringfence://127.0.0.1:1", "--listen", "0.0.0.0:7180"), "beyond loopback"),
        (("--cluster", "ringfence://127.0.0.1:1", "--tokens", "/nowhere"), "no such file"),
        (("--cluster", "ringfence://127.0.0.1:1", "--auth", "client=ipp"), "did you mean 'ip'?"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], error: str
) -> None:
    monkeypatch.setenv("RINGFENCE_URL", "")

    status, out, err = asked("gateway", *arguments)

    assert (status, out) == (2, "")
    assert error in err
    assert "Traceback" not in err


def test_an_error_names_a_port_that_is_already_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        status, _, err = ringfence(
            "gateway", "--cluster", "ringfence://127.0.0.1:1", "--listen", address
        )

    assert status == 2
    assert f"cannot listen on {address}" in err


_STOPPED_AT_FORK = """
import os, signal
from ringfence.gateway.process.supervisor import _end_forks_by_sigterm

signal.signal(signal.SIGTERM, lambda number, frame: None)  # As Granian does in its main process.
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
_end_forks_by_sigterm()
worker = os.fork()
if not worker:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
os.kill(os.getpid(), signal.SIGTERM)
print("continues")
"""


def test_sigterm_ends_a_worker_immediately_after_the_fork() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _STOPPED_AT_FORK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout.split() == [str(-signal.SIGTERM), "continues"]


def test_a_gateway_without_grpc_logs_it_and_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    [port] = free_tcp_ports(1)
    arguments = ["gateway", "--cluster", "ringfence://127.0.0.1:1", "--grpc", ""]
    log = tmp_path / "gateway.log"
    listen = ["--listen", f"127.0.0.1:{port}"]
    with program([sys.executable, "-m", "node.entry", *arguments, *listen], log):
        until(lambda: "listens on" in log.read_text("utf-8"))

    output = log.read_text("utf-8")
    assert f"listens on 127.0.0.1:{port}, and not for gRPC" in output
    assert "Killing" not in output
