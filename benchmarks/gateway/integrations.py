"""Cost of limits per request in each web framework, beside the same application without limits.

There is no network, and a server only where the figure names one; otherwise the benchmark calls the
application as a server does. Requests with and without limits alternate, so both run under the same
conditions. `instant` uses a limiter that answers immediately, like a lease or the denial cache: the
cost of the middleware itself. `local` counts in this process, and so does `slowapi`, a common
alternative.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import ringfence
from benchmarks.gateway.asgi_driver import served
from benchmarks.gateway.django_app import django_apps
from benchmarks.reporting.figure import Figure
from ringfence import Decision, Limiter
from ringfence.blocking import BlockingLimiter
from ringfence.integrations import asgi, fastapi, flask, wsgi
from ringfence.integrations._core.lifespan import AsgiApp, Message, Receive, Scope, Send

__all__ = ["run"]

_REQUESTS = 300
"""Requests per sample."""
_KEY = {"ip": "203.0.113.9"}
_RULES = {
    "domain": "bench",
    "descriptors": [
        {"key": "ip", "rate_limit": {"unit": "hour", "requests_per_unit": 2_000_000_000}}
    ],
}
_Asked: TypeAlias = Callable[[], Awaitable[object]]
_Samples: TypeAlias = dict[str, list[list[float]]]
"""Times of each request in microseconds, by kind of limiter and round."""


class Instant(Limiter):
    """Fake limiter that allows every request immediately."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    async def check(self, *_: object, **__: object) -> Decision:
        """Return a constant decision, whatever the request is."""
        return self._decision


class BlockingInstant(BlockingLimiter):
    """Fake blocking limiter that answers immediately, without a thread."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def check(self, *_: object, **__: object) -> Decision:
        """Return a constant decision, whatever the request is."""
        return self._decision


def run(rounds: int) -> Iterator[Figure]:
    """Measure the middlewares for ASGI, then those for WSGI."""
    yield from asyncio.run(_asynchronous(rounds))
    with ringfence.blocking.local(_RULES) as limiter:
        instant = BlockingInstant(limiter.check("bench", _KEY))
        yield from _compared("wsgi", rounds, *_wsgi_apps(instant, limiter))
        yield from _compared("flask", rounds, *_flask_apps(instant, limiter))
        sites = [_calling(app) for app in django_apps((instant, limiter))]
        yield from _compared("django", rounds, *sites)


async def _asynchronous(rounds: int) -> list[Figure]:
    found: list[Figure] = []
    async with ringfence.local(_RULES) as limiter:
        instant = Instant(await limiter.check("bench", _KEY))

        async def check() -> None:
            await limiter.check("bench", _KEY)

        alone = [await _latencies(check) for _ in range(rounds)]
        found.append(
            _figure("integrations.check_local_us", [_share(each, 0.5) for each in alone], "us")
        )
        limiters = {"bare": None, "instant": instant, "local": limiter}
        apps = {kind: _fastapi_app(each) for kind, each in limiters.items()}
        apps["slowapi"] = _slowapi_app()
        for name, asked in (
            ("asgi", {kind: _asking(_asgi_app(each)) for kind, each in limiters.items()}),
            ("fastapi", {kind: _asking(app) for kind, app in apps.items()}),
            ("uvicorn_fastapi", {kind: served(app, _KEY["ip"]) for kind, app in apps.items()}),
        ):
            samples: _Samples = {kind: [] for kind in asked}
            for _ in range(rounds):
                for kind, ask in asked.items():
                    samples[kind].append(await _latencies(ask))
            found += _compare(name, samples)
    return found


def _compared(
    name: str,
    rounds: int,
    bare: Callable[[], object],
    instant: Callable[[], object],
    local: Callable[[], object],
) -> Iterator[Figure]:
    asked = {"bare": bare, "instant": instant, "local": local}
    samples: _Samples = {kind: [] for kind in asked}
    for _ in range(rounds):
        for kind, ask in asked.items():
            samples[kind].append(_blocking_latencies(ask))
    yield from _compare(name, samples)


def _compare(name: str, samples: _Samples) -> Iterator[Figure]:
    """Yield the time per request that each kind of limiter adds, and the share of the throughput
    that remains."""
    bare = samples["bare"]
    limited = {kind: taken for kind, taken in samples.items() if kind != "bare"}
    for share, called in ((0.5, "p50"), (0.99, "p99")):
        base = [_share(each, share) for each in bare]
        yield _figure(f"integrations.{name}.bare_{called}_us", base, "us")
        for kind, taken in limited.items():
            added = [_share(each, share) - one for each, one in zip(taken, base, strict=True)]
            yield _figure(f"integrations.{name}.{kind}_adds_{called}_us", added, "us")
    for kind, taken in limited.items():
        kept = [_rate(each) / _rate(one) for each, one in zip(taken, bare, strict=True)]
        yield _figure(f"integrations.{name}.{kind}_keeps", kept, "ratio")


def _rate(sample: list[float]) -> float:
    """Return requests per second on one core, without the slowest tenth of the samples."""
    ordered = sorted(sample)
    counted = ordered[: len(ordered) * 9 // 10]
    return 1e6 * len(counted) / sum(counted)


# -- applications ----------------------------------------------------------------------------------


async def _hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello"})


def _asgi_app(limiter: Limiter | None) -> AsgiApp:
    if limiter is None:
        return _hello
    return asgi.RateLimitMiddleware(_hello, limiter, domain="bench")


def _fastapi_app(limiter: Limiter | None) -> AsgiApp:
    from fastapi import FastAPI

    app = FastAPI()
    if limiter is not None:
        fastapi.RateLimits(limiter, domain="bench").install(app)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"say": "hello"}

    return app


def _slowapi_app() -> AsgiApp:
    """Return an application whose requests the package `slowapi` limits by counts in this
    process."""
    from fastapi import FastAPI
    from slowapi import Limiter as SlowLimiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

    app = FastAPI()
    app.state.limiter = SlowLimiter(
        key_func=get_remote_address, default_limits=["2000000000/hour"], headers_enabled=True
    )
    app.add_middleware(SlowAPIASGIMiddleware)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"say": "hello"}

    return app


def _asking(app: AsgiApp) -> _Asked:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    async def ask() -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/",
            "raw_path": b"/",
            "root_path": "",
            "query_string": b"",
            "client": (_KEY["ip"], 50000),
            "server": ("127.0.0.1", 80),
            "headers": [(b"host", b"localhost"), (b"accept", b"*/*"), (b"user-agent", b"bench")],
        }
        await app(scope, receive, send)

    return ask


def _wsgi_apps(*limiters: BlockingLimiter) -> list[Callable[[], object]]:
    def hello(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    limited = [wsgi.RateLimitMiddleware(hello, each, domain="bench") for each in limiters]
    return [_calling(app) for app in (hello, *limited)]


def _flask_apps(*limiters: BlockingLimiter) -> list[Callable[[], object]]:
    from flask import Flask

    apps = [Flask(__name__) for _ in (None, *limiters)]
    for app, limiter in zip(apps, (None, *limiters), strict=True):
        if limiter is not None:
            flask.RateLimits(app, limiter, domain="bench")
        app.add_url_rule("/", "hello", lambda: "hello")
    return [_calling(app) for app in apps]


def _calling(app: Any) -> Callable[[], object]:
    from werkzeug.test import EnvironBuilder

    plain = EnvironBuilder(environ_base={"REMOTE_ADDR": _KEY["ip"]}).get_environ()

    def ask() -> None:
        chunks = app(dict(plain), lambda *_: None)
        for _ in chunks:
            pass

    return ask


# -- measuring -------------------------------------------------------------------------------------


async def _latencies(ask: _Asked) -> list[float]:
    """Return the microseconds of each request of a sample."""
    taken = []
    with _without_collections():
        for _ in range(_REQUESTS):
            started_at = perf_counter()
            await ask()
            taken.append((perf_counter() - started_at) * 1e6)
    return taken


def _blocking_latencies(ask: Callable[[], object]) -> list[float]:
    taken = []
    with _without_collections():
        for _ in range(_REQUESTS):
            started_at = perf_counter()
            ask()
            taken.append((perf_counter() - started_at) * 1e6)
    return taken


@contextmanager
def _without_collections() -> Iterator[None]:
    """Run garbage collection before a sample, and not during it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _share(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[int(share * (len(ordered) - 1))]


def _figure(name: str, samples: list[float], unit: str) -> Figure:
    return Figure(name, median(samples), unit, min(samples), max(samples), len(samples))
