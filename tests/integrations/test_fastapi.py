"""Limits as FastAPI's dependencies, and what its OpenAPI document says of them."""

from functools import partial
from typing import Annotated

import anyio
import pytest
from fastapi import APIRouter, FastAPI, HTTPException, Response
from starlette.applications import Starlette

import ringfence
from ringfence import ConfigError, Decision
from ringfence.integrations.fastapi import RateLimits
from tests.integrations.asgi_client import ask, living, statuses

RULES = {
    "domain": "api",
    "descriptors": [{"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}}],
}
here = partial(ringfence.local, RULES)


def make(limits: RateLimits) -> FastAPI:
    app = FastAPI()
    limits.install(app)

    @app.get("/report", dependencies=[limits.depends("2/hour")])
    async def report() -> str:
        return "report"

    @app.get("/items/{item}", dependencies=[limits.depends("2/hour")])
    def item(item: int) -> int:
        return item

    @app.get("/seen")
    async def seen(decision: Annotated[Decision, limits.depends("7/hour")]) -> int | None:
        return decision.remaining

    @app.post("/login/{password}")
    async def login(password: str) -> str:
        if password != "right":
            raise HTTPException(401)
        return "welcome"

    router = APIRouter(prefix="/in", dependencies=[limits.depends("1/hour")])

    @router.get("/a/{x}")
    async def a(x: str) -> str:
        return x

    @router.get("/b")
    async def b() -> Response:
        return Response("b")

    app.include_router(router, prefix="/v1")
    app.include_router(router, prefix="/v2")

    @app.get("/free")
    async def free() -> str:
        return "free"

    return app


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_view_is_limited_without_a_request_in_its_signature(backend: str) -> None:
    app = make(RateLimits(here))

    async def main() -> None:
        async with living(app):
            assert await statuses(app, ["/report"] * 3) == [200, 200, 429]
            assert await statuses(app, ["/free"] * 3) == [200] * 3

    anyio.run(main, backend=backend)


async def test_paths_of_one_route_share_its_budget_and_routes_of_a_router_do_not() -> None:
    app = make(RateLimits(here))
    async with living(app):
        assert await statuses(app, ["/items/1", "/items/2", "/items/3"]) == [200, 200, 429]
        assert await statuses(app, ["/v1/in/a/1", "/v1/in/a/2", "/v1/in/b"]) == [200, 429, 200]
        assert await statuses(app, ["/v2/in/a/1", "/v2/in/a/2"]) == [200, 429]


async def test_answers_of_any_kind_have_the_headers_once() -> None:
    app = make(RateLimits(here))
    async with living(app):
        assert (await ask(app, "/v1/in/b")).headers["ratelimit"].startswith('"1/hour";r=0;t=')
        assert (await ask(app, "/report")).headers["ratelimit"].startswith('"2/hour";r=1;t=')
        refused = await ask(app, "/v1/in/b")

    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_view_that_wants_to_sees_the_decision() -> None:
    app = make(RateLimits(here))
    async with living(app):
        assert (await ask(app, "/seen")).body == b"6"


async def test_limits_of_views_can_charge_failures_only() -> None:
    limits = RateLimits(here)
    app = FastAPI()
    limits.install(app)
    failures = limits.depends("2/hour", deduct_when=lambda response: response.status == 401)

    @app.get("/login/{password}", dependencies=[failures])
    async def login(password: str) -> str:
        if password != "right":
            raise HTTPException(401)
        return "welcome"

    async with living(app):
        assert await statuses(app, ["/login/right"] * 4) == [200] * 4
        wrong = await statuses(app, ["/login/a", "/login/b", "/login/right"])

    assert wrong == [401, 401, 429]


async def test_two_limits_of_a_view_have_counters_of_their_own_whatever_they_have_in_common() -> (
    None
):
    limits = RateLimits(here)
    app = FastAPI()
    limits.install(app)
    every = limits.depends("6/hour")
    failures = limits.depends("2/hour", deduct_when=lambda response: response.status == 401)

    @app.get("/login/{password}", dependencies=[every, failures])
    async def login(password: str) -> str:
        if password != "right":
            raise HTTPException(401)
        return "welcome"

    async with living(app):
        right = await statuses(app, ["/login/right"] * 4)
        wrong = await statuses(app, ["/login/a", "/login/b", "/login/right"])

    assert (right, wrong) == ([200] * 4, [401, 401, 429])


async def test_a_view_whose_limit_a_function_tells_counts_on_when_it_tells_another() -> None:
    limits = RateLimits(here)
    app = FastAPI()
    limits.install(app)
    tier = limits.depends(lambda request: request.header("x-tier"))

    @app.get("/", dependencies=[tier])
    async def view() -> str:
        return "view"

    async with living(app):
        seen = [(await ask(app, x_tier=each)).status for each in ("2/hour", "2/hour", "3/hour")]
        over = (await ask(app, x_tier="3/hour")).status

    assert (seen, over) == ([200] * 3, 429)


async def test_rules_of_a_domain_limit_a_view_too_and_all_of_them_everything() -> None:
    limits = RateLimits(here)
    app = FastAPI()
    limits.install(app)

    @app.get("/ruled", dependencies=[limits.depends(domain="api")])
    async def ruled() -> None: ...

    everything = make(RateLimits(here, domain="api"))
    async with living(app), living(everything):
        assert await statuses(app, ["/ruled"] * 3) == [200, 200, 429]
        assert await statuses(everything, ["/free", "/seen", "/report"]) == [200, 200, 429]


async def test_the_route_is_known_before_it_is_chosen_below_included_routers_too() -> None:
    app = make(RateLimits(here, limit="1/hour", keys="route"))
    async with living(app):
        assert await statuses(app, ["/v1/in/a/1", "/v1/in/a/2", "/v1/in/b"]) == [200, 429, 200]
        assert await statuses(app, ["/v3/in/a/1", "/v3/in/a/2"]) == [404, 429]


def test_openapi_shows_429_where_a_route_is_limited_and_nowhere_else() -> None:
    paths = make(RateLimits(here)).openapi()["paths"]

    shown = {
        path for path, item in paths.items() if "429" in next(iter(item.values()))["responses"]
    }
    assert shown == set(paths) - {"/free", "/login/{password}"}
    assert "/v2/in/a/{x}" in shown
    refusal = paths["/report"]["get"]["responses"]["429"]
    assert "Retry-After" in refusal["headers"]


def test_openapi_shows_429_everywhere_when_everything_is_limited() -> None:
    paths = make(RateLimits(here, domain="api", exempt_paths=["/free"])).openapi()["paths"]

    shown = {
        path for path, item in paths.items() if "429" in next(iter(item.values()))["responses"]
    }
    assert shown == set(paths) - {"/free"}


def test_a_bad_limit_is_told_when_the_route_is_written() -> None:
    with pytest.raises(ConfigError, match="limit 'some/hour'"):
        RateLimits(here).depends("some/hour")


def test_an_application_that_is_not_fastapis_is_told_where_to_go() -> None:
    with pytest.raises(ConfigError, match=r"ringfence\.integrations\.starlette"):
        RateLimits(here).install(Starlette())
