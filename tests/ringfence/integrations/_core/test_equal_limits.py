"""Equal limits of several decorators, dependencies or middlewares charge a request once."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from fastapi import Depends, FastAPI
from flask import Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import ringfence
import ringfence.blocking
from ringfence.blocking import BlockingLimiter
from ringfence.integrations import asgi, fastapi, flask, starlette, wsgi
from ringfence.integrations.django import rate_limit
from ringfence.rules import RuleSet
from tests.ringfence.integrations.asgi.app import hello, in_process
from tests.ringfence.integrations.asgi.client import living, statuses
from tests.ringfence.integrations.django import site as django_site
from tests.ringfence.integrations.wsgi.test_wsgi import Answer

assert django_site  # The import configures Django.

TWO_OF_THREE = [200, 200, 429]


@pytest.fixture
def blocking() -> Iterator[BlockingLimiter]:
    with ringfence.blocking.local(RuleSet()) as limiter:
        yield limiter


def fastapi_with(*extra: Any, **options: Any) -> FastAPI:
    """Route `/` with the limit 2/hour, and further dependencies."""
    limits = fastapi.RateLimits(in_process(), **options)
    app = FastAPI()
    limits.install(app)
    more = [limits.depends(each) if isinstance(each, str | list) else each for each in extra]

    @app.get("/", dependencies=[Depends(_needs(limits.depends("2/hour"))), *more])
    async def view() -> str:
        return "view"

    return app


def _needs(limit: Any) -> Callable[..., Awaitable[None]]:
    async def dependency(decision: object = limit) -> None: ...

    return dependency


@pytest.mark.parametrize("other", ["2/hour", ["9/hour", "2/hour"], ["2 per hour"]])
async def test_equal_limits_of_two_dependencies_of_a_route_count_once(other: Any) -> None:
    app = fastapi_with(other)
    async with living(app):
        assert await statuses(app, ["/"] * 3) == TWO_OF_THREE


async def test_a_limit_of_all_requests_and_one_of_a_route_count_once_in_the_same_scope() -> None:
    app = fastapi_with(limit="2/hour", scope="GET / 2/hour")
    async with living(app):
        assert await statuses(app, ["/"] * 3) == TWO_OF_THREE


async def test_equal_rules_of_a_domain_count_once() -> None:
    limits = fastapi.RateLimits(in_process(), domain="api")
    app = FastAPI(dependencies=[limits.depends(domain="api")])
    limits.install(app)
    app.get("/")(lambda: "view")

    async with living(app):
        assert await statuses(app, ["/"] * 3) == TWO_OF_THREE


async def test_a_limit_with_another_cost_counts_too() -> None:
    limits = fastapi.RateLimits(in_process())
    app = FastAPI()
    limits.install(app)
    costs = [limits.depends("9/hour", cost=cost) for cost in (1, 3)]
    app.get("/", dependencies=costs)(lambda: "view")

    async with living(app):
        assert await statuses(app, ["/"] * 3) == TWO_OF_THREE


async def test_equal_decorators_of_an_endpoint_count_once() -> None:
    limits = starlette.RateLimits(in_process())

    @limits.limit("2/hour")
    @limits.limit("2/hour")
    async def view(request: Request) -> Response:
        return PlainTextResponse("view")

    app = Starlette(routes=[Route("/", view)])
    limits.install(app)
    async with living(app):
        assert await statuses(app, ["/"] * 3) == TWO_OF_THREE


async def test_equal_limits_of_an_application_and_a_mounted_one_count_once_in_one_limiter() -> None:
    async with ringfence.local(RuleSet()) as limiter:
        app, mounted = Starlette(), Starlette(routes=[Route("/", PlainTextResponse("hello"))])
        for each in (app, mounted):
            starlette.RateLimits(limiter, limit="2/hour").install(each)
        app.mount("/sub", mounted)

        assert await statuses(app, ["/sub/"] * 3) == TWO_OF_THREE


async def test_equal_limits_in_two_limiters_count_in_both() -> None:
    inner = asgi.RateLimitMiddleware(hello, in_process(), limit="9/hour")
    app = asgi.RateLimitMiddleware(inner, in_process(), limit="9/hour")
    async with living(app), inner.limits.opened() as limiter:
        await statuses(app, ["/"])

        decision = await limiter.check_limit("9/hour", "app", "client", "203.0.113.9", cost=0)
        assert decision.remaining == 8


def test_equal_nested_middlewares_count_once(blocking: BlockingLimiter) -> None:
    def hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    inner = wsgi.RateLimitMiddleware(hello, blocking, limit="2/hour")
    app = wsgi.RateLimitMiddleware(inner, blocking, limit="2/hour")

    assert [Answer(app).status for _ in range(3)] == TWO_OF_THREE


def test_equal_limits_of_a_view_class_and_its_method_count_once(blocking: BlockingLimiter) -> None:
    app = Flask(__name__)
    limits = flask.RateLimits(app, blocking)

    class Item(MethodView):
        decorators = [limits.limit("2/hour")]  # noqa: RUF012 - as in Flask

        @limits.limit("2/hour")
        def get(self) -> str:
            return "get"

    app.add_url_rule("/", view_func=Item.as_view("item"))

    assert [app.test_client().get("/").status_code for _ in range(3)] == TWO_OF_THREE


def test_equal_decorators_of_a_view_count_once(blocking: BlockingLimiter) -> None:
    @rate_limit("2/hour")
    @rate_limit("2/hour")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("view")

    with override_settings(RINGFENCE={"URL": blocking}, MIDDLEWARE=[]):
        answers = [view(RequestFactory().get("/")) for _ in range(3)]

    assert [each.status_code for each in answers] == TWO_OF_THREE


def test_a_view_that_is_called_twice_for_a_request_counts_twice(blocking: BlockingLimiter) -> None:
    @rate_limit("2/hour")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("view")

    request = RequestFactory().get("/")
    with override_settings(RINGFENCE={"URL": blocking}, MIDDLEWARE=[]):
        assert [view(request).status_code for _ in range(3)] == TWO_OF_THREE
