"""ASGI middleware: allowed and denied requests, exemptions, nesting."""

from typing import Any

import anyio
import pytest

from ringfence import ConfigError, Decision
from ringfence.http import Body
from ringfence.integrations._core.lifespan import Message, Receive, Scope, Send
from ringfence.integrations.asgi import RateLimitMiddleware, RateLimits, decision_of
from tests.ringfence.integrations.asgi.app import hello, in_process
from tests.ringfence.integrations.asgi.client import ask, living, scope_of, statuses


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_client_over_its_limit_gets_429_on_any_event_loop(backend: str) -> None:
    async def main() -> None:
        app = RateLimitMiddleware(hello, in_process(), domain="api")
        async with living(app):
            assert await statuses(app, ["/"] * 3) == [200, 200, 429]
            assert (await ask(app, peer="198.51.100.2")).status == 200

    anyio.run(main, backend=backend)


async def test_rate_limit_headers_are_added_and_the_response_is_unchanged() -> None:
    app = RateLimitMiddleware(hello, in_process(), domain="api", headers="both")
    async with living(app):
        answer = await ask(app)

    assert answer.fields[:2] == [("content-type", "text/plain"), ("x-tokens", "4")]
    assert answer.headers["ratelimit-policy"] == '"client";q=2;w=3600'
    assert answer.headers["ratelimit"].startswith('"client";r=1;t=')
    assert answer.headers["x-ratelimit-remaining"] == "1"
    assert "retry-after" not in answer.headers
    assert [each["body"] for each in answer.messages[1:]] == [b"hello, ", b"world"]


async def test_a_429_has_retry_after_and_must_not_be_stored() -> None:
    app = RateLimitMiddleware(hello, in_process(), limit="1/hour")
    async with living(app):
        await ask(app)
        answer = await ask(app)

    assert answer.status == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert 1 <= int(answer.headers["retry-after"]) <= 7200
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert b"quota-exceeded" in answer.body


NOT_ENCODED: Any = "slow down"


@pytest.mark.parametrize(
    "made", [{"error": "slow down"}, b"slow down", Body("text/plain", NOT_ENCODED)]
)
async def test_an_invalid_result_of_the_template_names_the_template(made: Any) -> None:
    app = RateLimitMiddleware(hello, in_process(), limit="0/hour", template=lambda _: made)
    async with living(app):
        with pytest.raises(ConfigError, match="template"):
            await ask(app)


async def test_browsers_get_an_html_page_or_the_template() -> None:
    without_template = RateLimitMiddleware(hello, in_process(), limit="0/hour")
    with_template = RateLimitMiddleware(
        hello, in_process(), limit="0/hour", template=lambda _: "<p>later</p>"
    )
    async with living(without_template), living(with_template):
        assert b"<h1>" in (await ask(without_template, accept="text/html")).body
        assert (await ask(with_template)).body == b"<p>later</p>"


async def test_health_checks_head_and_options_are_exempt() -> None:
    app = RateLimitMiddleware(hello, in_process(), limit="0/hour")
    async with living(app):
        answers = [
            await ask(app, "/healthz"),
            await ask(app, method="HEAD"),
            await ask(app, method="OPTIONS"),
        ]
        assert [each.status for each in answers] == [200] * 3
        assert "ratelimit" not in answers[0].headers
        assert (await ask(app, "/healthz/not")).status == 429


async def test_paths_methods_and_requests_can_be_exempt() -> None:
    app = RateLimitMiddleware(
        hello,
        in_process(),
        limit="0/hour",
        exempt_paths=["/static/*", "/ping"],
        exempt_methods=["put"],
        exempt_when=lambda request: request.header("x-key") == "ours",
    )
    async with living(app):
        assert (await ask(app, method="PUT")).status == 200
        assert await statuses(app, ["/static/a/b.css", "/ping"]) == [200, 200]
        assert await statuses(app, ["/", "/healthz"]) == [429, 429]
        assert (await ask(app, x_key="ours")).status == 200
        refused = await ask(app, method="HEAD")
        assert (refused.status, refused.body) == (429, b"")


async def test_forwarded_addresses_count_only_from_trusted_proxies() -> None:
    app = RateLimitMiddleware(hello, in_process(), domain="api", trusted_proxies=["10.0.0.0/8"])
    async with living(app):
        spoofed = [await ask(app, x_forwarded_for=f"198.51.100.{n}") for n in range(3)]
        behind_proxy = [
            await ask(app, peer="10.0.0.7", x_forwarded_for=f"1.1.1.{n}") for n in range(3)
        ]

    assert [each.status for each in spoofed] == [200, 200, 429]
    assert [each.status for each in behind_proxy] == [200, 200, 200]


async def test_disabled_limits_allow_all_and_can_be_enabled_later() -> None:
    limits = RateLimits(in_process(), limit="0/hour", enabled=False)
    app = RateLimitMiddleware(hello, limits)
    async with living(app):
        assert await statuses(app, ["/"]) == [200]
        limits.is_enabled = True
        assert await statuses(app, ["/"]) == [429]


async def test_disabled_limits_need_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFENCE_URL", raising=False)
    app = RateLimitMiddleware(hello, limit="0/hour", enabled=False)
    async with living(app) as messages:
        assert messages[0]["type"] == "lifespan.startup.complete"
        assert await statuses(app, ["/"]) == [200]


async def test_nested_middlewares_share_their_headers() -> None:
    inner = RateLimitMiddleware(hello, in_process(), limit="9/hour", scope="inner")
    app = RateLimitMiddleware(inner, in_process(), limit="2/hour", scope="outer")
    async with living(app):
        answer = await ask(app)
        assert answer.headers["ratelimit-policy"] == '"2/hour";q=2;w=3600, "9/hour";q=9;w=3600'
        inner_refuses = RateLimitMiddleware(
            RateLimitMiddleware(hello, in_process(), limit="0/hour"), in_process(), limit="9/hour"
        )
    async with living(inner_refuses):
        assert (await ask(inner_refuses)).status == 429


async def test_each_nested_middleware_refunds_its_own_limiter() -> None:
    inner = RateLimitMiddleware(hello, in_process(), domain="api", deduct_when=lambda _: False)
    app = RateLimitMiddleware(inner, in_process(), limit="9/hour")
    async with living(app), inner.limits.opened() as limiter:
        assert await statuses(app, ["/"] * 3) == [200] * 3
        assert (await limiter.peek("api", {"client": "203.0.113.9"})).remaining == 2


async def test_views_can_read_the_decision() -> None:
    seen: list[Decision | None] = []

    async def view(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append(decision_of(scope))
            await hello(scope, receive, send)

    app = RateLimitMiddleware(view, in_process(), domain="api")
    async with living(app):
        await ask(app)

    [decision] = seen
    assert decision is not None
    assert decision.remaining == 1
    assert decision_of(scope_of()) is None


async def test_without_blocking_the_application_sees_the_denied_decision() -> None:
    seen: list[tuple[bool, int | None]] = []

    async def view(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            decision = decision_of(scope)
            assert decision is not None
            seen.append((decision.allowed, decision.remaining))
            await hello(scope, receive, send)

    limits = {"limit": ["1/hour", "3/day"], "headers": "x"}
    app = RateLimitMiddleware(view, in_process(), block=False, **limits)
    async with living(app):
        answers = [await ask(app) for _ in range(2)]
        strict = RateLimits(in_process(), block=True, **limits)
        strict_app = RateLimitMiddleware(app, strict)
        async with living(strict_app):
            assert await statuses(strict_app, ["/"] * 2) == [200, 429]

    assert [each.status for each in answers] == [200, 200]
    assert seen == [(True, 0), (False, 0), (False, 0)]
    assert "retry-after" not in answers[1].headers
    assert answers[1].headers["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize("kind", ["websocket", "something.new"])
async def test_other_connection_types_pass_unchanged(kind: str) -> None:
    seen: list[tuple[Scope, Receive, Send]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    scope = {"type": kind, "headers": []}
    await RateLimitMiddleware(app, in_process(), limit="0/hour")(scope, receive, send)

    assert seen == [(scope, receive, send)]
    assert scope == {"type": kind, "headers": []}
