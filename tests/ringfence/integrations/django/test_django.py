"""Django: middleware, decorator, throttle and checks, with the WSGI and ASGI handlers."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext
from django.core.checks import run_checks
from django.test import AsyncClient, Client, RequestFactory, override_settings

import ringfence.blocking
from ringfence import ConfigError
from ringfence.blocking import BlockingLimiter
from ringfence.integrations.django import rate_limit
from ringfence.integrations.django.integration import DjangoRequest, project_limits
from tests.ringfence.integrations.django import site as django_site

OURS = "ringfence.integrations.django.RateLimitMiddleware"
UNMODIFIED = "tests.ringfence.integrations.django.site.unmodified"
USERS = "tests.ringfence.integrations.django.site.authenticate_by_header"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
RULES = {
    "domain": "api",
    "descriptors": [{"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}}],
}
WITH_AND_WITHOUT_MIDDLEWARE = pytest.mark.parametrize(
    "middleware", [[OURS], []], ids=["middleware", "alone"]
)


@pytest.fixture
def limiter() -> Iterator[BlockingLimiter]:
    with (
        ringfence.blocking.local(RULES) as limiter,
        override_settings(RINGFENCE={"URL": limiter}, MIDDLEWARE=[USERS, OURS]),
    ):
        yield limiter


class Sync:
    """Client that calls Django's WSGI handler."""

    def responses(self, *paths: str, method: str = "get", **headers: str) -> list[Any]:
        client = Client(raise_request_exception=False)
        return [getattr(client, method)(path, headers=headers) for path in paths]

    def statuses(self, *paths: str, **headers: str) -> list[int]:
        return [each.status_code for each in self.responses(*paths, **headers)]


class Async(Sync):
    """Client that calls Django's ASGI handler."""

    def responses(self, *paths: str, method: str = "get", **headers: str) -> list[Any]:
        async def ask() -> list[Any]:
            client = AsyncClient(raise_request_exception=False)
            return [await getattr(client, method)(path, headers=headers) for path in paths]

        return asyncio.run(ask())


@asynccontextmanager
async def disconnected_request(
    path: str, entered: threading.Event, may_end: threading.Event
) -> AsyncIterator[None]:
    """Call a sync view whose client disconnects while it runs; it ends after the block."""
    django_site.threads.append((entered, may_end))
    request = asyncio.create_task(AsyncClient().get(path))
    assert await asyncio.to_thread(entered.wait, 5)
    request.cancel()
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        may_end.set()
        with suppress(asyncio.CancelledError):
            await request


@pytest.fixture(params=[Sync, Async], ids=["wsgi", "asgi"])
def server(request: pytest.FixtureRequest, limiter: BlockingLimiter) -> Sync:
    made: Sync = request.param()
    return made


def test_an_exempt_view_has_only_its_own_limit(server: Sync, limiter: BlockingLimiter) -> None:
    with override_settings(RINGFENCE={"URL": limiter, "LIMIT": "1/hour"}, MIDDLEWARE=[USERS, OURS]):
        assert server.statuses(*["/v1/open", "/open-class"] * 2) == [200] * 4
        assert server.statuses(*["/half-open"] * 3) == [200, 200, 429]
        assert server.statuses("/free", "/free", "/nothing") == [200, 429, 429]
    with override_settings(
        RINGFENCE={"URL": limiter, "LIMIT": "1/hour", "SCOPE": "users"},
        ROOT_URLCONF="tests.ringfence.integrations.django.urls_without_exempt_view",
    ):
        assert server.statuses("/users/1", "/users/2") == [200, 429]


@pytest.mark.parametrize("path", ["/plain", "/async", "/class", "/async-class"])
@WITH_AND_WITHOUT_MIDDLEWARE
def test_each_view_has_its_own_budget(server: Sync, path: str, middleware: list[str]) -> None:
    with override_settings(MIDDLEWARE=middleware):
        first, refused = server.responses(path, path)
        assert server.statuses("/free", "/free") == [200, 200]

    assert first.status_code == 200
    assert first.headers["RateLimit"].startswith('"1/hour";r=0;t=')
    assert "Retry-After" not in first.headers
    assert refused.status_code == 429
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert int(refused.headers["Retry-After"]) >= 1


@WITH_AND_WITHOUT_MIDDLEWARE
def test_a_view_that_does_not_block_sees_that_a_request_is_over_the_limit(
    server: Sync, middleware: list[str]
) -> None:
    with override_settings(MIDDLEWARE=middleware):
        answers = server.responses(*["/unblocked"] * 3)

    assert [each.status_code for each in answers] == [200] * 3
    assert [each.content for each in answers] == [b"in time"] + [b"over the limit"] * 2


def test_rules_limit_all_requests_including_those_without_a_view(
    server: Sync, limiter: BlockingLimiter
) -> None:
    with override_settings(RINGFENCE={"URL": limiter, "DOMAIN": "api"}):
        first, not_found, refused = server.responses(
            "/free", "/nowhere", "/free", accept="text/html"
        )
        assert server.responses("/free", method="options")[0].status_code == 200
        assert server.statuses("/free", x_forwarded_for="1.1.1.1") == [429]

    assert first.headers["RateLimit"].startswith('"client";r=1;t=')
    assert not_found.status_code == 404
    assert refused.status_code == 429
    assert b"<h1>Too many requests</h1>" in refused.content


@pytest.mark.parametrize("view", ["login", "login-async"])
@WITH_AND_WITHOUT_MIDDLEWARE
def test_deduct_when_charges_only_failed_responses(
    server: Sync, view: str, middleware: list[str]
) -> None:
    with override_settings(MIDDLEWARE=middleware):
        assert server.statuses(*[f"/{view}/right"] * 4) == [200] * 4
        assert server.statuses(f"/{view}/lost", f"/{view}/broken", f"/{view}/right") == [
            404,
            500,
            429,
        ]


@WITH_AND_WITHOUT_MIDDLEWARE
def test_a_stream_is_settled_at_its_end(limiter: BlockingLimiter, middleware: list[str]) -> None:
    with override_settings(MIDDLEWARE=middleware):
        first, second = Sync().responses("/stream", "/stream")

        assert second.status_code == 429
        assert b"".join(first.streaming_content) == b"abc"
        assert Sync().statuses("/stream") == [200]


@pytest.mark.parametrize("path", ["/stream", "/async-stream"])
def test_a_stream_that_is_never_read_is_settled(limiter: BlockingLimiter, path: str) -> None:
    server = Sync() if path == "/stream" else Async()
    with override_settings(MIDDLEWARE=[UNMODIFIED, OURS]):
        assert server.statuses(path) == [304]
    gc.collect()
    for settling in [each for each in threading.enumerate() if each.name == "ringfence-settle"]:
        settling.join(30)

    assert server.statuses(path) == [200]


@WITH_AND_WITHOUT_MIDDLEWARE
def test_a_request_whose_client_disconnects_releases_its_slot(
    limiter: BlockingLimiter, middleware: list[str]
) -> None:
    async def ask() -> int:
        began = asyncio.Event()
        django_site.entered.append(began)
        request = asyncio.create_task(AsyncClient().get("/forever"))
        await began.wait()
        assert (await AsyncClient().get("/with-slot")).status_code == 429
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        return (await AsyncClient().get("/with-slot")).status_code

    with override_settings(MIDDLEWARE=middleware):
        assert asyncio.run(ask()) == 200


@pytest.mark.parametrize("settings", [{}, {"LIMIT": "1 concurrent ttl 1h", "SCOPE": "all"}])
@WITH_AND_WITHOUT_MIDDLEWARE
def test_a_sync_view_keeps_its_slot_until_its_thread_has_ended(
    limiter: BlockingLimiter, middleware: list[str], settings: dict[str, str]
) -> None:
    async def statuses_after_disconnect() -> list[int]:
        entered, may_end = threading.Event(), threading.Event()
        view = "/sync-with-slot" if not settings else "/undecorated"
        async with disconnected_request(view, entered, may_end), ThreadSensitiveContext():
            during = (await AsyncClient().get("/with-slot")).status_code
        return [during, (await AsyncClient().get("/with-slot")).status_code]

    with override_settings(
        MIDDLEWARE=middleware if not settings else [OURS], RINGFENCE={"URL": limiter, **settings}
    ):
        assert asyncio.run(statuses_after_disconnect()) == [429, 200]


@WITH_AND_WITHOUT_MIDDLEWARE
def test_a_sync_view_is_charged_by_its_response_although_the_client_has_disconnected(
    limiter: BlockingLimiter, middleware: list[str]
) -> None:
    async def ask() -> int:
        for _ in range(2):
            entered, may_end = threading.Event(), threading.Event()
            async with disconnected_request("/sync-login", entered, may_end):
                pass
        return (await AsyncClient().get("/sync-login")).status_code

    with override_settings(MIDDLEWARE=middleware):
        assert asyncio.run(ask()) == 429


def test_outer_middleware_sees_context_variables_that_a_view_has_set(
    limiter: BlockingLimiter,
) -> None:
    outer = "tests.ringfence.integrations.django.site.with_view_name"
    with override_settings(MIDDLEWARE=[outer, OURS]):
        (response,) = Async().responses("/named")

    assert response.headers["X-View"] == "named"


def test_an_async_stream_is_settled_at_its_end(limiter: BlockingLimiter) -> None:
    async def request_stream() -> None:
        client = AsyncClient()
        first = await client.get("/async-stream")
        assert (await client.get("/async-stream")).status_code == 429
        assert b"".join([part async for part in first]) == b"abc"
        assert (await client.get("/async-stream")).status_code == 200

    asyncio.run(request_stream())


def test_streams_report_their_cost_and_are_charged_in_full(limiter: BlockingLimiter) -> None:
    async def ask() -> None:
        first = await AsyncClient().get("/async-tokens")
        assert b"".join([part async for part in first]) == b"a"

    [first] = Sync().responses("/tokens")
    assert b"".join(first.streaming_content) == b"a"
    asyncio.run(ask())

    assert Sync().statuses("/tokens") == [429]


def test_users_have_separate_counters_and_are_fetched_without_blocking_async_code(
    limiter: BlockingLimiter,
) -> None:
    server = Async()
    with override_settings(MIDDLEWARE=[USERS, OURS]):
        for headers in ({"x-user": "ada"}, {"x-user": "bob"}, {}):
            assert server.statuses("/per-user", "/per-user", **headers) == [200, 429]


@pytest.mark.parametrize("handler", [Sync, Async])
def test_the_general_limit_can_be_per_user(limiter: BlockingLimiter, handler: type[Sync]) -> None:
    settings = {"URL": limiter, "LIMIT": "1/hour", "KEYS": "user_or_ip"}
    with override_settings(MIDDLEWARE=[USERS, OURS], RINGFENCE=settings):
        for headers in ({"x-user": "ada"}, {"x-user": "bob"}, {}):
            assert handler().statuses("/free", "/free", **headers) == [200, 429]


def test_paths_of_one_route_share_one_budget(server: Sync, limiter: BlockingLimiter) -> None:
    with override_settings(RINGFENCE={"URL": limiter, "LIMIT": "2/hour", "KEYS": "route"}):
        assert server.statuses(*[f"/v1/users/{n}" for n in range(3)]) == [200, 200, 429]
        assert server.statuses(*[f"/nowhere/{n}" for n in range(3)]) == [404, 404, 429]


@pytest.mark.parametrize("path", ["/search", "/other-search"])
def test_rest_framework_throttles_and_sends_the_wait(server: Sync, path: str) -> None:
    with override_settings(MIDDLEWARE=[OURS]):
        first, refused = server.responses(path, path)

    assert first.headers["RateLimit"].startswith('"1/hour";r=0;t=')
    assert refused.status_code == 429
    assert "throttled" in refused.json()["detail"]
    assert int(refused.headers["Retry-After"]) >= 1


def test_the_throttle_works_without_the_middleware(limiter: BlockingLimiter) -> None:
    with override_settings(MIDDLEWARE=[]):
        first, refused = Sync().responses("/search", "/search")

    assert "RateLimit" not in first.headers
    assert int(refused.headers["Retry-After"]) >= 1


def test_a_throttle_that_charges_by_the_response_needs_the_middleware(
    limiter: BlockingLimiter,
) -> None:
    assert Sync().statuses("/failed-search", "/failed-search") == [200, 200]
    with override_settings(MIDDLEWARE=[]), pytest.raises(ConfigError, match="RateLimitMiddleware"):
        Client().get("/failed-search")


def test_functions_of_rest_framework_can_be_decorated(server: Sync) -> None:
    assert server.statuses("/decorated-search", "/decorated-search") == [200, 429]


def test_a_failing_limiter_allows_requests_and_marks_them(
    server: Sync, limiter: BlockingLimiter
) -> None:
    limiter.close()
    first, second = server.responses("/plain", "/async")

    assert [first.status_code, second.status_code] == [500, 200]  # The view requires a decision.
    assert second.headers["Ringfence-Outage"] == "allow"


def test_async_views_connect_without_blocking_the_event_loop(limiter: BlockingLimiter) -> None:
    unopened = ringfence.blocking.local(RULES)
    with override_settings(RINGFENCE={"URL": unopened}):
        assert Async().statuses("/async", "/async") == [200, 429]
    unopened.close()


def test_disabled_limits_need_no_cluster(monkeypatch: pytest.MonkeyPatch, server: Sync) -> None:
    monkeypatch.delenv("RINGFENCE_URL", raising=False)
    with override_settings(RINGFENCE={"ENABLED": False, "LIMIT": "0/hour"}):
        assert server.statuses("/free", "/async") == [200, 200]


def test_the_error_for_a_decorated_method_names_the_remedy(limiter: BlockingLimiter) -> None:
    with pytest.raises(ConfigError, match="method_decorator"):
        Client().get("/wrong")


def test_an_invalid_limit_is_reported_at_its_definition() -> None:
    with pytest.raises(ConfigError, match="limit 'some/hour'"):
        rate_limit("some/hour")


def test_callbacks_read_headers_case_insensitively() -> None:
    request = DjangoRequest(RequestFactory().get("/", headers={"X-Tier": "gold"}))

    assert request.headers["x-tier"] == request.headers.get("X-TIER") == "gold"
    assert request.header("x-tier") == "gold"
    assert request.headers.get("x-none") is None


# -- manage.py check -------------------------------------------------------------------------------


def check_ids() -> list[str | None]:
    return [each.id for each in run_checks() if str(each.id).startswith("ringfence")]


def test_the_system_check_accepts_valid_settings(limiter: BlockingLimiter) -> None:
    assert check_ids() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"LIMIT": "some/hour"}, "some/hour"),
        ({"LIMITS": "1/hour"}, "'LIMITS'"),
        ({"LIMIT": "1/hour", "DOMAIN": "api"}, "both domain"),
        ({"URL": "ringfence://127.0.0.1:not-a-port"}, "not-a-port"),
        ({"KEY": "ip"}, "did you mean 'KEYS'?"),
        (
            {"KEY": "ip", "LIMTI": "1/hour", "TIMEOUT": "x"},
            "timeout must be seconds, 0 or more, got 'x'; unknown setting 'KEY' in RINGFENCE; did "
            "you mean 'KEYS'? unknown setting 'LIMTI' in RINGFENCE; did you mean 'LIMIT'? known",
        ),
        ({5: "ip"}, "unknown setting 5 in RINGFENCE"),
        (
            {"KEYS": None},
            "keys must be a name such as 'ip', a function or a list of these, got None",
        ),
        ({"EXEMPT_PATHS": "/ping"}, "exempt_paths must be a list, such as ['/ping'], got '/ping'"),
        ({"TIMEOUT": "x"}, "timeout must be seconds, 0 or more, got 'x'"),
        ({"ENABLED": "no"}, "enabled must be True or False, got 'no'"),
    ],
)
def test_the_system_check_reports_invalid_settings(
    settings: dict[str, object], message: str, limiter: BlockingLimiter
) -> None:
    with override_settings(RINGFENCE={"URL": limiter} | settings):
        [error] = [each for each in run_checks() if each.id == "ringfence.E001"]

    assert message in error.msg


@pytest.mark.parametrize("settings", [[], None, "1/hour"])
def test_the_system_check_reports_settings_that_are_not_a_dictionary(settings: object) -> None:
    with override_settings(RINGFENCE=settings):
        [error] = [each for each in run_checks() if each.id == "ringfence.E001"]

    assert "RINGFENCE must be a dictionary" in error.msg


def test_the_system_check_warns_of_settings_without_effect(limiter: BlockingLimiter) -> None:
    by_user = {"URL": limiter, "LIMIT": "1/hour", "KEYS": "user"}
    with override_settings(MIDDLEWARE=[], RINGFENCE=by_user):
        assert check_ids() == ["ringfence.W001"]
    with override_settings(MIDDLEWARE=[OURS, AUTHENTICATION], RINGFENCE=by_user):
        assert check_ids() == ["ringfence.W002"]
    with override_settings(MIDDLEWARE=[AUTHENTICATION, OURS], RINGFENCE=by_user):
        assert check_ids() == []
    with override_settings(SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https")):
        assert check_ids() == ["ringfence.W003"]


def test_changed_settings_are_loaded_again(limiter: BlockingLimiter) -> None:
    before = project_limits()
    with override_settings(RINGFENCE={"URL": limiter, "HEADERS": "x"}):
        assert project_limits() is not before
    assert django_site.urlpatterns
