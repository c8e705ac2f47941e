"""ASGI middleware: settings and the results of the user's callbacks."""

from functools import partial
from typing import Any
from uuid import UUID

import pytest

import ringfence
from ringfence import ConfigError
from ringfence.http import Request
from ringfence.integrations.asgi import RateLimitMiddleware, RateLimits
from ringfence.rules import parse_limit
from tests.ringfence.integrations.asgi.app import hello, in_process
from tests.ringfence.integrations.asgi.client import ask, living, statuses

IDENTITY_RULES = {
    "domain": "identities",
    "descriptors": [
        {"key": key, "rate_limit": {"unit": "hour", "requests_per_unit": 1}}
        for key in ("user", "user_or_ip", "<lambda>", "who")
    ],
}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cost": lambda _: -1}, "got -1"),
        ({"cost": lambda _: "5"}, "got '5'"),
        ({"keys": "user", "user": lambda _: b"ann"}, "user must return text.*, got b'ann'"),
        (
            {"keys": "user_or_ip", "user": lambda _: object()},
            "user must return text.*, got <object",
        ),
        ({"keys": "user", "user": lambda _: nothing()}, "user must return a value, got <coroutine"),
        (
            {"keys": "user", "user": lambda _: len},
            "user must return text.*, got <built-in function len>",
        ),
        ({"keys": "user", "user": lambda _: iter("ann")}, "user must return text.*, got <str"),
        ({"keys": {"tenant": lambda _: b"acme"}}, "key 'tenant' must return text.*, got b'acme'"),
        ({"limit": lambda _: 5}, "limit must be text.*, got 5"),
        ({"limit": lambda _: b"5/m"}, "limit must be text.*, got b'5/m'"),
        ({"limit": lambda _: ["5/m", 5]}, "limit must be text.*, got 5"),
        ({"limit": lambda _: nothing()}, "limit must return a value, got <coroutine"),
        ({"limit": lambda _: "5/fortnigt"}, "unknown unit"),
        ({"exempt_when": lambda _: nothing()}, "exempt_when must return a value, got <coroutine"),
        ({"deduct_when": lambda _: nothing()}, "deduct_when must return a value, got <coroutine"),
        ({"cost_after": lambda *_: "3"}, "got '3'"),
    ],
)
async def test_a_wrong_callback_result_is_an_error_and_not_an_outage(
    options: dict[str, object], error: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(hello, in_process(), **{"limit": "9/hour"} | options)  # type: ignore[arg-type]
    async with living(app):
        with pytest.raises(ConfigError, match=error):
            await ask(app)
    assert not caplog.records


async def nothing() -> None: ...


@pytest.mark.parametrize("identity", [42, UUID(int=42)])
async def test_a_user_identity_can_be_a_number_or_a_uuid(identity: object) -> None:
    options: list[dict[str, Any]] = [
        {"keys": "user", "user": lambda _: identity},
        {"keys": "user_or_ip", "user": lambda _: identity},
        {"keys": lambda _: identity},
        {"keys": {"who": lambda _: identity}},
    ]
    for each in options:
        for limiting in ({"limit": "1/hour"}, {"domain": "identities"}):
            app = RateLimitMiddleware(
                hello, partial(ringfence.local, IDENTITY_RULES), **each, **limiting
            )
            async with living(app):
                assert await statuses(app, ["/"] * 2) == [200, 429]


async def test_callbacks_read_headers_case_insensitively() -> None:
    def user_of(request: Request) -> object:
        assert request.headers.get("x-none", "") == ""
        assert request.header("X-User") == request.header("x-user")
        seen.append(sorted(request.headers))
        return request.headers.get("X-User")

    seen: list[list[str]] = []
    app = RateLimitMiddleware(hello, in_process(), limit="1/hour", keys="user", user=user_of)
    async with living(app):
        assert await statuses(app, ["/"] * 2, x_user="ann", x_other="1") == [200, 429]
        assert (await ask(app, x_user="bob")).status == 200
        assert (await ask(app)).status == 200
    assert seen[0] == ["x-other", "x-user"]
    assert not seen[-1]


async def test_a_limit_callback_can_return_several_limits() -> None:
    results: list[Any] = [["1/hour", "9/day"], ("9/day", "1/hour"), [parse_limit("1/hour")], []]
    for limits in results:
        app = RateLimitMiddleware(hello, in_process(), limit=lambda _, limits=limits: limits)
        async with living(app):
            assert (await statuses(app, ["/"] * 2) == [200, 429]) is bool(limits)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "limits nothing"),
        ({"domain": "api", "limit": "1/s"}, "both domain 'api' and limit"),
        ({"limit": "many/s"}, "limit 'many/s'"),
        ({"limit": "1/s", "keys": "io"}, "key must be one of .*, got 'io'"),
        ({"limit": "1/s", "cost": -1}, "got -1"),
        ({"limit": "1/s", "cost": {"/": -2}}, "got -2"),
        ({"limit": "1/s", "headers": "github"}, "header style must be one of"),
        ({"limit": "1/s", "trusted_proxies": "everyone"}, "'everyone'"),
        ({"limit": "1/s", "key": "ip"}, "unknown setting 'key'; did you mean 'keys'.* scope"),
        ({"limit": "1/s", "costs": 2}, "did you mean 'cost'"),
    ],
)
def test_invalid_settings_are_refused_at_construction(
    options: dict[str, object], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        RateLimitMiddleware(hello, in_process(), **options)  # type: ignore[arg-type]


def test_settings_in_addition_to_shared_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="domain"):
        RateLimitMiddleware(hello, RateLimits(in_process()), domain="api")
