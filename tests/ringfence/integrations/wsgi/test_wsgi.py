"""WSGI middleware, called as a server calls it."""

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

import ringfence.blocking
from ringfence import ConfigError, Decision
from ringfence.blocking import BlockingLimiter
from ringfence.client.decision import UNDECIDED, decide
from ringfence.integrations.wsgi import RateLimitMiddleware, WsgiRequest, decision_of

RULES = {
    "domain": "api",
    "descriptors": [
        {"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}},
        {
            "key": "running",
            "rate_limit": {"unit": "hour", "requests_per_unit": 1, "algorithm": "concurrency"},
        },
    ],
}


@pytest.fixture
def limiter() -> Iterator[BlockingLimiter]:
    with ringfence.blocking.local(RULES) as limiter:
        yield limiter


def hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path = environ["PATH_INFO"][1:]
    start_response(f"{path if path.isdigit() else 200} Whatever", [("Content-Type", "text/plain")])
    return [b"hello"]


class Answer:
    def __init__(self, app: Any, path: str = "/", method: str = "GET", **environ: str) -> None:
        request_environ: WSGIEnvironment = {}
        setup_testing_defaults(request_environ)
        request_environ |= {
            "QUERY_STRING": "",
            "REMOTE_ADDR": "203.0.113.9",
            "PATH_INFO": path,
        } | environ
        request_environ |= {"REQUEST_METHOD": method, "wsgi.input": io.BytesIO()}
        self.fields: list[tuple[str, str]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], error: object = None
        ) -> Callable[[bytes], object]:
            self.status, self.fields = int(status[:3]), headers
            return lambda _: None

        chunks = validator(app)(request_environ, start_response)
        self.body = b"".join(chunks)
        chunks.close()

    @property
    def headers(self) -> dict[str, str]:
        assert len(dict(self.fields)) == len(self.fields), "a header occurs twice"
        return dict(self.fields)


def statuses(app: Any, *paths: str) -> list[int]:
    return [Answer(app, path).status for path in paths]


def test_a_client_over_its_limit_is_refused(limiter: BlockingLimiter) -> None:
    app = RateLimitMiddleware(hello, limiter, domain="api")

    first = Answer(app)
    assert (first.status, first.body) == (200, b"hello")
    assert first.headers["RateLimit"].startswith('"client";r=1;t=')
    assert "Retry-After" not in first.headers
    assert Answer(app).status == 200
    refused = Answer(app, HTTP_ACCEPT="*/*")
    assert refused.status == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert b"quota-exceeded" in refused.body
    assert Answer(app, REMOTE_ADDR="198.51.100.2").status == 200


def test_address_headers_are_read_from_trusted_proxies_only(limiter: BlockingLimiter) -> None:
    app = RateLimitMiddleware(hello, limiter, limit="1/hour", trusted_proxies="10.0.0.0/8")
    spoofed = [Answer(app, HTTP_X_FORWARDED_FOR=f"1.1.1.{n}").status for n in range(2)]
    behind_proxy = [
        Answer(app, REMOTE_ADDR="10.1.1.1", HTTP_X_FORWARDED_FOR=f"1.1.1.{n}").status
        for n in range(2)
    ]

    assert (spoofed, behind_proxy) == ([200, 429], [200, 200])


def test_options_requests_are_exempt_and_a_refused_head_has_no_body(
    limiter: BlockingLimiter,
) -> None:
    lenient = RateLimitMiddleware(hello, limiter, limit="0/hour")
    strict = RateLimitMiddleware(hello, limiter, limit="0/hour", exempt_methods=())

    assert Answer(lenient, "/", "OPTIONS").status == 200
    assert Answer(strict, "/", "OPTIONS").status == 429
    head = Answer(strict, "/", "HEAD")
    assert (head.status, head.body) == (429, b"")


def test_the_path_includes_the_script_name(limiter: BlockingLimiter) -> None:
    seen: list[str] = []
    app = RateLimitMiddleware(
        hello,
        limiter,
        limit="9/hour",
        keys={"path": lambda request: str(seen.append(request.path))},
    )

    Answer(app, "/\xc3\xa4", SCRIPT_NAME="/app")

    assert seen == ["/app/ä"]


def test_deduct_when_charges_only_failed_responses(limiter: BlockingLimiter) -> None:
    app = RateLimitMiddleware(
        hello, limiter, domain="api", deduct_when=lambda response: response.status == 401
    )

    assert statuses(app, "/", "/", "/") == [200] * 3
    assert statuses(app, "/401", "/401", "/") == [401, 401, 429]


def test_a_slot_is_held_until_the_server_closes_the_response(limiter: BlockingLimiter) -> None:
    app = RateLimitMiddleware(hello, limiter, domain="api", keys={"running": lambda _: "x"})
    environ: WSGIEnvironment = {}
    setup_testing_defaults(environ)

    chunks = app(environ, lambda *_: lambda _: None)

    assert list(chunks) == [b"hello"]
    assert Answer(app).status == 429
    chunks.close()  # type: ignore[attr-defined]
    assert statuses(app, "/", "/") == [200, 200]


def test_a_failing_application_is_settled_and_its_error_propagates(
    limiter: BlockingLimiter,
) -> None:
    def broken(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise ZeroDivisionError

    app = RateLimitMiddleware(broken, limiter, domain="api", deduct_when=lambda response: False)

    with pytest.raises(ZeroDivisionError):
        Answer(app)
    assert limiter.peek("api", {"client": "203.0.113.9"}).remaining == 2


def test_nested_middlewares_share_their_headers(limiter: BlockingLimiter) -> None:
    seen: list[Decision | None] = []

    def view(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        seen.append(decision_of(environ))
        return hello(environ, start_response)

    inner = RateLimitMiddleware(view, limiter, limit="9/hour", scope="inner")
    answer = Answer(RateLimitMiddleware(inner, limiter, limit="2/hour", scope="outer"))

    assert answer.headers["RateLimit-Policy"] == '"2/hour";q=2;w=3600, "9/hour";q=9;w=3600'
    assert seen[0] is not None
    assert seen[0].remaining == 1


def test_a_failing_limiter_allows_requests_and_marks_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = ringfence.blocking.local(RULES)
    closed.close()
    app = RateLimitMiddleware(hello, closed, domain="api")

    answers = [Answer(app) for _ in range(3)]

    assert [each.status for each in answers] == [200] * 3
    assert [each.headers["Ringfence-Outage"] for each in answers] == ["allow"] * 3
    assert len(caplog.records) == 1


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(BlockingLimiter):
        def __init__(self) -> None:
            pass

        def expect(self, *_: object) -> list[str]:
            return []

        def check(self, *_: object, **__: object) -> Decision:
            return decide([UNDECIDED])

    app = RateLimitMiddleware(hello, Unreachable(), domain="api")

    answers = [Answer(app) for _ in range(3)]

    assert [each.headers["Ringfence-Outage"] for each in answers] == ["allow"] * 3
    [record] = caplog.records
    assert "no node of the limiter answers" in record.message


def test_invalid_settings_are_reported_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFENCE_URL", raising=False)

    with pytest.raises(ConfigError, match="limits nothing"):
        RateLimitMiddleware(hello, "ringfence://127.0.0.1:7101")
    with pytest.raises(ConfigError, match="no cluster address"):
        RateLimitMiddleware(hello, domain="api")
    with pytest.raises(ConfigError, match="not-a-port"):
        RateLimitMiddleware(hello, "ringfence://127.0.0.1:not-a-port", domain="api")
    with pytest.raises(ConfigError, match=r"h is beyond loopback.*; add \?ca=FILE"):
        RateLimitMiddleware(hello, "ringfence://h", domain="api")


def test_a_disabled_middleware_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFENCE_URL", raising=False)

    app = RateLimitMiddleware(hello, limit="0/hour", enabled=False)

    assert statuses(app, "/", "/") == [200, 200]


def test_each_of_two_limiters_settles_its_own_charges(limiter: BlockingLimiter) -> None:
    inner = RateLimitMiddleware(hello, limiter, domain="api", deduct_when=lambda _: False)
    with ringfence.blocking.local(RULES) as other:
        app = RateLimitMiddleware(inner, other, limit="9/hour")

        assert statuses(app, "/", "/", "/") == [200] * 3

    assert limiter.peek("api", {"client": "203.0.113.9"}).remaining == 2


def test_callbacks_read_headers_case_insensitively() -> None:
    environ = {
        "HTTP_X_USER": "ann",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "",
        "PATH_INFO": "/",
    }
    request = WsgiRequest(environ)

    assert dict(request.headers) == {"x-user": "ann", "content-type": "text/plain"}
    assert request.headers["X-User"] == request.header("X-User") == "ann"
    assert request.header("content-type") == request.headers.get("Content-Type") == "text/plain"
    assert request.header("content-length") is request.headers.get("content-length") is None
    assert "x-none" not in request.headers
