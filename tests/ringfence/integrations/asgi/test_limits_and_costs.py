"""ASGI middleware: which limits apply, what a request costs, and when it is charged."""

from functools import partial

import anyio
import pytest
import trio
from trio.testing import MockClock

import ringfence
from ringfence.http import Request
from ringfence.integrations._core.lifespan import Receive, Scope, Send
from ringfence.integrations.asgi import RateLimitMiddleware
from ringfence.integrations.testing import FakeClock
from ringfence.rules import RuleSet
from tests.ringfence.integrations.asgi.app import RULES, hello, in_process
from tests.ringfence.integrations.asgi.client import ask, living, statuses


@pytest.mark.parametrize(
    "cost", [2, {"/big": 2}, lambda request: 2 if request.path == "/big" else 1]
)
async def test_a_request_can_cost_more_than_one_unit(cost: object) -> None:
    app = RateLimitMiddleware(hello, in_process(), domain="api", cost=cost)  # type: ignore[arg-type]
    async with living(app):
        assert await statuses(app, ["/big", "/big"]) == [200, 429]


async def test_several_limits_are_charged_all_or_none() -> None:
    app = RateLimitMiddleware(hello, in_process(), limit=["5/hour", "1/minute"])
    async with living(app) as _:
        assert await statuses(app, ["/"] * 2) == [200, 429]
        async with app.limits.opened() as limiter:
            decision = await limiter.check_limit("5/hour", "app", "client", "203.0.113.9", cost=0)
        assert decision.remaining == 4


@pytest.mark.parametrize(
    ("limits", "policy"),
    [
        (["5/hour", "1/minute"], '"5/hour";q=5;w=3600, "1/minute";q=1;w=60'),
        (["1/minute", "5/hour"], '"1/minute";q=1;w=60'),
    ],
)
async def test_a_429_lists_the_limits_up_to_the_denying_one(limits: list[str], policy: str) -> None:
    app = RateLimitMiddleware(hello, in_process(), limit=limits)
    async with living(app):
        assert (await ask(app)).headers["ratelimit-policy"].count("q=") == 2
        assert (await ask(app)).headers["ratelimit-policy"] == policy


async def test_a_limit_can_depend_on_the_request() -> None:
    def by_tier(request: Request) -> str | None:
        return {"gold": None, "silver": "2/hour"}.get(request.header("x-tier") or "", "1/hour")

    app = RateLimitMiddleware(hello, in_process(), limit=by_tier, keys="header:x-user")
    async with living(app):
        for tier, allowed in (("gold", 3), ("silver", 2), ("", 1)):
            seen = [(await ask(app, x_user=tier or "-", x_tier=tier)).status for _ in range(3)]
            assert seen.count(200) == allowed, tier


@pytest.mark.parametrize(
    ("limits", "allowed"), [(["20/hour", "4/hour"], 4), (["4/hour", "20/hour"], 4)]
)
async def test_limits_with_different_amounts_have_separate_counters(
    limits: list[str], allowed: int
) -> None:
    app = RateLimitMiddleware(hello, in_process(), limit=limits)

    async with living(app):
        assert (await statuses(app, ["/"] * 6)).count(200) == allowed


async def test_applications_with_different_namespaces_share_no_counter() -> None:
    async with ringfence.local({"domain": "d", "descriptors": [{"key": "k"}]}) as limiter:
        apps = [
            RateLimitMiddleware(hello, limiter, limit="1/hour", namespace=name)
            for name in ("shop", "blog", "shop")
        ]

        assert [(await ask(app)).status for app in apps] == [200, 200, 429]


async def test_deduct_when_charges_only_failed_responses() -> None:
    app = RateLimitMiddleware(
        hello, in_process(), domain="api", deduct_when=lambda response: response.status == 401
    )
    async with living(app):
        assert await statuses(app, ["/200"] * 5) == [200] * 5
        assert await statuses(app, ["/401", "/401", "/200"]) == [401, 401, 429]


async def test_concurrent_failures_cannot_exceed_the_limit() -> None:
    app = RateLimitMiddleware(
        hello, in_process(), domain="api", deduct_when=lambda response: response.status == 401
    )
    seen: list[int] = []

    async def fail() -> None:
        seen.append((await ask(app, "/401")).status)

    async with living(app), anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(fail)

    assert sorted(seen) == [401] * 2 + [429] * 8


@pytest.mark.parametrize(("limit", "remaining"), [("10/hour", 6), ("3/hour", 0)])
async def test_cost_after_reads_the_cost_from_the_response(limit: str, remaining: int) -> None:
    app = RateLimitMiddleware(
        hello,
        in_process(),
        limit=limit,
        cost_after=lambda request, response: int(response.headers["x-tokens"]),
    )
    async with living(app):
        await ask(app)
        async with app.limits.opened() as limiter:
            decision = await limiter.check_limit(limit, "app", "client", "203.0.113.9", cost=0)

    assert decision.remaining == remaining


async def test_an_application_error_counts_as_500_and_propagates() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        raise ZeroDivisionError

    seen: list[int] = []
    app = RateLimitMiddleware(
        broken,
        in_process(),
        domain="api",
        deduct_when=lambda response: bool(seen.append(response.status)),
    )
    async with living(app):
        with pytest.raises(ZeroDivisionError):
            await ask(app)

    assert seen == [500]


async def test_a_slot_is_held_while_the_application_runs() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/nested":
            assert (await ask(app)).status == 429
        await hello(scope, receive, send)

    app = RateLimitMiddleware(slow, in_process(), domain="api", keys={"running": lambda _: "x"})
    async with living(app):
        assert await statuses(app, ["/nested", "/", "/"]) == [200] * 3


async def test_a_response_longer_than_the_period_keeps_its_slot() -> None:
    clock = FakeClock()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stream":
            for _ in range(4):
                clock.advance(1800)
                assert (await ask(app)).status == 429
        await hello(scope, receive, send)

    local_limiter = partial(ringfence.local, RULES, clock=clock)
    app = RateLimitMiddleware(stream, local_limiter, domain="api", keys={"running": lambda _: "x"})
    async with living(app):
        assert await statuses(app, ["/stream", "/"]) == [200, 200]


async def test_a_queueing_limit_delays_requests(autojump_clock: object) -> None:
    app = RateLimitMiddleware(hello, in_process(), domain="api", keys={"queue": lambda _: "x"})
    async with living(app):
        started = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, app)

    assert anyio.current_time() - started == pytest.approx(0.2, abs=0.05)


class TrioClock:
    """trio's virtual time as the limiter's."""

    def now(self) -> int:
        return round(trio.current_time() * 1e9)


async def test_a_request_that_is_cancelled_in_its_delay_releases_its_slot(
    autojump_clock: MockClock,
) -> None:
    async with ringfence.local(RuleSet(), clock=TrioClock()) as limiter:
        limits = ["1 concurrent ttl 1h", "1/s queue burst 5"]
        app = RateLimitMiddleware(hello, limiter, limit=limits)
        assert (await ask(app)).status == 200

        with trio.move_on_after(0.1):
            await ask(app)
            raise AssertionError  # The delay is longer.
        await trio.sleep(10)

        assert (await ask(app)).status == 200
