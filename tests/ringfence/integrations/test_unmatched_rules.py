"""Domains and keys that no rule can match: every framework warns, or refuses them if strict."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from fastapi import FastAPI
from flask import Flask

import ringfence
import ringfence.blocking
from ringfence import ConfigError
from ringfence.blocking import BlockingLimiter
from ringfence.integrations import asgi, fastapi, flask, starlette, wsgi
from ringfence.integrations.django import rate_limit
from ringfence.integrations.django.integration import project_limits
from tests.ringfence.integrations.asgi.client import ask, living, statuses
from tests.ringfence.integrations.django import site as django_site  # noqa: F401 - configures Django

RULES = {
    "domain": "api",
    "descriptors": [{"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}}],
}
MISTAKES = [
    ({"domain": "apii"}, "domain 'apii' has no rules.*did you mean .api.*there are rules for api"),
    ({"domain": "api", "keys": "ip"}, "no rule for descriptor key 'ip'.*rules are for client"),
    ({"domain": "api", "keys": ["client=ip", "user+route"]}, "no rule for .* 'user > route'"),
]
local_limiter = partial(ringfence.local, RULES)
mistakes = pytest.mark.parametrize(("options", "report"), MISTAKES, ids=["domain", "key", "second"])


@pytest.fixture
def limiter() -> Iterator[BlockingLimiter]:
    with ringfence.blocking.local(RULES) as limiter:
        yield limiter


async def hello(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def was_logged_once(caplog: pytest.LogCaptureFixture, report: str) -> bool:
    return len(caplog.messages) == 1 and re.search(report, caplog.text) is not None


@mistakes
async def test_an_asgi_application_starts_with_a_warning(
    options: Any, report: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = asgi.RateLimitMiddleware(hello, local_limiter, **options)

    async with living(app):
        assert was_logged_once(caplog, report)
        assert set(await statuses(app, ["/"] * 2)) == {200}
    assert was_logged_once(caplog, report)


@mistakes
async def test_a_strict_asgi_application_does_not_start(options: Any, report: str) -> None:
    app = asgi.RateLimitMiddleware(hello, local_limiter, strict=True, **options)

    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=report)):
        async with living(app):
            pass


async def test_an_open_limiter_is_checked_immediately() -> None:
    async with local_limiter() as limiter:
        with pytest.raises(ConfigError, match="'apii' has no rules"):
            asgi.RateLimits(limiter, domain="apii", strict=True)
        limits = starlette.RateLimits(limiter, strict=True)
        with pytest.raises(ConfigError, match="'apii' has no rules"):
            limits.limit(domain="apii")(hello)


async def test_a_domain_and_keys_of_rules_cause_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = asgi.RateLimitMiddleware(hello, local_limiter, domain="api", strict=True)

    async with living(app):
        assert await statuses(app, ["/"] * 3) == [200, 200, 429]
    assert caplog.messages == []


async def test_the_default_key_is_that_of_the_example_rules() -> None:
    app = asgi.RateLimitMiddleware(hello, local_limiter, domain="api")

    async with living(app):
        assert (await ask(app)).headers["ratelimit"].startswith('"client";')


async def test_rules_of_a_fastapi_dependency_are_checked_at_the_server_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits, app = fastapi.RateLimits(local_limiter), FastAPI()
    limits.install(app)

    @app.get("/report", dependencies=[limits.depends(domain="apii")])
    async def report() -> str:
        return "report"

    async with living(app):
        assert was_logged_once(caplog, "domain 'apii' has no rules")
        assert await statuses(app, ["/report"] * 3) == [200] * 3
    assert was_logged_once(caplog, "domain 'apii' has no rules")


@mistakes
def test_a_wsgi_application_warns(
    options: Any, report: str, limiter: BlockingLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    wsgi.RateLimits(limiter, **options)

    assert was_logged_once(caplog, report)


@mistakes
def test_a_strict_wsgi_application_connects_at_its_start_and_raises(
    options: Any, report: str
) -> None:
    unopened = ringfence.blocking.local(RULES)

    with pytest.raises(ConfigError, match=report):
        wsgi.RateLimits(unopened, strict=True, **options)
    unopened.close()


@mistakes
def test_a_flask_application_warns_and_a_strict_one_is_refused(
    options: Any, report: str, limiter: BlockingLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    flask.RateLimits(Flask("lenient"), limiter, **options)
    assert was_logged_once(caplog, report)

    with pytest.raises(ConfigError, match=report):
        flask.RateLimits(Flask("strict"), limiter, strict=True, **options)


def test_limits_of_flask_views_are_checked_at_the_first_request(
    limiter: BlockingLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    app = Flask("shop")
    limits = flask.RateLimits(app, limiter)

    @app.get("/other")
    def other() -> str:
        return "other"

    @app.get("/report")
    @limits.limit(domain="apii")
    def report() -> str:
        return "report"

    assert app.test_client().get("/other").status_code == 200
    assert was_logged_once(caplog, "domain 'apii' has no rules")


@mistakes
def test_a_django_project_warns_and_a_strict_one_does_not_start(
    options: dict[str, object],
    report: str,
    limiter: BlockingLimiter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"URL": limiter} | {name.upper(): value for name, value in options.items()}

    with override_settings(RINGFENCE=settings):
        project_limits()
        assert was_logged_once(caplog, report)
    with (
        override_settings(RINGFENCE=settings | {"STRICT": True}),
        pytest.raises(ConfigError, match=report),
    ):
        Client().get("/free")


def test_the_domain_of_a_django_view_is_checked_at_its_first_request(
    limiter: BlockingLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    view: Callable[..., Any] = rate_limit(domain="apii")(lambda request: HttpResponse("report"))

    with override_settings(RINGFENCE={"URL": limiter}):
        assert view(RequestFactory().get("/")).status_code == 200
    assert was_logged_once(caplog, "domain 'apii' has no rules")
