"""Command `ringfence throttled`: the merged lists of several nodes, and errors."""

import json
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner, Result

from node.cli.cluster.throttled import _ask_cluster, _key_of, throttled
from node.config.key_files import write_keys
from node.metrics.denied_keys import DeniedKey
from ringfence.client.cluster.cluster import Cluster
from ringfence.errors import PeerUnavailable, RingfenceError
from ringfence.rules import Descriptor
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import MemberRow, Throttled

Serve = Callable[..., str]


def report_of(node: str, *rows: tuple[str, int, int]) -> bytes:
    keys = [
        {
            "rule": "api > client",
            "identity": "0" * 16,
            "shadow": False,
            "quota": False,
            "counter": [["client", name]],
            "key": name.encode().hex(),
            "denied": denied,
            "error": error,
        }
        for name, denied, error in rows
    ]
    total = sum(denied for _, denied, _ in rows)
    return json.dumps(
        {"asked": node, "denied": total, "seconds": [300, 600], "keys": keys}
    ).encode()


@contextmanager
def serving(body: bytes, status: int = 200, requests: list[str] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if requests is not None:
                requests.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda *words, **more: stack.enter_context(serving(*words, **more))


def run(*words: str) -> Result:
    return CliRunner().invoke(throttled, words)


def error_of(*words: str) -> str:
    error = run(*words).exception
    assert isinstance(error, RingfenceError)
    return str(error)


def rows_of(result: Result) -> Sequence[tuple[str, str, int]]:
    rows = json.loads(result.stdout)["keys"]
    return [(row["node"], row["counter"][0][1], row["denied"]) for row in rows]


RULES = """
domain: api
descriptors:
  - {key: client, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: paid, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
"""


@pytest.mark.parametrize(
    ("key", "shadow", "quota"),
    [("client", False, False), ("watched", True, False), ("paid", False, True)],
)
def test_a_row_names_the_rule_of_a_key_and_whether_it_limits(
    key: str, *, shadow: bool, quota: bool
) -> None:
    rules = load_text(RULES).rules
    [match] = rules.match("api", [Descriptor([(key, "x")])])
    assert match is not None

    row = _key_of(rules, None, DeniedKey(match.key, 5, 2, {"a": 5}))

    assert (row.rule, row.shadow, row.quota) == (f"api > {key}", shadow, quota)
    assert (row.identity, row.key) == (f"{match.rule.id:016x}", match.key.hex())
    assert (row.denied, row.error, row.nodes) == (5, 2, {"a": 5})
    assert (row.counter, row.owner) == ([[key, "x"]], None)


def test_a_key_without_a_rule_has_values_without_names() -> None:
    row = _key_of(load_text(RULES).rules, None, DeniedKey(bytes(8) + b"\x01x", 5))

    assert (row.rule, row.shadow, row.quota, row.counter) == (None, False, False, [["", "x"]])


def test_fields_that_an_older_node_does_not_send_have_defaults(serve: Serve) -> None:
    key = {"identity": "0" * 16, "key": "00ff", "denied": 3, "error": 0}
    body = {"asked": "a", "denied": 3, "seconds": [300, 600], "keys": [key]}

    result = run(serve(json.dumps(body).encode()), "--json")

    [row] = json.loads(result.output)["keys"]
    assert [row[name] for name in ("removed", "shadow", "quota")] == [False] * 3
    assert [row[name] for name in ("rule", "counter", "owner")] == [None] * 3
    assert (row["node"], row["nodes"]) == ("a", {"a": 3})


def test_the_lists_of_all_nodes_are_merged(serve: Serve) -> None:
    urls = [serve(report_of("a", ("x", 5, 0), ("y", 1, 0))), serve(report_of("b", ("z", 3, 1)))]

    result = run(*urls, "--json", "--count", "2")

    assert rows_of(result) == [("a", "x", 5), ("b", "z", 3)]
    assert json.loads(result.output)["denied"] == 9


def test_text_output_shows_names_and_the_error_of_a_count(serve: Serve) -> None:
    result = run(serve(report_of("a", ("203.0.113.7", 1200, 0), ("x\x1b[2J", 40, 8))))

    lines = result.output.splitlines()
    assert lines[1].split() == ["1200", "client=203.0.113.7", "api", ">", "client", "a"]
    assert lines[2].startswith("32 to 40  client=x?[2J")
    assert lines[3] == "1240 denials in all during the last 5 to 10 minutes"


def test_the_output_states_that_no_checks_were_denied(serve: Serve) -> None:
    assert run(serve(report_of("a"))).output == "no checks were denied lately\n"


def test_the_output_names_nodes_that_began_to_count_recently(serve: Serve) -> None:
    report = json.loads(report_of("a"))
    report["counting_s"] = {"a": 300, "b": 0, "c": 299}
    url = serve(json.dumps(report).encode())
    note = (
        "began to count only recently: b (0 s ago), c (299 s ago); earlier denials are not included"
    )

    assert run(url).output == f"no checks were denied since the counting began\n{note}\n"
    assert json.loads(run(url, "--json").output)["counting_s"] == report["counting_s"]


def test_the_token_and_the_count_are_sent_to_the_node(serve: Serve, tmp_path: Path) -> None:
    requests: list[str] = []
    path = tmp_path / "ops.token"
    path.write_text("ops.00ff\n", "ascii")

    run(serve(report_of("a"), requests=requests), "--token-file", str(path), "--count", "7")

    assert requests == ["/v1/throttled?count=7 Bearer ops.00ff"]


def test_20_keys_are_shown_by_default_and_at_most_256(serve: Serve) -> None:
    requests: list[str] = []
    url = serve(report_of("a"), requests=requests)

    run(url)
    run(url, "--count", "1")
    run(url, "--count", "256")

    assert [each.split()[0] for each in requests] == [
        f"/v1/throttled?count={count}" for count in (20, 1, 256)
    ]
    for count in ("0", "257"):
        assert "--count" in run(url, "--count", count).output


def test_a_refusal_is_shown_with_the_text_of_the_node(serve: Serve) -> None:
    body = json.dumps({"status": 401, "title": "this needs a token", "detail": "send one"})

    assert "this needs a token; send one" in error_of(serve(body.encode(), 401))
    body = body.replace("401", "404")
    assert error_of(serve(body.encode(), 404)).endswith("give the URL of the port without a path")
    assert "it answers 502" in error_of(serve(b"<html>", 502))


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b'{"asked": 1}'])
def test_a_url_that_is_not_of_an_admin_port_is_reported(serve: Serve, body: bytes) -> None:
    assert "must be that of an admin port" in error_of(serve(body))


def test_a_node_that_does_not_answer_is_reported() -> None:
    assert "http://127.0.0.1:9: no answer: Connection refused;" in error_of("http://127.0.0.1:9")


@pytest.mark.parametrize("status", [None, 401])
def test_a_port_without_a_list_hides_no_list_of_the_others(
    serve: Serve, status: int | None
) -> None:
    bad = "http://127.0.0.1:9" if status is None else serve(b"{}", status)

    result = run(bad, serve(report_of("a", ("x", 5, 0))), "--json")

    assert rows_of(result) == [("a", "x", 5)]
    assert f"not counted: {bad}" in result.stderr
    (error,) = json.loads(result.stdout)["errors"]
    assert error.startswith(bad)


def test_https_at_a_port_without_tls_is_reported_with_the_right_scheme(serve: Serve) -> None:
    url = serve(report_of("a")).replace("http://", "https://")

    message = error_of(url)

    assert f"{url}: no answer: [SSL" in message
    assert message.endswith("; the port answers without TLS: write http:// instead of https://")


@pytest.mark.parametrize(
    ("has_ca", "error", "remedy"),
    [
        (False, "CERTIFICATE_VERIFY_FAILED", "give the cluster's ca.pem with --ca"),
        (True, "IP address mismatch", "NAME --replace with all --name and --address options"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_reported_with_the_remedy(
    tmp_path: Path, has_ca: bool, error: str, remedy: str
) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 30, ["a"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*[tmp_path / "keys" / "nodes" / f"a.{end}" for end in ("pem", "key")])
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):  # The client ends the handshake.
                context.wrap_socket(connection, server_side=True).close()

        thread = Thread(target=answer)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        message = error_of(url, *(["--ca", str(tmp_path / "keys" / "ca.pem")] if has_ca else []))
        thread.join()

    assert error in message
    assert message.endswith(remedy)


def test_a_reply_that_is_not_http_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = Thread(target=answer)
        thread.start()
        message = error_of(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()

    assert "the reply must be HTTP" in message


@pytest.mark.parametrize("url", ["127.0.0.1:7180", "ftp://x", "http://", "http://[", "http://a b"])
def test_an_invalid_url_is_reported(url: str) -> None:
    assert url in error_of(url)


def test_a_token_in_the_url_is_reported_without_its_secret() -> None:
    message = error_of(f"http://op.{'0f' * 32}@127.0.0.1:9")

    assert "must have no token, got 'http://...@127.0.0.1:9'; use --token-file" in message


def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")

    message = error_of("http://127.0.0.1:9", "--token-file", missing)
    assert f"--token-file {missing}: cannot be read: No such file or directory; give" in message
    assert missing in error_of("http://127.0.0.1:9", "--ca", missing)


def test_the_error_for_a_missing_address_explains_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RINGFENCE_URL", raising=False)

    assert "pass --cluster" in error_of()


def test_files_for_an_admin_port_are_rejected_without_its_url(tmp_path: Path) -> None:
    words = ("--cluster", "ringfence://127.0.0.1:9", "--ca", str(tmp_path / "ca.pem"))

    assert "--token-file and --ca belong to the URL of an admin port" in error_of(*words)


def test_a_key_reported_by_two_ports_is_counted_once(serve: Serve) -> None:
    report = json.loads(report_of("a", ("x", 5, 0)))
    report["nodes"] = {"a": 2, "b": 4}
    report["keys"][0] |= {"nodes": {"a": 1, "b": 4}, "owner": "b"}
    other = json.dumps(report | {"asked": "b", "missing": ["c"]}).encode()

    result = run(serve(json.dumps(report).encode()), serve(other), "--json")

    assert rows_of(result) == [("b", "x", 5)]
    assert json.loads(result.output)["denied"] == 6
    assert json.loads(result.output)["missing"] == ["c"]
    assert json.loads(result.output)["errors"] == []


def test_the_url_of_a_port_is_given_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "without URL" in error_of("http://127.0.0.1:9", "--cluster", "ringfence://127.0.0.1:9")

    monkeypatch.setenv("RINGFENCE_URL", "ringfence://127.0.0.1:9")
    assert "no answer" in error_of("http://127.0.0.1:9")


def test_each_port_that_sends_no_list_is_named() -> None:
    result = run("http://127.0.0.1:9", "http://127.0.0.1:7")

    assert isinstance(result.exception, PeerUnavailable)
    for line, port in zip(str(result.exception).splitlines(), (9, 7), strict=True):
        assert line.startswith(f"http://127.0.0.1:{port}: no answer")


@pytest.mark.trio
async def test_members_that_are_dead_or_do_not_answer_are_missing() -> None:
    states = {"a": "alive", "b": "dead", "c": "left", "d": "suspect"}
    rows = [MemberRow(name, "", 1, "dc", "", 1.0, state) for name, state in states.items()]

    async def listed(row: MemberRow, count: int) -> Throttled | None:
        return Throttled(1, 0, [], [], [], [], [], 0) if row.name == "a" else None

    cluster = SimpleNamespace(
        members=rows,
        admin=SimpleNamespace(throttled=listed),
        outage=lambda: None,
        routes=None,
        rules=load_text(RULES).rules,
    )

    [report] = await _ask_cluster(cast(Cluster, cluster))

    assert report.missing == ["b", "d"]
