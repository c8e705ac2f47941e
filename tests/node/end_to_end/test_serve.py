"""Nodes as separate processes over real UDP: signals, rule files and ports."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.cli import command
from ringfence import blocking
from tests.node.real_cluster import ForkedCommand, patient

ROOT = Path(__file__).parents[3]
TIMEOUT = 60.0
"""Time-out, in seconds, of events that should happen immediately."""


def rules_of(amount: int) -> str:
    return (
        "domain: api\ndescriptors:\n  - key: client\n    rate_limit: "
        f"{{unit: year, requests_per_unit: {amount}, algorithm: fixed_window}}\n"
    )


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, or fail.

    The function polls, since there is no event for the logs or answers of another process.
    """
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, "the condition did not hold before the time-out"
        time.sleep(0.02)


class NodeProcess:
    """Process of `ringfence node` with its log."""

    def __init__(self, port: int, log: Path, *flags: str) -> None:
        self.port = port
        log.write_bytes(b"")
        self.process = ForkedCommand(["node", "--listen", f"127.0.0.1:{port}", *flags], log)
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    @property
    def url(self) -> str:
        return patient(f"ringfence://127.0.0.1:{self.port}")

    def wait_to_see(self, count: int) -> None:
        """Wait until the node has this many members in its view."""
        until(lambda: f"view of {count} member" in self.log or self.process.poll() is not None)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Make the node leave; return its exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)


@contextmanager
def started(
    directory: Path, flags: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, NodeProcess]]:
    """Start a process per entry with its flags; all others join the first process."""
    ports = [free_port() for _ in flags]
    with ExitStack() as stack:
        running: dict[str, NodeProcess] = {}
        for name, port in zip(flags, ports, strict=True):
            log = directory / f"{name}.log"
            join = ["--join", f"127.0.0.1:{ports[0]}"] if running else []
            running[name] = NodeProcess(port, log, *flags[name], *join)
            stack.callback(running[name].process.wait)
            stack.callback(running[name].process.kill)
        for node in running.values():
            node.wait_to_see(len(running))
        yield running


@contextmanager
def nodes(directory: Path, *names: str, amount: int = 5) -> Iterator[dict[str, NodeProcess]]:
    rules = directory / "rules"
    rules.mkdir()
    (rules / "api.yaml").write_text(rules_of(amount), "utf-8")
    config = directory / "node.toml"
    config.write_text('rules = "rules"\nreload_interval = 0.1\ndrain_timeout = 60.0\n', "utf-8")
    flags = {name: ["--config", str(config), "--name", name] for name in names}
    with started(directory, flags) as running:
        yield running


def ringfence(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, "-m", "node.entry", *arguments],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def asked(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process, which is faster than a new process."""
    out, err = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        patch.setattr("sys.argv", ["ringfence", *arguments])
        with pytest.raises(SystemExit) as exit_error:
            command.main()
    return int(exit_error.value.code or 0), out.getvalue(), err.getvalue()


def members_of(node: NodeProcess) -> dict[str, dict[str, Any]]:
    status, out, err = asked("members", "--json", "--cluster", node.url)
    assert status == 0, err
    return {row["name"]: row for row in json.loads(out)["members"]}


def remaining_of(limiter: blocking.BlockingLimiter, client: str) -> int | None:
    return limiter.peek("api", {"client": client}).remaining


def test_separately_started_nodes_share_one_limit_and_forward_checks(tmp_path: Path) -> None:
    with nodes(tmp_path, "a", "b") as running:
        decisions = [
            asked("check", "api", "client=x", "--json", "--cluster", running[name].url)
            for name in ("a", "b", "a")
        ]
        rows = members_of(running["a"])

    assert [json.loads(out)["remaining"] for _, out, _ in decisions] == [4, 3, 2]
    counters = [row["counters"] for row in rows.values()]
    assert sum(each["checks"] for each in counters) == 3
    assert 1 <= sum(each.get("forwarded", 0) for each in counters) <= 2
    assert {row["state"] for row in rows.values()} == {"alive"}


def test_rules_are_reloaded_after_a_change_and_on_request(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running, blocking.connect(running["a"].url) as limiter:
        node, path = running["a"], tmp_path / "rules" / "api.yaml"
        assert remaining_of(limiter, "x") == 5

        path.write_text(rules_of(7), "utf-8")
        until(lambda: remaining_of(limiter, "x") == 7)

        path.write_text("domain: [", "utf-8")
        until(lambda: "the old ones stay in force" in node.log)
        assert remaining_of(limiter, "x") == 7

        path.write_text(rules_of(9), "utf-8")
        node.signal(signal.SIGHUP)
        until(lambda: remaining_of(limiter, "x") == 9)

        assert all(line.startswith("time=") for line in node.log.splitlines())
        assert node.end() == 0


def test_a_node_drains_and_exits_with_status_0_on_sigterm(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running, blocking.connect(running["a"].url) as limiter:
        assert limiter.check("api", {"client": "x"}).allowed
        started = time.monotonic()

        assert running["a"].end() == 0

        assert time.monotonic() - started < 30  # less than `drain_timeout`
        assert "has stopped" in running["a"].log
        assert "Traceback" not in running["a"].log


def test_ctrl_c_also_drains_a_node(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running:
        running["a"].signal(signal.SIGINT)

        assert running["a"].process.wait(TIMEOUT) == 0


def test_a_member_removed_by_an_operator_transfers_its_counters(tmp_path: Path) -> None:
    with nodes(tmp_path, "a", "b") as running:
        staying, leaving = running["a"], running["b"]
        clients = [f"client-{number}" for number in range(20)]
        with blocking.connect(leaving.url) as limiter:
            for client in clients:
                assert limiter.check("api", {"client": client}).allowed

        status, out, err = asked("leave", "--json", "--cluster", leaving.url)

        assert status == 0, err
        assert json.loads(out)["name"] == "b"
        assert json.loads(out)["left"] is True
        assert leaving.process.wait(TIMEOUT) == 0
        assert "node b has stopped" in leaving.log
        assert "Traceback" not in leaving.log
        row = members_of(staying)["b"]
        assert (row["state"], row["owned_shards"], row["reachable"]) == ("left", 0, False)
        with blocking.connect(staying.url) as limiter:
            assert {remaining_of(limiter, client) for client in clients} == {4}


def test_the_last_member_can_leave(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running:
        status, out, err = asked("leave", "a", "--cluster", running["a"].url)

        assert (status, err) == (0, "")
        assert out.startswith("a has left")
        assert running["a"].process.wait(TIMEOUT) == 0


def test_members_see_the_settings_of_each_others_flags(tmp_path: Path) -> None:
    west = ("--datacenter", "west", "--cluster-name", "ours")
    flags = {
        "a": ("--name", "a", *west),
        "b": ("--name", "b", "--zone", "north", "--weight", "2", *west),
    }
    with started(tmp_path, flags) as running:
        rows = members_of(running["a"])

    assert {row["datacenter"] for row in rows.values()} == {"west"}
    assert (rows["b"]["zone"], rows["b"]["weight"]) == ("north", 2.0)
    assert rows["b"]["owned_shards"] > rows["a"]["owned_shards"]


def test_a_node_without_rules_that_joins_other_nodes_logs_a_warning(tmp_path: Path) -> None:
    rules = tmp_path / "api.yaml"
    rules.write_text(rules_of(5), "utf-8")
    flags = {"a": ["--name", "a", "--rules", str(rules)], "b": ["--name", "b"]}

    with started(tmp_path, flags) as running:
        assert "without rules" in running["b"].log
        assert "without rules" not in running["a"].log


def test_nodes_of_clusters_with_different_names_do_not_join(tmp_path: Path) -> None:
    flags = {"a": ["--name", "a"], "b": ["--name", "b", "--cluster-name", "other"]}
    with started(tmp_path, {"a": flags["a"]}) as running:
        join = ("--join", f"127.0.0.1:{running['a'].port}")
        stranger = NodeProcess(free_port(), tmp_path / "b.log", *flags["b"], *join)
        try:
            stranger.wait_to_see(1)
            rows = members_of(running["a"])
        finally:
            stranger.process.kill()
            stranger.process.wait()

    assert rows.keys() == {"a"}


def test_the_error_for_a_used_port_names_the_port(tmp_path: Path) -> None:
    with nodes(tmp_path, "a") as running:
        address = f"127.0.0.1:{running['a'].port}"

        status, out, err = ringfence(
            "node",
            environment={"RINGFENCE_NODE_LISTEN": address},
        )

    assert status == 2
    assert f"cannot listen on {address}: another program has this UDP port" in err
    assert "Traceback" not in err
    assert out == ""


def test_the_admin_port_serves_tls_to_clients_with_a_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    status, _, err = asked(
        *("keys", "new", str(keys), "--address", "127.0.0.1"),
        *("--token", "ops:observe,admin", "--token", "app:check"),
    )
    assert status == 0, err
    flags = ["--name", "a", "--keys", str(keys), "--http", "0.0.0.0:0"]
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))

    def ask(path: str, token: str = "", method: str = "GET") -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {(keys / token).read_text().strip()}"} if token else {}
        request = urllib.request.Request(url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    with started(tmp_path, {"a": flags}) as running:
        [admin_port] = re.findall(r"operators look at https://0\.0\.0\.0:(\d+)", running["a"].log)
        url = f"https://127.0.0.1:{admin_port}"
        until(lambda: ask("/readyz")[0] == 200)
        assert ask("/metrics")[0] == 401
        assert ask("/metrics", "app.token")[0] == 403
        status, text = ask("/metrics", "ops.token")
        families = {family.name for family in text_string_to_metric_families(text.decode())}
        assert status == 200
        assert {"ringfence_decisions", "ringfence_members", "process_cpu_seconds"} <= families
        expiry = r"ringfence_certificate_expiry_timestamp_seconds\{certificate=\"node\"\} (\S+)"
        [instant] = re.findall(expiry, text.decode())
        assert 800 < (float(instant) - time.time()) / 86_400 < 830
        status, out, err = asked(
            *("throttled", url, "--json"),
            *("--ca", str(keys / "ca.pem"), "--token-file", str(keys / "ops.token")),
        )
        assert (status, json.loads(out)["asked"]) == (0, ["a"]), err
        assert ask("/v1/leave", "ops.token", "POST")[0] == 202
        assert running["a"].process.wait(TIMEOUT) == 0
        assert "Traceback" not in running["a"].log


def test_a_used_admin_port_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, _, err = ringfence(
            *("node", "--listen", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{port}")
        )

    assert status == 2
    assert f"http: cannot listen on 127.0.0.1:{port}: another program has this TCP port" in err
    assert "Traceback" not in err


def test_the_most_denied_key_of_a_cluster_is_listed_first(tmp_path: Path) -> None:
    """Check with three processes that metrics count the decisions of two clients.

    The list of throttled keys starts with the most denied key.
    """
    with nodes(tmp_path, "a", "b", "c") as running:
        url = running["a"].url
        # From here on, all nodes count decisions.
        status, _, err = asked("throttled", "--cluster", url)
        assert status == 0
        assert err.startswith("began to count only recently: a (")
        denied: Counter[str] = Counter()
        with blocking.connect(url) as one, blocking.connect(running["b"].url) as two:
            for limiter in (one, two):
                for client, times in (("greedy", 300), ("modest", 40), ("good", 2)):
                    for _ in range(times):
                        decision = limiter.check("api", {"client": client})
                        denied[client] += not decision.allowed

            def throttled() -> Any:
                return json.loads(asked("throttled", "--cluster", url, "--json")[1])

            until(
                lambda: throttled()["denied"] >= denied.total()
            )  # Each client reports once a second.
            result = throttled()

    assert result["missing"] == []
    assert [(row["counter"][0][1], row["denied"]) for row in result["keys"]] == [
        ("greedy", denied["greedy"]),
        ("modest", denied["modest"]),
    ]
    assert denied == {"greedy": 595, "modest": 75, "good": 0}
    assert result["denied"] == denied.total()
