"""Several members of one host as real processes under one supervisor."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from node.config.access import KeyDir
from node.config.key_files import renew, write_keys
from ringfence import blocking
from tests.node.real_cluster import patient

ROOT = Path(__file__).parents[3]
TIMEOUT = 60.0
RULES = """\
domain: api
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 5, algorithm: fixed_window}
"""


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive ports that are free for UDP and for TCP."""
    # Test processes that run side by side have adjacent process ids.
    for first in range(21000 + os.getpid() * 64 % 8000, 32000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    sockets.append(socket.socket(socket.AF_INET, kind))
                    sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return first
        finally:
            for sock in sockets:
                sock.close()
    raise AssertionError("this host has no free ports")


def until(holds: Callable[[], bool]) -> None:
    """Poll until `holds` returns true; fail after `TIMEOUT`."""
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


class HostProcess:
    """Process of `ringfence node --processes 2`."""

    def __init__(self, directory: Path, *flags: str, http_host: str = "127.0.0.1") -> None:
        self.rules = directory / "api.yaml"
        self.rules.write_text(RULES, "utf-8")
        self.port = free_ports(4)
        self.log_path = directory / "host.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "node.entry", "node", "--processes", "2"),
                    *("--listen", f"127.0.0.1:{self.port}", "--http", f"{http_host}:{self.port}"),
                    *("--name", "web", "--rules", str(self.rules), *flags),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"RINGFENCE_NODE_DRAIN_TIMEOUT": "1"},
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    @property
    def url(self) -> str:
        return patient(f"ringfence://127.0.0.1:{self.port},127.0.0.1:{self.port + 1}")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=60
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def members(self) -> dict[str, str]:
        """Return the name and state of each member, as one of the members sees them."""
        status, body = self.get("/v1/members")
        rows = json.loads(body)["members"] if status == 200 else []
        return {row["name"]: row["state"] for row in rows}

    def wait_until_ready(self) -> None:
        all_alive = {"web-0": "alive", "web-1": "alive"}
        until(lambda: self.process.poll() is not None or self.members() == all_alive)
        until(lambda: self.process.poll() is not None or self.get("/readyz")[0] == 200)
        assert self.process.poll() is None, self.log

    def metric(self, name: str) -> dict[str, float]:
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = [sample for family in families for sample in family.samples]
        return {each.labels["member"]: each.value for each in samples if each.name == name}

    def pid_of(self, index: int) -> int:
        """Return the process ID of a member, found by its command line below the supervisor."""
        member_flag = f"--member\0{index}\0".encode()
        children = [
            pid
            for path in Path(f"/proc/{self.process.pid}/task").glob("*/children")
            for pid in path.read_text("ascii").split()
        ]
        [found] = [
            pid for pid in children if member_flag in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return int(found)


@contextmanager
def host(directory: Path, *flags: str, http_host: str = "127.0.0.1") -> Iterator[HostProcess]:
    started = HostProcess(directory, *flags, http_host=http_host)
    try:
        yield started
    finally:
        started.process.kill()  # Then its members leave.
        started.process.wait()


def test_members_share_a_budget_and_a_killed_member_is_restarted_and_all_leave_on_sigterm(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as web:
        web.wait_until_ready()
        with blocking.connect(web.url) as limiter:
            for number in range(20):
                client = {"client": f"c{number}"}
                answers = [limiter.check("api", client).allowed for _ in range(6)]
                assert answers == [True] * 5 + [False]
        keys = web.metric("ringfence_keys")
        assert set(keys) == {"web-0", "web-1"}
        assert min(keys.values()) > 0

        os.kill(web.pid_of(1), signal.SIGKILL)

        until(lambda: web.metric("ringfence_process_restarts_total").get("web-1") == 1)
        web.wait_until_ready()
        web.rules.write_text(RULES.replace("5", "7"), "utf-8")
        web.process.send_signal(signal.SIGHUP)
        with blocking.connect(web.url) as limiter:
            until(lambda: limiter.peek("api", {"client": "new"}).limit == 7)

        web.process.send_signal(signal.SIGTERM)
        assert web.process.wait(TIMEOUT) == 0
        for name in ("web-0", "web-1"):
            assert f'node={name} logger=ringfence.node msg="node {name} has stopped"' in web.log
        assert "Traceback" not in web.log


def test_systemd_is_notified_once_when_all_members_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(TIMEOUT)
        with host(tmp_path) as web:
            assert systemd.recv(100) == b"READY=1"
            assert web.members() == {"web-0": "alive", "web-1": "alive"}
            web.process.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert web.process.wait(TIMEOUT) == 0
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


def test_members_leave_on_a_leave_request_and_when_their_supervisor_is_killed(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as web:
        web.wait_until_ready()
        leave_request = urllib.request.Request(
            f"http://127.0.0.1:{web.port + 2}/v1/leave", method="POST"
        )
        with urllib.request.urlopen(leave_request, timeout=60) as response:
            assert response.status == 202
        until(lambda: "node web-1 hands over and leaves" in web.log)
        found = [web.get("/readyz")]
        while web.metric("ringfence_process_up") != {"web-0": 1, "web-1": 0}:
            found.append(web.get("/readyz"))
        # The first request may arrive before the report of the member that it leaves.
        assert [status for status, _ in found[1:]] == [200] * len(found[1:])
        assert "node web-1 has stopped" in web.log
        assert web.metric("ringfence_process_restarts_total") == {"web-0": 0, "web-1": 0}

        web.process.kill()

        until(lambda: "node web-0 has stopped" in web.log)


def test_settings_with_which_no_member_can_start_end_the_supervisor(tmp_path: Path) -> None:
    with host(tmp_path, "--join", "127.0.0.1:1", "--keys", str(tmp_path / "nowhere")) as web:
        assert web.process.wait(TIMEOUT) == 2

    assert "ringfence: member web-0 cannot start; its log above says why" in web.log
    assert str(tmp_path / "nowhere") in web.log


def test_the_admin_port_of_the_host_uses_a_renewed_certificate_after_sighup(tmp_path: Path) -> None:
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, [], ["127.0.0.1"], ["app:check"], 30)
    flags = ["--keys", str(keys.path)]
    with host(tmp_path, *flags, http_host="0.0.0.0") as web:
        address = ("127.0.0.1", web.port)

        def presented_serial() -> int:
            pem = ssl.get_server_certificate(address, timeout=60)
            return x509.load_pem_x509_certificate(pem.encode()).serial_number

        until(lambda: "2 members" in web.log and "view of 2 members" in web.log)
        before = presented_serial()
        renew(keys.path, [], 60)
        web.process.send_signal(signal.SIGHUP)

        until(lambda: presented_serial() != before)
        until(lambda: web.log.count("reloaded; certificate renewed") == 2)
