"""Rate limits for any ASGI application, on asyncio and on trio servers.

Plain ASGI: the application's messages pass as they are, but for the headers of a response's start.
Streams, files and WebSockets are not touched, and nothing is read of a request's body.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import TypeAlias, Unpack

import anyio

from ringfence.client import Decision, Limiter, connect
from ringfence.errors import ConfigError
from ringfence.integrations._core.asgi_request import AsgiRequest
from ringfence.integrations._core.lifespan import AsgiApp, Message, Receive, Scope, Send, live
from ringfence.integrations._core.policy import Policy, owners_of, settle
from ringfence.integrations._core.request_state import Refusal, RequestState
from ringfence.integrations._core.runner import OutageTracker, Perform, drive, performer
from ringfence.integrations._core.settings import (
    LimitSpec,
    Options,
    Response,
    Settings,
    ViewOptions,
)

__all__ = ["LimiterSpec", "RateLimitMiddleware", "RateLimits", "decision_of", "visit_of"]

LimiterSpec: TypeAlias = str | Limiter | Callable[[], AbstractAsyncContextManager[Limiter]] | None
"""A cluster's address (None is the environment's `RINGFENCE_URL`), a limiter that is open already,
or what opens one: `lambda: ringfence.local("rules.yaml")`."""

_VISIT = "ringfence"
"""Where a scope holds its visit."""
_SETTLE_WITHIN = 2.0
"""Seconds that settling may take after the response, even for a task that is being cancelled."""


class RateLimits:
    """A limiter, and how it is asked: what middleware and views share.

    The limiter is open while the application lives: the middleware opens it with the server's
    `lifespan` call, an application with a lifespan of its own may do so by `opened()`.
    """

    def __init__(self, limiter: LimiterSpec = None, **options: Unpack[Options]) -> None:
        """Raises `ConfigError` for settings that make no sense."""
        self.policy = Policy(Settings(**options), "app")
        self._spec = limiter
        self._limiter: Limiter | None = None
        self._perform: Perform | None = None
        self._declared = {_ways(self.policy): self.policy}
        """One policy of each domain and keys in use."""
        if isinstance(limiter, Limiter):
            self._use(limiter)
        self._troubles = OutageTracker()

    @property
    def is_enabled(self) -> bool:
        """The off switch."""
        return self.policy.is_enabled

    @is_enabled.setter
    def is_enabled(self, on: bool) -> None:
        self.policy.is_enabled = on

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Limiter]:
        """Open the limiter for the block, unless it is open."""
        if self._limiter is not None:
            yield self._limiter
            return
        spec = self._spec
        assert not isinstance(spec, Limiter)
        async with spec() if callable(spec) else connect(spec) as limiter:
            self._use(limiter)
            try:
                yield limiter
            finally:
                self._limiter = self._perform = None

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Open the limiter for the application's life; switched off, no cluster is needed."""
        if self.policy.settings.enabled or callable(self._spec):
            async with self.opened():
                yield
        else:
            yield

    def _use(self, limiter: Limiter) -> None:
        for policy in self._declared.values():
            policy.require_rules(limiter)
        self._limiter = limiter
        self._perform = performer(limiter)

    def policy_for(self, name: str, limit: LimitSpec, options: ViewOptions) -> Policy:
        """Make the policy of one view: these settings, but for its own limit and options."""
        policy = self.policy.for_view(name, limit, options)
        if self._declared.setdefault(_ways(policy), policy) is policy and self._limiter is not None:
            policy.require_rules(self._limiter)
        return policy

    async def admit_general(self, visit: RequestState) -> Refusal | None:
        """Check one request by what limits all of them, unless its endpoint is exempt."""
        if self.is_exempt(visit):
            return None
        return await self.admit(self.policy, visit)

    def is_exempt(self, visit: RequestState) -> bool:
        """Whether an endpoint was marked as exempt; plain ASGI knows none."""
        return False

    async def admit(self, policy: Policy, visit: RequestState) -> Refusal | None:
        """Check one request by a policy; give the refusal to answer with when it was denied."""
        if not self.policy.is_enabled:
            return None
        if self._perform is None:
            raise ConfigError(
                "the limiter is not open: the server sends no lifespan events (uvicorn --lifespan, "
                "or a test client used without `with`); or open it around the application's life "
                "by `async with limits.opened()`. Or it was switched off when that life began"
            )
        return await drive(policy.admit(visit, self), self._perform, self._troubles)

    async def settle(self, visit: RequestState, response: Response) -> None:
        """Make the charges of these limits what the answer says they should be."""
        if self._perform is not None:
            await drive(settle(visit, response, self), self._perform, self._troubles)


class RateLimitMiddleware:
    """ASGI middleware: `app = RateLimitMiddleware(app, "ringfence://...", domain="api")`.

    Instead of a limiter and options it takes a `RateLimits` that others use too. Raises
    `ConfigError` for settings that make no sense.
    """

    def __init__(
        self, app: AsgiApp, limiter: LimiterSpec | RateLimits = None, **options: Unpack[Options]
    ) -> None:
        if isinstance(limiter, RateLimits):
            if options:
                raise ConfigError(f"give {', '.join(options)} to the RateLimits, not beside it")
            self.limits = limiter
        else:
            self.limits = RateLimits(limiter, **options)
            if not self.limits.policy.limits_something:
                raise ConfigError(
                    "the middleware limits nothing: give domain='...' to limit by rules, "
                    "or limit='100/minute'"
                )
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the application's life."""
        kind = scope["type"]
        if kind == "lifespan":
            await live(self.limits.living(), self._app, scope, receive, send)
        elif kind != "http":
            await self._app(scope, receive, send)
        elif _VISIT in scope:
            await self._within(scope[_VISIT], scope, receive, send)
        else:
            visit = scope[_VISIT] = RequestState(AsgiRequest(scope))
            await self._serve(visit, scope, receive, send)

    async def _within(
        self, visit: RequestState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Limit once more inside another of our middlewares, which writes the headers of both."""
        refusal = await self.limits.admit_general(visit)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await respond(refusal, visit, send)

    async def _serve(self, visit: RequestState, scope: Scope, receive: Receive, send: Send) -> None:
        style = self.limits.policy.headers
        start: Message | None = None

        async def send_with_limits(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                names = (bytes(name).decode("latin-1") for name, _ in message.get("headers", ()))
                fields = visit.headers(style, message["status"], names)
                if fields:
                    message = {
                        **message,
                        "headers": [*message.get("headers", ()), *_encoded(fields)],
                    }
            await send(message)

        refusal = await self.limits.admit_general(visit)
        if refusal is not None:
            await respond(refusal, visit, send_with_limits)
            return
        has_failed = True
        try:
            await self._app(scope, receive, send_with_limits)
            has_failed = False
        finally:
            if visit.spent:
                await _settle(visit, _response(None if has_failed else start))


async def _settle(visit: RequestState, response: Response) -> None:
    with anyio.move_on_after(_SETTLE_WITHIN, shield=True):
        for limits in owners_of(visit):
            assert isinstance(limits, RateLimits)
            await limits.settle(visit, response)


def _ways(policy: Policy) -> tuple[object, ...]:
    """What policies have in common that the rules are looked at once for."""
    return policy.settings.domain, policy.paths, policy.settings.strict


def visit_of(scope: Scope) -> RequestState:
    """Find what the middleware holds of a request. Raises `ConfigError` where there is none."""
    visit = scope.get(_VISIT)
    if not isinstance(visit, RequestState):
        raise ConfigError(
            "a view has a limit but the application has no RateLimitMiddleware: call "
            "limits.install(app), or add the middleware with the same RateLimits"
        )
    return visit


def decision_of(scope: Scope) -> Decision | None:
    """All that was decided about a request so far, for views and templates; None when nothing."""
    visit = scope.get(_VISIT)
    return visit.decision if isinstance(visit, RequestState) else None


async def respond(refusal: Refusal, visit: RequestState, send: Send) -> None:
    """Send a refusal in place of the application's answer."""
    content = b"" if visit.request.method == "HEAD" else refusal.body.content
    await send(
        {
            "type": "http.response.start",
            "status": refusal.refused.status,
            "headers": _encoded(refusal.headers),
        }
    )
    await send({"type": "http.response.body", "body": content})


def _encoded(fields: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(_encoded_name(name), value.encode("latin-1")) for name, value in fields]


@lru_cache(64)
def _encoded_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def _response(start: Message | None) -> Response:
    if start is None:
        return Response(500, {})
    headers = {
        bytes(name).decode("latin-1").lower(): bytes(value).decode("latin-1")
        for name, value in start.get("headers", ())
    }
    return Response(start["status"], headers)
