"""Limits as FastAPI dependencies, and their entries in the OpenAPI document."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import anyio
import pytest
from fastapi import APIRouter, Body, FastAPI, HTTPException, Request, Response, WebSocket
from fastapi.testclient import TestClient
from starlette.applications import Starlette

import ringfence
from ringfence import ConfigError, Decision
from ringfence.integrations.fastapi import RateLimits
from tests.ringfence.integrations.asgi.client import ask, living, statuses

RULES = {
    "domain": "api",
    "descriptors": [{"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}}],
}
local_limiter = partial(ringfence.local, RULES)


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
    app = make(RateLimits(local_limiter))

    async def main() -> None:
        async with living(app):
            assert await statuses(app, ["/report"] * 3) == [200, 200, 429]
            assert await statuses(app, ["/free"] * 3) == [200] * 3

    anyio.run(main, backend=backend)


async def test_paths_of_a_route_share_a_budget_but_routes_do_not() -> None:
    app = make(RateLimits(local_limiter))
    async with living(app):
        assert await statuses(app, ["/items/1", "/items/2", "/items/3"]) == [200, 200, 429]
        assert await statuses(app, ["/v1/in/a/1", "/v1/in/a/2", "/v1/in/b"]) == [200, 429, 200]
        assert await statuses(app, ["/v2/in/a/1", "/v2/in/a/2"]) == [200, 429]


async def test_all_responses_have_each_header_once() -> None:
    app = make(RateLimits(local_limiter))
    async with living(app):
        assert (await ask(app, "/v1/in/b")).headers["ratelimit"].startswith('"1/hour";r=0;t=')
        assert (await ask(app, "/report")).headers["ratelimit"].startswith('"2/hour";r=1;t=')
        refused = await ask(app, "/v1/in/b")

    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_view_can_read_the_decision() -> None:
    app = make(RateLimits(local_limiter))
    async with living(app):
        assert (await ask(app, "/seen")).body == b"6"


async def test_limits_of_views_can_charge_only_failures() -> None:
    limits = RateLimits(local_limiter)
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


async def test_two_limits_of_a_view_always_have_separate_counters() -> None:
    limits = RateLimits(local_limiter)
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


async def test_a_view_keeps_its_count_when_its_limit_callback_changes() -> None:
    limits = RateLimits(local_limiter)
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


async def test_rules_of_a_domain_can_limit_a_view_or_all_views() -> None:
    limits = RateLimits(local_limiter)
    app = FastAPI()
    limits.install(app)

    @app.get("/ruled", dependencies=[limits.depends(domain="api")])
    async def ruled() -> None: ...

    everything = make(RateLimits(local_limiter, domain="api"))
    async with living(app), living(everything):
        assert await statuses(app, ["/ruled"] * 3) == [200, 200, 429]
        assert await statuses(everything, ["/free", "/seen", "/report"]) == [200, 200, 429]


async def test_the_route_is_known_before_routing_also_in_included_routers() -> None:
    app = make(RateLimits(local_limiter, limit="1/hour", keys="route"))
    async with living(app):
        assert await statuses(app, ["/v1/in/a/1", "/v1/in/a/2", "/v1/in/b"]) == [200, 429, 200]
        assert await statuses(app, ["/v3/in/a/1", "/v3/in/a/2"]) == [404, 429]


def test_openapi_documents_429_only_for_limited_routes() -> None:
    paths = make(RateLimits(local_limiter)).openapi()["paths"]

    documented = {
        path for path, item in paths.items() if "429" in next(iter(item.values()))["responses"]
    }
    assert documented == set(paths) - {"/free", "/login/{password}"}
    assert "/v2/in/a/{x}" in documented
    refusal = paths["/report"]["get"]["responses"]["429"]
    assert "Retry-After" in refusal["headers"]


def test_openapi_documents_429_for_all_routes_that_a_general_limit_covers() -> None:
    paths = make(RateLimits(local_limiter, domain="api", exempt_paths=["/free"])).openapi()["paths"]

    documented = {
        path for path, item in paths.items() if "429" in next(iter(item.values()))["responses"]
    }
    assert documented == set(paths) - {"/free"}


def test_an_invalid_limit_is_reported_when_the_route_is_defined() -> None:
    with pytest.raises(ConfigError, match="limit 'some/hour'"):
        RateLimits(local_limiter).depends("some/hour")


def test_the_error_for_a_non_fastapi_application_names_its_integration() -> None:
    with pytest.raises(ConfigError, match=r"ringfence\.integrations\.starlette"):
        RateLimits(local_limiter).install(Starlette())


def decorated(limits: RateLimits) -> FastAPI:
    """Build an application with each limit below its route's decorator, as in slowapi."""
    app = FastAPI()
    limits.install(app)

    @app.get("/async")
    @limits.limit("2/hour")
    async def asynchronous() -> str:
        return "async"

    @app.get("/sync/{number}")
    @limits.limit("2/hour")
    def sync(number: int, detail: bool = False) -> list[object]:
        return [number, detail]

    @app.post("/request")
    @limits.limit("2/hour")
    async def takes_request(request: Request, amount: Annotated[int, Body()]) -> list[object]:
        return [request.method, amount]

    @app.get("/twice")
    @limits.limit("3/hour")
    @limits.limit("2/hour", scope="twice")
    def twice() -> str:
        return "twice"

    return app


@pytest.mark.parametrize("path", ["/async", "/sync/1", "/twice"])
async def test_a_limit_below_the_routes_decorator_limits_as_a_dependency_does(path: str) -> None:
    app = decorated(RateLimits(local_limiter))

    async with living(app):
        assert await statuses(app, [path] * 3) == [200, 200, 429]
        refused = await ask(app, path)
    assert refused.headers["content-type"] == "application/problem+json"


def test_a_decorated_function_receives_only_its_own_parameters() -> None:
    app = decorated(RateLimits(local_limiter))

    with TestClient(app) as client:
        assert client.get("/sync/7?detail=1").json() == [7, True]
        assert client.get("/sync/x").status_code == 422
        assert client.post("/request", json=3).json() == ["POST", 3]
    documented = app.openapi()["paths"]["/sync/{number}"]["get"]
    assert [each["name"] for each in documented["parameters"]] == ["number", "detail"]
    assert "429" in documented["responses"]


def test_a_limit_above_the_routes_decorator_is_an_error_at_the_start() -> None:
    limits, app = RateLimits(local_limiter), FastAPI()
    limits.install(app)
    router = APIRouter(prefix="/in")

    @limits.limit("2/hour")
    @router.get("/report")
    async def report() -> str:
        return "report"

    app.include_router(router)

    above = pytest.raises(ConfigError, match=r"below .* '/in/report', got it above.*def report")
    with above, TestClient(app):
        pass


def test_the_error_for_a_limit_on_a_generator_names_the_alternative() -> None:
    def stream() -> Iterator[str]:
        yield "part"

    with pytest.raises(ConfigError, match=r"dependencies=\[limits\.depends"):
        RateLimits(local_limiter).limit("2/hour")(stream)


async def test_an_exempt_route_has_only_its_own_limit() -> None:
    limits = RateLimits(local_limiter, limit="1/hour")
    app = FastAPI()
    limits.install(app)
    router = APIRouter()

    @limits.exempt
    @app.get("/above")
    async def above() -> str:
        return "above"

    @router.get("/below/{number}")
    @limits.exempt
    @limits.limit("2/hour")
    def below(number: int) -> int:
        return number

    app.include_router(router, prefix="/v1")
    app.get("/other")(lambda: "other")

    async with living(app):
        assert await statuses(app, ["/above"] * 3) == [200] * 3
        assert await statuses(app, [f"/v1/below/{n}" for n in range(3)]) == [200, 200, 429]
        assert await statuses(app, ["/other"] * 2) == [200, 429]
        assert await statuses(app, ["/above"]) == [200]
    paths = app.openapi()["paths"]
    assert "429" not in paths["/above"]["get"]["responses"]
    assert "429" in paths["/other"]["get"]["responses"]


def test_a_limit_of_the_application_leaves_websockets_alone() -> None:
    limits = RateLimits(local_limiter)
    app = FastAPI(dependencies=[limits.depends("1/hour")])
    limits.install(app)

    @app.get("/page")
    async def page() -> str:
        return "page"

    @app.websocket("/ws")
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    with TestClient(app) as client:
        for _ in range(2):
            with client.websocket_connect("/ws") as socket:
                assert socket.receive_text() == "hello"
        assert [client.get("/page").status_code for _ in range(2)] == [200, 429]


def test_a_mounted_application_with_the_same_limits_counts_each_request_once() -> None:
    limits = RateLimits(local_limiter, limit="10/hour", template=lambda refusal: "later")
    app, mounted = FastAPI(), FastAPI()
    for each in (app, mounted):
        limits.install(each)
    app.mount("/sub", mounted)

    @mounted.get("/page", dependencies=[limits.depends("2/hour")])
    async def page() -> str:
        return "page"

    with TestClient(app) as client:
        answers = [client.get("/sub/page") for _ in range(3)]
        assert [each.status_code for each in answers] == [200, 200, 429]
        assert answers[2].text == "later"
        assert ";r=6;" in client.get("/none").headers["RateLimit"]
