"""ASGI middleware: opening and closing the limiter with the application."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import ringfence
from ringfence import ConfigError, Limiter
from ringfence.integrations._core.lifespan import AsgiApp, Message, Receive, Scope, Send
from ringfence.integrations.asgi import RateLimitMiddleware
from tests.ringfence.integrations.asgi.app import RULES, hello, in_process
from tests.ringfence.integrations.asgi.client import ask, living, statuses


@asynccontextmanager
async def recorded_limiter(events: list[str]) -> AsyncIterator[Limiter]:
    events.append("open")
    async with ringfence.local(RULES) as limiter:
        yield limiter
    events.append("closed")


def with_lifespan(events: list[str]) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for event in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{event}"
            events.append(event)
            await send({"type": f"lifespan.{event}.complete"})

    return app


def returning(events: list[str]) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        events.append("returned")

    return app


def raising(events: list[str]) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        events.append("raised")
        raise ValueError("what is a lifespan?")

    return app


@pytest.mark.parametrize(
    ("make_application", "between"),
    [
        (with_lifespan, ["startup", "shutdown"]),
        (returning, ["returned"]),
        (raising, ["raised"]),
    ],
)
async def test_the_limiter_is_open_during_the_applications_lifespan(
    make_application: Callable[[list[str]], AsgiApp], between: list[str]
) -> None:
    events: list[str] = []
    app = RateLimitMiddleware(
        make_application(events), lambda: recorded_limiter(events), domain="api"
    )

    async with living(app) as messages:
        assert events[0] == "open"

    assert events == ["open", *between, "closed"]
    assert [each["type"] for each in messages] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


async def test_the_limiter_is_closed_before_the_server_receives_the_end_of_the_shutdown() -> None:
    events: list[str] = []
    app = RateLimitMiddleware(with_lifespan(events), lambda: recorded_limiter(events), domain="api")
    received = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(received)

    async def send(message: Message) -> None:
        events.append(f"sent {message['type']}")

    await app({"type": "lifespan"}, receive, send)

    assert events[-2:] == ["closed", "sent lifespan.shutdown.complete"]


async def test_a_limiter_that_fails_to_close_fails_the_shutdown() -> None:
    @asynccontextmanager
    async def failing() -> AsyncIterator[Limiter]:
        async with ringfence.local(RULES) as limiter:
            yield limiter
        raise ConfigError("cannot close")

    app = RateLimitMiddleware(with_lifespan([]), failing, domain="api")
    received = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    messages: list[Message] = []

    async def receive() -> Message:
        return next(received)

    async def send(message: Message) -> None:
        messages.append(message)

    with pytest.raises(ConfigError, match="cannot close"):
        await app({"type": "lifespan"}, receive, send)

    assert [each["type"] for each in messages] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.failed",
    ]


async def test_a_wrong_address_fails_the_startup_with_its_message() -> None:
    app = RateLimitMiddleware(with_lifespan([]), "ringfence://127.0.0.1:not-a-port", limit="1/s")
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        messages.append(message)

    with pytest.raises(ConfigError, match="not-a-port"):
        await app({"type": "lifespan"}, receive, send)

    assert messages[0]["type"] == "lifespan.startup.failed"
    assert "not-a-port" in messages[0]["message"]


async def test_an_application_can_open_the_limiter_in_its_own_lifespan() -> None:
    app = RateLimitMiddleware(hello, in_process(), domain="api")

    async with app.limits.opened() as limiter, app.limits.opened() as again:
        assert limiter is again
        assert await statuses(app, ["/"] * 3) == [200, 200, 429]


async def test_a_server_without_lifespan_gets_an_error() -> None:
    app = RateLimitMiddleware(hello, in_process(), domain="api")

    with pytest.raises(ConfigError, match="lifespan"):
        await ask(app)
