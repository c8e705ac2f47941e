"""Limits on Starlette's endpoints, and refusals in its exception handlers."""

from functools import partial

import anyio
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

import ringfence
from ringfence import ConfigError
from ringfence.integrations.starlette import RateLimitMiddleware, RateLimits, TooManyRequests
from tests.ringfence.integrations.asgi.client import ask, living, statuses

local_limiter = partial(ringfence.local, {"domain": "api", "descriptors": [{"key": "none"}]})


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def test_install_refuses_the_address_of_a_cluster() -> None:
    limits = RateLimits(local_limiter)

    with pytest.raises(ConfigError, match="app must be a Starlette application, got 'ringf"):
        limits.install("ringfence://node:7117")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_each_endpoint_has_its_own_budget(backend: str) -> None:
    limits = RateLimits(local_limiter)

    @limits.limit("1/hour")
    def plain(request: Request) -> Response:
        return PlainTextResponse("plain")

    app = Starlette(
        routes=[
            Route("/one", limits.limit("2/hour")(hello)),
            Route("/plain", plain),
            Route("/free", hello),
        ]
    )
    limits.install(app)

    async def main() -> None:
        async with living(app):
            assert await statuses(app, ["/one"] * 3) == [200, 200, 429]
            assert await statuses(app, ["/plain"] * 2) == [200, 429]
            free = await ask(app, "/free")
            assert (free.status, "ratelimit" in free.headers) == (200, False)

    anyio.run(main, backend=backend)


async def test_an_exempt_endpoint_is_not_limited_by_the_general_limit() -> None:
    limits = RateLimits(local_limiter, limit="1/hour")

    @limits.exempt
    class Open(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("open")

    app = Starlette(routes=[Mount("/in", routes=[Route("/open", Open)]), Route("/", hello)])
    limits.install(app)
    other = RateLimits(local_limiter, limit="1/hour", scope="other")
    app.add_middleware(RateLimitMiddleware, limiter=other)

    async with living(app):
        assert await statuses(app, ["/in/open"] * 2) == [200, 429], "exempt from one of the two"
    async with living(app):
        assert await statuses(app, ["/"] * 2) == [200, 429]


async def test_limits_with_the_same_scope_share_a_budget() -> None:
    limits = RateLimits(local_limiter)
    shared = limits.limit("2/hour", scope="both")
    app = Starlette(
        routes=[
            Route("/a", shared(endpoint_named(hello, "a"))),
            Route("/b", shared(endpoint_named(hello, "b"))),
        ]
    )
    limits.install(app)
    async with living(app):
        assert await statuses(app, ["/a", "/b", "/a"]) == [200, 200, 429]


def endpoint_named(endpoint: object, name: str) -> object:
    async def other(request: Request) -> Response:
        return PlainTextResponse(name)

    return other


async def test_a_refusal_has_headers_and_the_problem() -> None:
    limits = RateLimits(local_limiter)
    app = Starlette(routes=[Route("/", limits.limit("0/hour")(hello))])
    limits.install(app)
    async with living(app):
        answer = await ask(app)

    assert answer.status == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["ratelimit-policy"] == '"0/hour";q=0;w=3600'


async def test_an_exception_handler_receives_the_refusal_and_its_response_has_the_headers() -> None:
    limits = RateLimits(local_limiter)
    app = Starlette(routes=[Route("/", limits.limit("1/hour")(hello))])
    limits.install(app)

    async def handle_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, TooManyRequests)
        assert 1 <= (error.retry_after or 0) <= 7200
        return PlainTextResponse(f"limit {error.decision.limit}", error.status_code)

    app.add_exception_handler(TooManyRequests, handle_refusal)
    async with living(app):
        await ask(app)
        answer = await ask(app)

    assert (answer.status, answer.body) == (429, b"limit 1")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("denial", [TooManyRequests, 429])
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_handler_also_answers_denials_of_the_general_limit(
    denial: int | type[Exception], is_async: bool
) -> None:
    limits = RateLimits(local_limiter, limit="1/hour")
    app = Starlette(routes=[Route("/", hello)])
    limits.install(app)

    def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, TooManyRequests)
        return PlainTextResponse(f"{request.url.path} {error.decision.limit}", error.status_code)

    async def handle_async(request: Request, error: Exception) -> Response:
        return handle(request, error)

    app.add_exception_handler(denial, handle_async if is_async else handle)
    async with living(app):
        await ask(app)
        answer = await ask(app)

    assert (answer.status, answer.body) == (429, b"/ 1")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["cache-control"] == "no-store"


async def test_retry_after_is_absent_if_a_handler_returns_success() -> None:
    limits = RateLimits(local_limiter, headers="both")
    app = Starlette(routes=[Route("/", limits.limit("1/hour")(hello))])
    limits.install(app)
    app.add_exception_handler(TooManyRequests, lambda *_: PlainTextResponse("stale"))
    async with living(app):
        await ask(app)
        answer = await ask(app)

    assert (answer.status, answer.body) == (200, b"stale")
    assert not {"retry-after", "x-ratelimit-retry-after"} & set(answer.headers)


async def test_streams_and_files_pass_whole(tmp_path: object) -> None:
    async def stream(request: Request) -> Response:
        return StreamingResponse(str(n) for n in range(5))

    async def file(request: Request) -> Response:
        return FileResponse(__file__)

    limits = RateLimits(local_limiter, limit="9/hour")
    app = Starlette(routes=[Route("/stream", stream), Route("/file", file)])
    limits.install(app)
    async with living(app):
        streamed, filed = await ask(app, "/stream"), await ask(app, "/file")

    assert streamed.body == b"01234"
    assert b"test_streams_and_files_pass_whole" in filed.body
    assert "ratelimit" in streamed.headers
    assert "ratelimit" in filed.headers


async def test_keys_use_the_route_before_routing() -> None:
    limits = RateLimits(local_limiter, limit="2/hour", keys="route")
    app = Starlette(
        routes=[
            Route("/users/{id}", hello),
            Mount("/admin", routes=[Route("/users/{id}", hello)]),
        ]
    )
    limits.install(app)
    async with living(app):
        assert await statuses(app, [f"/users/{n}" for n in range(3)]) == [200, 200, 429]
        assert await statuses(app, [f"/admin/users/{n}" for n in range(3)]) == [200, 200, 429]
        assert await statuses(app, [f"/nowhere/{n}" for n in range(3)]) == [404, 404, 429]


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("x-user")
        return (AuthCredentials(), SimpleUser(name)) if name else None


async def test_authenticated_users_have_separate_counters() -> None:
    limits = RateLimits(local_limiter, limit="1/hour", keys="user_or_ip")
    app = Starlette(routes=[Route("/", hello)])
    limits.install(app)
    app.add_middleware(AuthenticationMiddleware, backend=ByHeader())
    async with living(app):
        ada = await statuses(app, ["/"] * 2, x_user="ada")
        bob = await statuses(app, ["/"] * 2, x_user="bob")
        anonymous = await statuses(app, ["/"] * 2)

    assert ada == bob == anonymous == [200, 429]


async def test_a_limit_without_the_middleware_is_an_error() -> None:
    limits = RateLimits(local_limiter)
    app = Starlette(routes=[Route("/", limits.limit("1/hour")(hello))])
    async with limits.opened():
        with pytest.raises(ConfigError, match=r"limits\.install"):
            await ask(app)


def test_a_limit_without_an_amount_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must name a limit"):
        RateLimits(local_limiter).limit()(hello)


async def test_endpoint_classes_are_limited_by_middleware_of_their_route() -> None:
    class Item(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("item")

    limits = RateLimits(local_limiter)
    with pytest.raises(ConfigError, match="limit its route"):
        limits.limit("1/hour")(Item)

    own = RateLimits(local_limiter, limit="1/hour", scope="item")
    app = Starlette(
        routes=[Route("/", Item, middleware=[Middleware(RateLimitMiddleware, limiter=own)])]
    )
    limits.install(app)
    async with own.opened(), living(app):
        assert await statuses(app, ["/", "/"]) == [200, 429]
