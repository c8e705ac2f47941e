"""Unmodified Flask-Limiter and slowapi with a Ringfence storage URL, in process and on nodes."""

import anyio
import httpx
import pytest
from fastapi import FastAPI, Request
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.commands import cli as flask_limiter_commands
from flask_limiter.util import get_remote_address as flask_address
from slowapi import Limiter as SlowLimiter
from slowapi import _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address as slow_address
from starlette.responses import PlainTextResponse

import ringfence.integrations.limits  # noqa: F401 - registers its addresses

STRATEGIES = ("fixed-window", "moving-window", "sliding-window-counter")
YEAR_S = 360 * 86_400
"""Seconds of a year in the package `limits`; a window of an hour could end during a test."""
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
LOCAL = "ringfence+local://"


def flask_app(uri, strategy="fixed-window", **options):
    app = Flask("app")
    limiter = FlaskLimiter(
        flask_address,
        app=app,
        storage_uri=uri,
        strategy=strategy,
        headers_enabled=True,
        **options,
    )

    @app.get("/a")
    @limiter.limit("5/year")
    def a():
        return "a"

    @app.get("/failing")
    @limiter.limit("2/year", deduct_when=lambda response: response.status_code == 401)
    def failing():
        return "no", 401

    return app, limiter


def test_commands_of_flask_limiter_show_the_storage_and_clear_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app, limiter = flask_app(LOCAL)
    runner = app.test_cli_runner()
    try:
        assert [app.test_client().get("/a").status_code for _ in range(6)][-1] == 429
        shown = runner.invoke(flask_limiter_commands, ["config"])
        limits = runner.invoke(flask_limiter_commands, ["limits", "--key=127.0.0.1"])
        cleared = runner.invoke(flask_limiter_commands, ["clear", "--key=127.0.0.1", "-y"])
        assert app.test_client().get("/a").status_code == 200
    finally:
        limiter.storage.close()

    assert shown.exit_code == 0, shown.exception
    assert "RingfenceStorage" in shown.output
    assert "BlockingLimiter(open)" in shown.output
    assert "OK" in shown.output
    assert (limits.exit_code, cleared.exit_code) == (0, 0)
    assert "5 per 1 year: Fail (0 out of 5 remaining)" in limits.output


def slow_app(uri, strategy="fixed-window", **options):
    limiter = SlowLimiter(
        slow_address, storage_uri=uri, strategy=strategy, headers_enabled=True, **options
    )
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    @app.get("/a")
    @limiter.limit("5/year")
    async def a(request: Request):
        return PlainTextResponse("a")

    return app, limiter


def get_each(apps):
    """Request /a of each application in turn, in one asyncio loop."""

    async def get(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.get("http://test/a")

    async def get_all():
        return [await get(app) for app in apps]

    return anyio.run(get_all, backend="asyncio")


@every_strategy
def test_flask_limiter_enforces_the_limit_and_sends_the_remaining_units(strategy):
    app, limiter = flask_app(LOCAL, strategy)
    client = app.test_client()

    answers = [client.get("/a") for _ in range(7)]

    assert [each.status_code for each in answers] == [200] * 5 + [429] * 2
    assert [each.headers["X-RateLimit-Remaining"] for each in answers[:5]] == [*"43210"]
    assert 0 < int(answers[-1].headers["Retry-After"]) <= YEAR_S + 1
    limiter.reset()
    assert client.get("/a").status_code == 200
    limiter.storage.close()


@every_strategy
def test_flask_limiter_can_charge_only_failures(strategy):
    app, limiter = flask_app(LOCAL, strategy)
    client = app.test_client()

    assert [client.get("/failing").status_code for _ in range(3)] == [401, 401, 429]
    limiter.storage.close()


def test_flask_limiter_uses_its_fallback_if_the_cluster_is_unreachable():
    app, limiter = flask_app(
        "ringfence://127.0.0.1:9",
        storage_options={"raise_on_outage": True, "connect_timeout": 0.05},
        in_memory_fallback=["2/year"],
    )
    client = app.test_client()

    assert [client.get("/a").status_code for _ in range(3)] == [200, 200, 429]
    limiter.storage.close()


def test_flask_limiter_allows_requests_if_the_cluster_is_unreachable():
    app, limiter = flask_app("ringfence://127.0.0.1:9", storage_options={"connect_timeout": 0.05})
    client = app.test_client()

    assert [client.get("/a").status_code for _ in range(7)] == [200] * 7
    limiter.storage.close()


@every_strategy
def test_slowapi_enforces_the_limit_and_sends_the_remaining_units(strategy):
    app, limiter = slow_app(LOCAL, strategy)
    answers = get_each([app] * 7)

    assert [each.status_code for each in answers] == [200] * 5 + [429] * 2
    assert [each.headers["X-RateLimit-Remaining"] for each in answers[:5]] == [*"43210"]
    assert 0 < int(answers[-1].headers["Retry-After"]) <= YEAR_S + 1
    limiter.reset()
    assert get_each([app])[0].status_code == 200
    limiter._storage.close()


def test_two_servers_with_the_same_library_share_one_budget_on_real_nodes(cluster):
    """The libraries use different keys, so only servers of the same library share a budget."""
    flasks = [flask_app(cluster.url, "moving-window") for _ in range(2)]
    slows = [slow_app(cluster.url, "moving-window") for _ in range(2)]
    clients = [app.test_client() for app, _ in flasks]
    try:
        statuses = [clients[n % 2].get("/a").status_code for n in range(12)]
        assert statuses == [200] * 5 + [429] * 7

        answers = get_each([app for app, _ in slows] * 6)
        assert [each.status_code for each in answers] == [200] * 5 + [429] * 7
    finally:
        for _, limiter in flasks:
            limiter.storage.close()
        for _, limiter in slows:
            limiter._storage.close()
