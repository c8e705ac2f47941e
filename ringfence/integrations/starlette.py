"""Rate limits for Starlette: the middleware, and limits on single endpoints.

limits = RateLimits("ringfence://...", keys="user_or_ip")
app = Starlette(routes=[Route("/report", limits.limit("5/minute")(report))])
limits.install(app)
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, Unpack

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ringfence.client.decision import Decision
from ringfence.errors import ConfigError
from ringfence.http.headers import retry_after_seconds
from ringfence.integrations import asgi
from ringfence.integrations._core.asgi_request import AsgiRequest
from ringfence.integrations._core.effects import Refusal
from ringfence.integrations._core.lifespan import Receive, Scope, Send
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import LimitSpec, ViewOptions
from ringfence.integrations.asgi import RateLimitMiddleware, request_state_of

__all__ = ["RateLimitMiddleware", "RateLimits", "TooManyRequests"]

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Response | Awaitable[Response]])
_Any = TypeVar("_Any", bound=Callable[..., object])
_EXEMPT = "_ringfence_exempt"
"""Attribute of an endpoint with the limits from which it is exempt."""


class TooManyRequests(HTTPException):
    """Exception for a request that a limit denied. A handler may send another response, as for any
    `HTTPException`.

    The middleware adds the rate limit headers to that response too.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.refused.status, refusal.refused.detail)
        self.refusal = refusal

    @property
    def decision(self) -> Decision:
        """The decision that denied the request."""
        return self.refusal.refused.decision

    @property
    def retry_after(self) -> int | None:
        """Wait in whole seconds; None when the request will never be allowed."""
        return retry_after_seconds(self.decision)


class RateLimits(asgi.RateLimits):
    """Limiter and settings that the middleware and the limits of single endpoints share."""

    _has_exempt = False

    def install(self, app: Starlette) -> None:
        """Add the middleware and the handler of denied requests. Call it once, before the first
        request.

        Middleware that is added later runs before this one. Add authentication after this call when
        the keys include the user.
        """
        if not isinstance(app, Starlette):
            raise ConfigError(
                f"app must be a Starlette application, got {app!r}; give an address or a limiter "
                "to RateLimits(...)"
            )
        app.add_middleware(RateLimitMiddleware, limiter=self)
        app.add_exception_handler(TooManyRequests, _answer)

    def limit(
        self, limit: LimitSpec = None, **options: Unpack[ViewOptions]
    ) -> Callable[[_Endpoint], _Endpoint]:
        """Limit an endpoint function, sync or async, that has the request as an argument.

        Each endpoint has its own counters unless `scope` names shared ones.
        """

        def decorate(endpoint: _Endpoint) -> _Endpoint:
            if isinstance(endpoint, type):
                raise ConfigError(
                    f"{endpoint.__qualname__} is a class; limit its route instead: Route(..., "
                    "middleware=[Middleware(RateLimitMiddleware, limiter=RateLimits(...))])"
                )
            is_async = iscoroutinefunction(endpoint)
            policy = self.policy_for(
                f"{endpoint.__module__}.{endpoint.__qualname__}", limit, options
            )

            @wraps(endpoint)
            async def limited(request: Request) -> Response:
                await self.require(policy, request)
                if is_async:
                    answer = endpoint(request)
                else:  # As Starlette does with a plain function.
                    answer = await run_in_threadpool(endpoint, request)
                return await answer if isinstance(answer, Awaitable) else answer

            return limited  # type: ignore[return-value]  # as an endpoint it is the same

        return decorate

    def exempt(self, endpoint: _Any) -> _Any:
        """Exempt an endpoint, function or class, from the limits on all requests.

        Its own limit still applies. The order of the decorators does not matter.
        """
        setattr(endpoint, _EXEMPT, (*getattr(endpoint, _EXEMPT, ()), self))
        self._has_exempt = True
        return endpoint

    def is_exempt(self, state: RequestState) -> bool:
        """Whether the endpoint of a request is exempt."""
        request = state.request
        return (
            self._has_exempt
            and isinstance(request, AsgiRequest)
            and self.has_exempted(request.endpoint)
        )

    def has_exempted(self, endpoint: object) -> bool:
        """Whether `exempt` was applied to an endpoint."""
        return self in getattr(endpoint, _EXEMPT, ())

    async def respond(
        self, refusal: Refusal, state: RequestState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the response to a denied request: that of the application's handler, if any."""
        handler = _own_handler(scope.get("app"), refusal.refused.status)
        if handler is None:
            await super().respond(refusal, state, scope, receive, send)
            return
        request, error = Request(scope, receive), TooManyRequests(refusal)
        if iscoroutinefunction(handler):
            answer = handler(request, error)
        else:  # As Starlette does with a plain function.
            answer = await run_in_threadpool(handler, request, error)
        response = await answer if isinstance(answer, Awaitable) else answer
        await response(scope, receive, send)

    async def require(self, policy: Policy, connection: HTTPConnection) -> None:
        """Check a request against the limits of a policy; raise `TooManyRequests` when it is
        denied."""
        state = request_state_of(connection.scope)
        refusal = await self.admit(policy, state)
        if refusal is not None:
            raise TooManyRequests(refusal)


def _own_handler(app: object, status: int) -> Callable[..., Any] | None:
    """Return the handler of denied requests that an application has added; None without one."""
    handlers: Mapping[object, Callable[..., Any]] = getattr(app, "exception_handlers", {})
    handler = handlers.get(status) or handlers.get(TooManyRequests)
    return None if handler is _answer else handler


async def _answer(request: Request, error: Exception) -> Response:
    assert isinstance(error, TooManyRequests)
    refusal = error.refusal
    return Response(refusal.body.content, refusal.refused.status, dict(refusal.headers))
