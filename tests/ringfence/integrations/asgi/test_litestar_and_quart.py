"""Litestar and Quart-Trio through plain ASGI."""

from functools import partial

import anyio
import pytest
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from quart import Quart
from quart_trio import QuartTrio

import ringfence
from ringfence.integrations._core.lifespan import AsgiApp
from ringfence.integrations.asgi import RateLimitMiddleware, RateLimits
from tests.ringfence.integrations.asgi.client import ask, living, statuses

local_limiter = partial(ringfence.local, {"domain": "api", "descriptors": [{"key": "none"}]})


@get("/users/{number:int}")
async def user() -> str:
    return "user"


def litestar_wrapped() -> AsgiApp:
    return RateLimitMiddleware(Litestar([user]), local_limiter, limit="2/hour")


def litestar_inside() -> AsgiApp:
    limits = RateLimits(local_limiter, limit="2/hour", keys="route")
    return Litestar(
        [user],
        middleware=[DefineMiddleware(RateLimitMiddleware, limiter=limits)],
        lifespan=[lambda _: limits.opened()],
    )


def quart(kind: type[Quart] = Quart) -> AsgiApp:
    app = kind(__name__)

    @app.get("/users/<int:number>")
    async def user(number: int) -> str:
        return "user"

    app.asgi_app = RateLimitMiddleware(app.asgi_app, local_limiter, limit="2/hour")
    return app


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (litestar_wrapped, "asyncio"),
        (litestar_wrapped, "trio"),
        (litestar_inside, "asyncio"),
        (quart, "asyncio"),
        (partial(quart, QuartTrio), "trio"),
    ],
)
def test_a_client_over_its_limit_is_refused(make: partial[AsgiApp], backend: str) -> None:
    async def main() -> None:
        app = make()
        async with living(app):
            assert await statuses(app, [f"/users/{n}" for n in range(3)]) == [200, 200, 429]
            refused = await ask(app, "/users/9")
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) >= 1

    anyio.run(main, backend=backend)
