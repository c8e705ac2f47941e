"""The ASGI middleware: what passes, what is refused, and that nothing else changes."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import anyio
import pytest

import ringfence
from ringfence import AccessDenied, ConfigError, Decision, Limiter
from ringfence.client.decision import UNDECIDED, decide
from ringfence.http import Request
from ringfence.integrations._core.lifespan import AsgiApp, Message, Receive, Scope, Send
from ringfence.integrations.asgi import RateLimitMiddleware, RateLimits, decision_of
from ringfence.integrations.testing import FakeClock
from ringfence.rules import parse_limit
from tests.integrations.asgi_client import ask, living, scope_of, statuses

PER_CLIENT = {"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}}
RULES = {
    "domain": "api",
    "descriptors": [
        PER_CLIENT,
        {
            "key": "running",
            "rate_limit": {"unit": "hour", "requests_per_unit": 1, "algorithm": "concurrency"},
        },
        {
            "key": "queue",
            "rate_limit": {
                "unit": "second",
                "requests_per_unit": 10,
                "algorithm": "leaky_bucket",
                "mode": "queue",
            },
        },
    ],
}

BY_WHOM = {
    "domain": "of whom",
    "descriptors": [
        {"key": key, "rate_limit": {"unit": "hour", "requests_per_unit": 1}}
        for key in ("user", "user_or_ip", "<lambda>", "who")
    ],
}


def here() -> "partial[object]":
    return partial(ringfence.local, RULES)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers in chunks with the status that the path names, else 200."""
    status = int(scope["path"][1:]) if scope["path"][1:].isdigit() else 200
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"text/plain"), (b"x-tokens", b"4")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello, ", "more_body": True})
    await send({"type": "http.response.body", "body": b"world"})


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_client_over_its_limit_is_refused_on_any_event_loop(backend: str) -> None:
    async def main() -> None:
        app = RateLimitMiddleware(hello, here(), domain="api")
        async with living(app):
            assert await statuses(app, ["/"] * 3) == [200, 200, 429]
            assert (await ask(app, peer="198.51.100.2")).status == 200

    anyio.run(main, backend=backend)


async def test_headers_are_added_once_and_the_answer_stays_as_it_is() -> None:
    app = RateLimitMiddleware(hello, here(), domain="api", headers="both")
    async with living(app):
        answer = await ask(app)

    assert answer.fields[:2] == [("content-type", "text/plain"), ("x-tokens", "4")]
    assert answer.headers["ratelimit-policy"] == '"client";q=2;w=3600'
    assert answer.headers["ratelimit"].startswith('"client";r=1;t=')
    assert answer.headers["x-ratelimit-remaining"] == "1"
    assert "retry-after" not in answer.headers
    assert [each["body"] for each in answer.messages[1:]] == [b"hello, ", b"world"]


async def test_a_refusal_says_when_to_come_back_and_is_not_to_be_stored() -> None:
    app = RateLimitMiddleware(hello, here(), limit="1/hour")
    async with living(app):
        await ask(app)
        answer = await ask(app)

    assert answer.status == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert 1 <= int(answer.headers["retry-after"]) <= 7200
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert b"quota-exceeded" in answer.body


async def test_browsers_read_a_page_and_templates_make_their_own() -> None:
    plain = RateLimitMiddleware(hello, here(), limit="0/hour")
    own = RateLimitMiddleware(hello, here(), limit="0/hour", template=lambda _: "<p>later</p>")
    async with living(plain), living(own):
        assert b"<h1>" in (await ask(plain, accept="text/html")).body
        assert (await ask(own)).body == b"<p>later</p>"


async def test_health_checks_and_harmless_methods_are_exempt() -> None:
    app = RateLimitMiddleware(hello, here(), limit="0/hour")
    async with living(app):
        answers = [
            await ask(app, "/healthz"),
            await ask(app, method="HEAD"),
            await ask(app, method="OPTIONS"),
        ]
        assert [each.status for each in answers] == [200] * 3
        assert "ratelimit" not in answers[0].headers
        assert (await ask(app, "/healthz/not")).status == 429


async def test_paths_methods_and_requests_can_be_exempted() -> None:
    app = RateLimitMiddleware(
        hello,
        here(),
        limit="0/hour",
        exempt_paths=["/static/*", "/ping"],
        exempt_methods=["put"],
        exempt_when=lambda request: request.header("x-key") == "ours",
    )
    async with living(app):
        assert (await ask(app, method="PUT")).status == 200
        assert await statuses(app, ["/static/a/b.css", "/ping"]) == [200, 200]
        assert await statuses(app, ["/", "/healthz"]) == [429, 429]
        assert (await ask(app, x_key="ours")).status == 200
        refused = await ask(app, method="HEAD")
        assert (refused.status, refused.body) == (429, b"")


async def test_a_spoofed_address_does_not_escape_and_a_proxy_of_ours_is_believed() -> None:
    app = RateLimitMiddleware(hello, here(), domain="api", trusted_proxies=["10.0.0.0/8"])
    async with living(app):
        spoofed = [await ask(app, x_forwarded_for=f"198.51.100.{n}") for n in range(3)]
        behind = [await ask(app, peer="10.0.0.7", x_forwarded_for=f"1.1.1.{n}") for n in range(3)]

    assert [each.status for each in spoofed] == [200, 200, 429]
    assert [each.status for each in behind] == [200, 200, 200]


@pytest.mark.parametrize(
    "cost", [2, {"/big": 2}, lambda request: 2 if request.path == "/big" else 1]
)
async def test_a_request_may_cost_more(cost: object) -> None:
    app = RateLimitMiddleware(hello, here(), domain="api", cost=cost)  # type: ignore[arg-type]
    async with living(app):
        assert await statuses(app, ["/big", "/big"]) == [200, 429]


async def test_several_limits_stand_or_fall_together() -> None:
    app = RateLimitMiddleware(hello, here(), limit=["5/hour", "1/minute"])
    async with living(app) as _:
        assert await statuses(app, ["/"] * 2) == [200, 429]
        async with app.limits.opened() as limiter:
            left = await limiter.check_limit("5/hour", "app", "client", "203.0.113.9", cost=0)
        assert left.remaining == 4


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (["5/hour", "1/minute"], '"5/hour";q=5;w=3600, "1/minute";q=1;w=60'),
        (["1/minute", "5/hour"], '"1/minute";q=1;w=60'),
    ],
)
async def test_a_refusal_names_the_limits_up_to_the_one_that_refused(
    limits: list[str], told: str
) -> None:
    app = RateLimitMiddleware(hello, here(), limit=limits)
    async with living(app):
        assert (await ask(app)).headers["ratelimit-policy"].count("q=") == 2
        assert (await ask(app)).headers["ratelimit-policy"] == told


async def test_a_limit_may_depend_on_the_tier_of_the_client() -> None:
    def by_tier(request: Request) -> str | None:
        return {"gold": None, "silver": "2/hour"}.get(request.header("x-tier") or "", "1/hour")

    app = RateLimitMiddleware(hello, here(), limit=by_tier, keys="header:x-user")
    async with living(app):
        for tier, passed in (("gold", 3), ("silver", 2), ("", 1)):
            seen = [(await ask(app, x_user=tier or "-", x_tier=tier)).status for _ in range(3)]
            assert seen.count(200) == passed, tier


async def test_only_failures_are_charged_when_it_is_said_so() -> None:
    app = RateLimitMiddleware(
        hello, here(), domain="api", deduct_when=lambda response: response.status == 401
    )
    async with living(app):
        assert await statuses(app, ["/200"] * 5) == [200] * 5
        assert await statuses(app, ["/401", "/401", "/200"]) == [401, 401, 429]


async def test_failures_in_flight_cannot_exceed_the_limit_either() -> None:
    app = RateLimitMiddleware(
        hello, here(), domain="api", deduct_when=lambda response: response.status == 401
    )
    seen: list[int] = []

    async def fail() -> None:
        seen.append((await ask(app, "/401")).status)

    async with living(app), anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(fail)

    assert sorted(seen) == [401] * 2 + [429] * 8


@pytest.mark.parametrize(("limit", "left"), [("10/hour", 6), ("3/hour", 0)])
async def test_the_cost_may_be_told_by_the_answer(limit: str, left: int) -> None:
    app = RateLimitMiddleware(
        hello,
        here(),
        limit=limit,
        cost_after=lambda request, response: int(response.headers["x-tokens"]),
    )
    async with living(app):
        await ask(app)
        async with app.limits.opened() as limiter:
            decision = await limiter.check_limit(limit, "app", "client", "203.0.113.9", cost=0)

    assert decision.remaining == left


async def test_an_application_that_fails_is_charged_as_500_and_its_error_passes() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        raise ZeroDivisionError

    seen: list[int] = []
    app = RateLimitMiddleware(
        broken,
        here(),
        domain="api",
        deduct_when=lambda response: bool(seen.append(response.status)),
    )
    async with living(app):
        with pytest.raises(ZeroDivisionError):
            await ask(app)

    assert seen == [500]


async def test_a_place_is_held_while_the_application_runs() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/nested":
            assert (await ask(app)).status == 429
        await hello(scope, receive, send)

    app = RateLimitMiddleware(slow, here(), domain="api", keys={"running": lambda _: "x"})
    async with living(app):
        assert await statuses(app, ["/nested", "/", "/"]) == [200] * 3


async def test_an_answer_that_takes_longer_than_the_period_keeps_its_slot() -> None:
    clock = FakeClock()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stream":
            for _ in range(4):
                clock.advance(1800)
                assert (await ask(app)).status == 429
        await hello(scope, receive, send)

    inside = partial(ringfence.local, RULES, clock=clock)
    app = RateLimitMiddleware(stream, inside, domain="api", keys={"running": lambda _: "x"})
    async with living(app):
        assert await statuses(app, ["/stream", "/"]) == [200, 200]


async def test_a_limit_that_queues_lets_requests_wait_their_turn(autojump_clock: object) -> None:
    app = RateLimitMiddleware(hello, here(), domain="api", keys={"queue": lambda _: "x"})
    async with living(app):
        begun = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, app)

    assert anyio.current_time() - begun == pytest.approx(0.2, abs=0.05)


async def test_the_off_switch_lets_all_pass_and_can_be_turned_back() -> None:
    limits = RateLimits(here(), limit="0/hour", enabled=False)
    app = RateLimitMiddleware(hello, limits)
    async with living(app):
        assert await statuses(app, ["/"]) == [200]
        limits.is_enabled = True
        assert await statuses(app, ["/"]) == [429]


async def test_switched_off_it_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFENCE_URL", raising=False)
    app = RateLimitMiddleware(hello, limit="0/hour", enabled=False)
    async with living(app) as said:
        assert said[0]["type"] == "lifespan.startup.complete"
        assert await statuses(app, ["/"]) == [200]


async def test_one_middleware_inside_another_adds_to_the_same_headers() -> None:
    inner = RateLimitMiddleware(hello, here(), limit="9/hour", scope="inner")
    app = RateLimitMiddleware(inner, here(), limit="2/hour", scope="outer")
    async with living(app):
        answer = await ask(app)
        assert answer.headers["ratelimit-policy"] == '"2/hour";q=2;w=3600, "9/hour";q=9;w=3600'
        inner_refuses = RateLimitMiddleware(
            RateLimitMiddleware(hello, here(), limit="0/hour"), here(), limit="9/hour"
        )
    async with living(inner_refuses):
        assert (await ask(inner_refuses)).status == 429


async def test_what_each_of_two_limiters_charged_is_settled_by_that_one() -> None:
    inner = RateLimitMiddleware(hello, here(), domain="api", deduct_when=lambda _: False)
    app = RateLimitMiddleware(inner, here(), limit="9/hour")
    async with living(app), inner.limits.opened() as limiter:
        assert await statuses(app, ["/"] * 3) == [200] * 3
        assert (await limiter.peek("api", {"client": "203.0.113.9"})).remaining == 2


async def test_views_can_see_what_was_decided() -> None:
    seen: list[Decision | None] = []

    async def view(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append(decision_of(scope))
            await hello(scope, receive, send)

    app = RateLimitMiddleware(view, here(), domain="api")
    async with living(app):
        await ask(app)

    [decision] = seen
    assert decision is not None
    assert decision.remaining == 1
    assert decision_of(scope_of()) is None


@pytest.mark.parametrize("kind", ["websocket", "something.new"])
async def test_what_is_no_http_request_is_not_touched(kind: str) -> None:
    seen: list[tuple[Scope, Receive, Send]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    scope = {"type": kind, "headers": []}
    await RateLimitMiddleware(app, here(), limit="0/hour")(scope, receive, send)

    assert seen == [(scope, receive, send)]
    assert scope == {"type": kind, "headers": []}


# -- the limiter fails ---------------------------------------------------------------------------


class Failing(Limiter):
    """Raises what it is told; counts how often it was asked."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def expect(self, *_: object) -> list[str]:
        return []

    async def check(self, *_: object, **__: object) -> Decision:
        self.asked += 1
        raise self.error


@pytest.mark.parametrize("error", [AccessDenied("no"), RuntimeError("a bug")], ids=repr)
async def test_a_limiter_that_fails_lets_requests_through_marked_and_says_so_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(hello, Failing(error), domain="api")

    answers = [await ask(app) for _ in range(3)]

    assert [each.status for each in answers] == [200] * 3
    assert [each.headers["ringfence-outage"] for each in answers] == ["allow"] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


class Unreachable(Limiter):
    """Says what a limiter says that finds no node."""

    def __init__(self) -> None:
        pass

    def expect(self, *_: object) -> list[str]:
        return []

    async def check(self, *_: object, **__: object) -> Decision:
        return decide([UNDECIDED])


async def test_an_outage_is_logged_once_however_many_requests_it_lets_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = RateLimitMiddleware(hello, Unreachable(), domain="api")

    answers = [await ask(app) for _ in range(3)]

    assert [each.headers["ringfence-outage"] for each in answers] == ["allow"] * 3
    [record] = caplog.records
    assert (record.name, record.levelno) == ("ringfence.integrations", logging.WARNING)
    assert "no node of the limiter answers" in record.message


async def test_a_limiter_that_refuses_as_such_is_not_asked_again_at_once(
    autojump_clock: object,
) -> None:
    denying, buggy = Failing(AccessDenied("no")), Failing(RuntimeError("a bug"))
    for limiter in (denying, buggy):
        app = RateLimitMiddleware(hello, limiter, domain="api")
        await statuses(app, ["/"] * 5)

    assert (denying.asked, buggy.asked) == (1, 5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cost": lambda _: -1}, "cost -1"),
        ({"cost": lambda _: "5"}, "cost '5'"),
        ({"keys": "user", "user": lambda _: b"ann"}, "user returned b'ann'"),
        ({"keys": "user_or_ip", "user": lambda _: object()}, "user returned <object"),
        ({"keys": "user", "user": lambda _: nothing()}, "user returned <coroutine"),
        ({"keys": "user", "user": lambda _: len}, "user returned <built-in function len>"),
        ({"keys": "user", "user": lambda _: iter("ann")}, "user returned <str"),
        ({"keys": {"tenant": lambda _: b"acme"}}, "key 'tenant' returned b'acme'"),
        ({"limit": lambda _: 5}, "limit 5 is none"),
        ({"limit": lambda _: b"5/m"}, "limit b'5/m' is none"),
        ({"limit": lambda _: ["5/m", 5]}, "limit 5 is none"),
        ({"limit": lambda _: nothing()}, "limit returned <coroutine"),
        ({"limit": lambda _: "5/fortnigt"}, "unknown unit"),
        ({"exempt_when": lambda _: nothing()}, "exempt_when returned <coroutine"),
        ({"deduct_when": lambda _: nothing()}, "deduct_when returned <coroutine"),
        ({"cost_after": lambda *_: "3"}, "cost '3'"),
    ],
)
async def test_the_mistake_of_a_users_function_is_no_outage(
    options: dict[str, object], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(hello, here(), **{"limit": "9/hour"} | options)  # type: ignore[arg-type]
    async with living(app):
        with pytest.raises(ConfigError, match=named):
            await ask(app)
    assert not caplog.records


async def nothing() -> None: ...


@pytest.mark.parametrize("ann", [42, UUID(int=42)])
async def test_who_a_function_names_need_not_be_text(ann: object) -> None:
    options: list[dict[str, Any]] = [
        {"keys": "user", "user": lambda _: ann},
        {"keys": "user_or_ip", "user": lambda _: ann},
        {"keys": lambda _: ann},
        {"keys": {"who": lambda _: ann}},
    ]
    for each in options:
        for limiting in ({"limit": "1/hour"}, {"domain": "of whom"}):
            app = RateLimitMiddleware(hello, partial(ringfence.local, BY_WHOM), **each, **limiting)
            async with living(app):
                assert await statuses(app, ["/"] * 2) == [200, 429]


async def test_a_function_finds_headers_in_whatever_case() -> None:
    def named(request: Request) -> object:
        assert request.headers.get("x-none", "") == ""
        assert request.header("X-User") == request.header("x-user")
        seen.append(sorted(request.headers))
        return request.headers.get("X-User")

    seen: list[list[str]] = []
    app = RateLimitMiddleware(hello, here(), limit="1/hour", keys="user", user=named)
    async with living(app):
        assert await statuses(app, ["/"] * 2, x_user="ann", x_other="1") == [200, 429]
        assert (await ask(app, x_user="bob")).status == 200
        assert (await ask(app)).status == 200
    assert seen[0] == ["x-other", "x-user"]
    assert not seen[-1]


async def test_a_function_may_give_several_limits() -> None:
    given: list[Any] = [["1/hour", "9/day"], ("9/day", "1/hour"), [parse_limit("1/hour")], []]
    for limits in given:
        app = RateLimitMiddleware(hello, here(), limit=lambda _, limits=limits: limits)
        async with living(app):
            assert (await statuses(app, ["/"] * 2) == [200, 429]) is bool(limits)


# -- lifespan ------------------------------------------------------------------------------------


@asynccontextmanager
async def noted(events: list[str]) -> AsyncIterator[Limiter]:
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
    ("make", "between"),
    [
        (with_lifespan, ["startup", "shutdown"]),
        (returning, ["returned"]),
        (raising, ["raised"]),
    ],
)
async def test_the_limiter_is_open_around_the_applications_life(
    make: Callable[[list[str]], AsgiApp], between: list[str]
) -> None:
    events: list[str] = []
    app = RateLimitMiddleware(make(events), lambda: noted(events), domain="api")

    async with living(app) as said:
        assert events[0] == "open"

    assert events == ["open", *between, "closed"]
    assert [each["type"] for each in said] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


async def test_a_wrong_address_ends_the_start_with_its_message() -> None:
    app = RateLimitMiddleware(with_lifespan([]), "ringfence://127.0.0.1:not-a-port", limit="1/s")
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        said.append(message)

    with pytest.raises(ConfigError, match="not-a-port"):
        await app({"type": "lifespan"}, receive, send)

    assert said[0]["type"] == "lifespan.startup.failed"
    assert "not-a-port" in said[0]["message"]


@pytest.mark.parametrize(
    ("limits", "passed"), [(["20/hour", "4/hour"], 4), (["4/hour", "20/hour"], 4)]
)
async def test_limits_that_differ_in_their_amounts_alone_have_counters_of_their_own(
    limits: list[str], passed: int
) -> None:
    app = RateLimitMiddleware(hello, here(), limit=limits)

    async with living(app):
        assert (await statuses(app, ["/"] * 6)).count(200) == passed


async def test_applications_with_a_namespace_share_no_budget() -> None:
    async with ringfence.local({"domain": "d", "descriptors": [{"key": "k"}]}) as limiter:
        apps = [
            RateLimitMiddleware(hello, limiter, limit="1/hour", namespace=name)
            for name in ("shop", "blog", "shop")
        ]

        assert [(await ask(app)).status for app in apps] == [200, 200, 429]


async def test_an_application_may_open_the_limiter_in_its_own_life() -> None:
    app = RateLimitMiddleware(hello, here(), domain="api")

    async with app.limits.opened() as limiter, app.limits.opened() as again:
        assert limiter is again
        assert await statuses(app, ["/"] * 3) == [200, 200, 429]


async def test_without_any_life_the_mistake_is_told() -> None:
    app = RateLimitMiddleware(hello, here(), domain="api")

    with pytest.raises(ConfigError, match="lifespan"):
        await ask(app)


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "limits nothing"),
        ({"domain": "api", "limit": "1/s"}, "both domain 'api' and limit"),
        ({"limit": "many/s"}, "limit 'many/s'"),
        ({"limit": "1/s", "keys": "io"}, "key 'io'"),
        ({"limit": "1/s", "cost": -1}, "cost -1"),
        ({"limit": "1/s", "cost": {"/": -2}}, "cost -2"),
        ({"limit": "1/s", "headers": "github"}, "header style 'github'"),
        ({"limit": "1/s", "trusted_proxies": "everyone"}, "'everyone'"),
        ({"limit": "1/s", "key": "ip"}, "setting 'key' is not known; did you mean 'keys'.* scope"),
        ({"limit": "1/s", "costs": 2}, "did you mean 'cost'"),
    ],
)
def test_settings_that_make_no_sense_are_told_at_once(
    options: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        RateLimitMiddleware(hello, here(), **options)  # type: ignore[arg-type]


def test_settings_belong_to_the_shared_limits_where_there_are_some() -> None:
    with pytest.raises(ConfigError, match="domain"):
        RateLimitMiddleware(hello, RateLimits(here()), domain="api")
