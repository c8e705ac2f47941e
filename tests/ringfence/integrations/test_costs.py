"""Costs that are known at the end of the response: they count in full, also beyond the limit."""

from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from flask import Flask, Response, request
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import Receive, Scope, Send

import ringfence
import ringfence.blocking
from ringfence import ConfigError, Limiter
from ringfence.blocking import BlockingLimiter
from ringfence.client.decision import UNDECIDED, decide
from ringfence.integrations import fastapi as for_fastapi
from ringfence.integrations import flask as for_flask
from ringfence.integrations.asgi import RateLimitMiddleware
from ringfence.integrations.costs import reported_cost, set_cost
from ringfence.integrations.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.ringfence.integrations.asgi.client import ask, living, scope_of, statuses

RULES = {
    "domain": "llm",
    "descriptors": [
        {
            "key": "tenant",
            "rate_limit": {"unit": "year", "requests_per_unit": 1000, "algorithm": "fixed_window"},
        },
        {
            "key": "streams",
            "rate_limit": {"unit": "hour", "requests_per_unit": 5, "algorithm": "concurrency"},
        },
    ],
}
TENANT = {"tenant": "acme"}
BY_TENANT: Any = {"domain": "llm", "keys": {"tenant": lambda _: "acme"}}


async def stream_of_300_units(scope: Scope, receive: Receive, send: Send) -> None:
    """Stream a response that reports its cost before its last part."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"Once", "more_body": True})
    set_cost(scope, 300)
    await send({"type": "http.response.body", "body": b"."})


def remaining(limiter: BlockingLimiter) -> int | None:
    return limiter.peek("llm", TENANT).remaining


@pytest.fixture
def limiter() -> Iterator[BlockingLimiter]:
    with ringfence.blocking.local(RULES) as opened:
        yield opened


async def test_the_fourth_response_of_300_units_exhausts_a_budget_of_1000() -> None:
    app = RateLimitMiddleware(
        stream_of_300_units,
        partial(ringfence.local, RULES),
        cost=1,
        cost_after=reported_cost,
        **BY_TENANT,
    )
    async with living(app), app.limits.opened() as opened:
        assert await statuses(app, ["/"] * 5) == [200] * 4 + [429]
        await opened.refund("llm", TENANT, 201)
        assert (await opened.peek("llm", TENANT)).remaining == 1


async def test_an_unreported_cost_keeps_the_reserved_cost() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"."})

    app = RateLimitMiddleware(
        silent, partial(ringfence.local, RULES), cost=250, cost_after=reported_cost, **BY_TENANT
    )
    async with living(app), app.limits.opened() as opened:
        await ask(app)
        assert (await opened.peek("llm", TENANT)).remaining == 750


async def test_the_cost_is_charged_and_the_slot_of_the_same_request_is_released() -> None:
    keys: Any = [BY_TENANT["keys"], {"streams": lambda _: "acme"}]
    app = RateLimitMiddleware(
        stream_of_300_units,
        partial(ringfence.local, RULES),
        domain="llm",
        keys=keys,
        cost_after=reported_cost,
    )
    async with living(app), app.limits.opened() as opened:
        await ask(app)

        assert (await opened.peek("llm", TENANT)).remaining == 700
        assert (await opened.peek("llm", {"streams": "acme"})).remaining == 5


async def test_a_slot_alone_is_released_and_not_charged() -> None:
    app = RateLimitMiddleware(
        stream_of_300_units,
        partial(ringfence.local, RULES),
        domain="llm",
        keys={"streams": lambda _: "acme"},
        cost_after=reported_cost,
    )
    async with living(app), app.limits.opened() as opened:
        assert (await ask(app)).status == 200
        assert (await opened.peek("llm", {"streams": "acme"})).remaining == 5


async def test_the_whole_cost_of_an_undecided_request_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def undecided(*_: object, **__: object) -> ringfence.Decision:
        return decide([UNDECIDED])

    app = RateLimitMiddleware(
        stream_of_300_units,
        partial(ringfence.local, RULES),
        cost=100,
        cost_after=reported_cost,
        **BY_TENANT,
    )
    async with living(app), app.limits.opened() as opened:
        with monkeypatch.context() as patched:
            patched.setattr(Limiter, "check", undecided)
            await ask(app)
        assert (await opened.peek("llm", TENANT)).remaining == 700


async def test_a_fastapi_stream_reports_its_cost_behind_other_middlewares() -> None:
    app = FastAPI()
    limits = for_fastapi.RateLimits(
        partial(ringfence.local, RULES), cost_after=reported_cost, **BY_TENANT
    )

    @app.get("/")
    async def complete(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "Once"
            set_cost(request, 1200)

        return StreamingResponse(parts())

    async def pass_through(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_through)
    limits.install(app)
    async with living(app):
        assert await statuses(app, ["/", "/"]) == [200, 429]


def test_a_flask_stream_reports_its_cost_after_its_context_has_ended(
    limiter: BlockingLimiter,
) -> None:
    app = Flask(__name__)
    limits = for_flask.RateLimits(limiter=limiter, cost_after=reported_cost, **BY_TENANT)

    @app.get("/")
    def complete() -> Response:
        environ = request.environ

        def parts() -> Iterator[str]:
            yield "Once"
            set_cost(environ, 400)

        return Response(parts())

    limits.init_app(app)

    with app.test_client().get("/") as answer:
        assert answer.data == b"Once"
    assert remaining(limiter) == 600


def test_a_flask_view_reports_its_cost(limiter: BlockingLimiter) -> None:
    app = Flask(__name__)
    limits = for_flask.RateLimits(limiter=limiter, cost_after=reported_cost, **BY_TENANT)

    @app.get("/")
    def complete() -> str:
        set_cost(request, 70)
        set_cost(request, 1700)
        return "Once."

    limits.init_app(app)

    assert [app.test_client().get("/").status_code for _ in range(2)] == [200, 429]


def test_a_wsgi_application_reports_its_cost(limiter: BlockingLimiter) -> None:
    def plain(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [])
        set_cost(environ, 999)
        return [b"Once."]

    app = WsgiMiddleware(plain, limiter, cost_after=reported_cost, **BY_TENANT)
    environ: WSGIEnvironment = {"REMOTE_ADDR": "203.0.113.9"}
    setup_testing_defaults(environ)

    chunks = app(environ, lambda *_: lambda _: None)
    b"".join(chunks)
    chunks.close()  # type: ignore[attr-defined]

    assert remaining(limiter) == 1


@pytest.mark.parametrize(
    ("target", "cost", "error"),
    [
        (object(), 3, "request must be a framework's request, an ASGI scope or a WSGI environ"),
        (scope_of(), -3, "got -3"),
        (scope_of(), 1.5, "got 1.5"),
    ],
)
def test_invalid_arguments_are_reported(target: object, cost: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        set_cost(target, cost)
