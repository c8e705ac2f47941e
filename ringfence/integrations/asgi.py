"""Rate limits for any ASGI application, on asyncio and on trio servers.

The middleware adds headers to the start of a response and forwards all other messages unchanged.
It does not touch streams, files and WebSockets, and does not read request bodies.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import lru_cache
from typing import TypeAlias, Unpack

import anyio

from ringfence.client.connect import connect
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.url import ENVIRONMENT
from ringfence.errors import ConfigError
from ringfence.integrations._core.asgi_request import AsgiRequest
from ringfence.integrations._core.effects import Refusal
from ringfence.integrations._core.lifespan import (
    AsgiApp,
    Message,
    Receive,
    Scope,
    Send,
    run_lifespan,
)
from ringfence.integrations._core.policy import Policy, owners_of, settle
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.runner import (
    SETTLE_WITHIN,
    OutageTracker,
    Perform,
    performer,
    run_steps,
)
from ringfence.integrations._core.settings import (
    LimitSpec,
    Options,
    Response,
    Settings,
    ViewOptions,
)

__all__ = ["LimiterSpec", "RateLimitMiddleware", "RateLimits", "decision_of", "request_state_of"]

LimiterSpec: TypeAlias = str | Limiter | Callable[[], AbstractAsyncContextManager[Limiter]] | None
"""URL of a cluster (None: `RINGFENCE_URL` of the environment), an open limiter, or a function that
opens one: `lambda: ringfence.local("rules.yaml")`."""

_STATE_KEY = "ringfence"
"""Key of the request state in a scope."""


class RateLimits:
    """Limiter and settings that the middleware and the limits of single views share.

    The limiter is open during the lifespan of the application: the middleware opens it with the
    server's `lifespan` call, or an application opens it with `opened()`.
    """

    def __init__(self, limiter: LimiterSpec = None, **options: Unpack[Options]) -> None:
        """Raises `ConfigError` for invalid settings."""
        self.policy = Policy(Settings(**options), "app")
        self._spec = limiter
        self._counters = self if callable(limiter) else limiter or ENVIRONMENT
        self._limiter: Limiter | None = None
        self._perform: Perform | None = None
        self._policy_by_use = {_rule_use(self.policy): self.policy}
        """One policy for each domain and set of keys, for the check against the rules."""
        if isinstance(limiter, Limiter):
            self._use(limiter)
        self._outages = OutageTracker()

    @property
    def is_enabled(self) -> bool:
        """Whether limits are checked; False disables all of them."""
        return self.policy.is_enabled

    @is_enabled.setter
    def is_enabled(self, on: bool) -> None:
        self.policy.is_enabled = on

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Limiter]:
        """Open the limiter for a `with` block, unless it is open already."""
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
        """Open the limiter for the lifespan of the application, unless limits are disabled."""
        if self.policy.settings.enabled or callable(self._spec):
            async with self.opened():
                yield
        else:
            yield

    def _use(self, limiter: Limiter) -> None:
        for policy in self._policy_by_use.values():
            policy.require_rules(limiter)
        self._limiter = limiter
        self._perform = performer(limiter)

    def policy_for(self, name: str, limit: LimitSpec, options: ViewOptions) -> Policy:
        """Create the policy of one view: the shared settings, overridden by those of the view."""
        policy = self.policy.for_view(name, limit, options)
        if (
            self._policy_by_use.setdefault(_rule_use(policy), policy) is policy
            and self._limiter is not None
        ):
            policy.require_rules(self._limiter)
        return policy

    async def admit_by_defaults(self, state: RequestState) -> Refusal | None:
        """Check one request against the default limits, once, unless its endpoint is exempt.

        A request of a mounted application passes the middlewares of both applications.
        """
        if self in state.passed or self.is_exempt(state):
            return None
        state.passed.append(self)
        return await self.admit(self.policy, state)

    def is_exempt(self, state: RequestState) -> bool:
        """Whether the endpoint is exempt. Plain ASGI has no endpoints."""
        return False

    async def admit(self, policy: Policy, state: RequestState) -> Refusal | None:
        """Check one request against the limits of a policy. Return the refusal to send when it
        is denied."""
        if not self.policy.is_enabled:
            return None
        if self._perform is None:
            raise ConfigError(
                "the limiter must be open before the first request; let the server send lifespan "
                "events (uvicorn --lifespan on, or `with` around a test client), or use `async "
                "with limits.opened()`. Limits that were disabled at the start have no open limiter"
            )
        steps = policy.admit(state, self, self._counters)
        return await run_steps(steps, self._perform, self._outages)

    async def respond(
        self, refusal: Refusal, state: RequestState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the response to a denied request, in place of the application."""
        await respond(refusal, state, send)

    async def settle(self, state: RequestState, response: Response) -> None:
        """After the response to a request, correct its charges with refunds or further charges."""
        if self._perform is not None:
            await run_steps(settle(state, response, self), self._perform, self._outages)


class RateLimitMiddleware:
    """ASGI middleware: `app = RateLimitMiddleware(app, "ringfence://...", domain="api")`.

    A shared `RateLimits` object can replace the limiter and the options. Raises `ConfigError` for
    invalid settings.
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
            if not self.limits.policy.has_limits:
                raise ConfigError(
                    "the middleware limits nothing: give domain='...' to limit by rules, "
                    "or limit='100/minute'"
                )
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request or other connection, or the lifespan of the application."""
        kind = scope["type"]
        if kind == "lifespan":
            await run_lifespan(self.limits.living(), self._app, scope, receive, send)
        elif kind != "http":
            await self._app(scope, receive, send)
        elif _STATE_KEY in scope:
            await self._within(scope[_STATE_KEY], scope, receive, send)
        else:
            state = scope[_STATE_KEY] = RequestState(AsgiRequest(scope))
            await self._serve(state, scope, receive, send)

    async def _within(
        self, state: RequestState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Check the limits of this middleware inside another rate limit middleware.

        The outer middleware writes the rate limit headers of both.
        """
        refusal = await self.limits.admit_by_defaults(state)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await self.limits.respond(refusal, state, scope, receive, send)

    async def _serve(self, state: RequestState, scope: Scope, receive: Receive, send: Send) -> None:
        style = self.limits.policy.headers
        start: Message | None = None

        async def send_with_limits(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                names = (bytes(name).decode("latin-1") for name, _ in message.get("headers", ()))
                fields = state.headers(style, message["status"], names)
                if fields:
                    message = {
                        **message,
                        "headers": [*message.get("headers", ()), *_encoded(fields)],
                    }
            await send(message)

        has_failed = True
        try:
            refusal = await self.limits.admit_by_defaults(state)
            if refusal is None:
                await self._app(scope, receive, send_with_limits)
            else:
                await self.limits.respond(refusal, state, scope, receive, send_with_limits)
            has_failed = False
        finally:
            if state.spent:
                await _settle(state, _response(None if has_failed else start))


async def _settle(state: RequestState, response: Response) -> None:
    with anyio.move_on_after(SETTLE_WITHIN, shield=True):
        async with AsyncExitStack() as stack:  # An error in one does not stop the others.
            for limits in owners_of(state):
                assert isinstance(limits, RateLimits)
                stack.push_async_callback(limits.settle, state, response)


def _rule_use(policy: Policy) -> tuple[object, ...]:
    """Return the settings of a policy that are compared with the cluster's rules."""
    return policy.settings.domain, policy.paths, policy.settings.strict


def request_state_of(scope: Scope) -> RequestState:
    """Return the rate limit state of a request from its scope. Raises `ConfigError` if it has
    none."""
    state = scope.get(_STATE_KEY)
    if not isinstance(state, RequestState):
        raise ConfigError(
            "an application with limits on views must have the RateLimitMiddleware; call "
            "limits.install(app), or add the middleware with the same RateLimits"
        )
    return state


def decision_of(scope: Scope) -> Decision | None:
    """Return the combined decision about a request so far; None when there is none."""
    state = scope.get(_STATE_KEY)
    return state.decision if isinstance(state, RequestState) else None


async def respond(refusal: Refusal, state: RequestState, send: Send) -> None:
    """Send a refusal with rate limit headers, in place of the application's response."""
    content = b"" if state.request.method == "HEAD" else refusal.body.content
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
