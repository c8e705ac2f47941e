"""The gateway's API on an in-process limiter, called without sockets."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import ringfence
from ringfence.gateway.grpc.rls import RateLimitService
from ringfence.gateway.http.api import Api
from ringfence.gateway.http.http_types import Exchange, Response
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.gateway.process.tokens import Tokens
from ringfence.gateway.process.worker import make_api, make_rls

MINUTE = {"unit": "minute", "algorithm": "fixed_window"}
RULES = {
    "domain": "api",
    "descriptors": [
        {"key": "client", "rate_limit": {**MINUTE, "requests_per_unit": 3}},
        {"key": "wide", "rate_limit": {**MINUTE, "requests_per_unit": 10, "name": "wide"}},
        {
            "key": "special",
            "rate_limit": {**MINUTE, "requests_per_unit": 5, "replaces": [{"name": "wide"}]},
        },
        {
            "key": "trial",
            "shadow_mode": True,
            "rate_limit": {**MINUTE, "requests_per_unit": 1},
        },
        {"key": "quota", "quota_mode": True, "rate_limit": {**MINUTE, "requests_per_unit": 2}},
        {"key": "slide", "rate_limit": {"unit": "minute", "requests_per_unit": 10}},
        {
            "key": "bucket",
            "rate_limit": {
                "unit": "minute",
                "requests_per_unit": 6,
                "algorithm": "token_bucket",
            },
        },
        {"key": "free", "rate_limit": {"unlimited": True}},
        {"key": "only", "value": "x", "rate_limit": {**MINUTE, "requests_per_unit": 3}},
        {
            "key": "job",
            "rate_limit": {"unit": "minute", "requests_per_unit": 2, "algorithm": "concurrency"},
        },
        {
            "key": "told",
            "rate_limit": {**MINUTE, "requests_per_unit": 9},
            "metadata": {"team": "blue", "deep": {"a": 1}},
        },
        {
            "key": "path",
            "descriptors": [{"key": "client", "rate_limit": {**MINUTE, "requests_per_unit": 2}}],
        },
    ],
}


class HandClock:
    """Clock that starts at 30 s and changes only when a test sets `time`."""

    def __init__(self) -> None:
        self.time = 30 * 10**9

    def now(self) -> int:
        return self.time


def settings_of(**options: Any) -> GatewaySettings:
    return GatewaySettings(**({"cluster": "ringfence://127.0.0.1:7101"} | options))


@asynccontextmanager
async def api(tokens: Tokens | None = None, **options: Any) -> AsyncIterator[Api]:
    async with ringfence.local(RULES, clock=HandClock()) as limiter:
        yield make_api(limiter, settings_of(**options), tokens)


@asynccontextmanager
async def rls(**options: Any) -> AsyncIterator[RateLimitService]:
    async with ringfence.local(RULES, clock=HandClock()) as limiter:
        yield make_rls(limiter, settings_of(**options))


async def ask(
    api: Api,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    peer: str = "127.0.0.1",
) -> Response:
    """Send one request; a body other than bytes is encoded as JSON."""
    fields = {name.lower(): value for name, value in (headers or {}).items()}
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    path, _, query = path.partition("?")

    async def read() -> bytes:
        return raw

    return await api.answer(Exchange(method, path, query, peer, fields.get, read))


async def post(
    api: Api, path: str, body: object, headers: Mapping[str, str] | None = None
) -> Response:
    return await ask(api, "POST", path, body, headers)


def json_of(response: Response) -> Any:
    """Return the response body, decoded from JSON."""
    return json.loads(response.body)


def header(response: Response, name: str) -> str | None:
    return dict(response.headers).get(name)
