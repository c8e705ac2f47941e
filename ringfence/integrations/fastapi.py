"""Rate limits for FastAPI: limits on routes, whose functions need no `request`.

limits = RateLimits("ringfence://...", keys="user_or_ip")
app = FastAPI()
limits.install(app)

@app.get("/report")
@limits.limit("5/minute")
async def report(): ...

@app.get("/budget", dependencies=[limits.depends("5/minute")])
async def budget(): ...
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Annotated, Any, Protocol, TypeVar, Unpack

from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request

from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError
from ringfence.integrations import starlette
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import LimitSpec, Options, ViewOptions
from ringfence.integrations.asgi import (
    LimiterSpec,
    RateLimitMiddleware,
    decision_of,
    request_state_of,
)
from ringfence.integrations.starlette import TooManyRequests

__all__ = ["RateLimitMiddleware", "RateLimits", "TooManyRequests", "ViewLimit"]

_Route = TypeVar("_Route", bound=Callable[..., object])
_METHODS = {"get", "put", "post", "delete", "patch", "trace"}

_REFUSAL = {
    "description": "Too Many Requests",
    "headers": {
        "Retry-After": {
            "description": "Whole seconds after which the same request passes.",
            "schema": {"type": "integer", "minimum": 1},
        }
    },
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status"],
                "properties": {
                    "type": {"type": "string", "format": "uri"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "violated-policies": {"type": "array", "items": {"type": "string"}},
                    "retry-after": {"type": "integer", "minimum": 1},
                },
            }
        }
    },
}


class ViewLimit:
    """FastAPI dependency that limits the routes that use it; made by `RateLimits.depends`."""

    def __init__(self, limits: "RateLimits", limit: LimitSpec, options: ViewOptions) -> None:
        self._limits = limits
        self._limit = limit
        self._options = options
        self._policies: dict[str, Policy] = {}
        self._policy("")  # Raises for invalid settings now.

    async def __call__(self, connection: HTTPConnection) -> Decision | None:
        """Check a request against the limit; return the decision, or raise `TooManyRequests`.

        WebSockets, which a dependency of a router or an application gets too, are not limited.
        """
        if not isinstance(connection, Request):
            return None
        await self._limits.require(self._policy(_name(connection)), connection)
        return decision_of(connection.scope)

    def _policy(self, name: str) -> Policy:
        """Return the policy of a route. Each route has its own counters unless `scope` names shared
        ones."""
        policy = self._policies.get(name)
        if policy is None:
            policy = self._limits.policy_for(name, self._limit, self._options)
            self._policies[name] = policy
        return policy


class RateLimits(starlette.RateLimits):
    """Limiter and settings that the middleware and the limits of single routes share."""

    def __init__(self, limiter: LimiterSpec = None, **options: Unpack[Options]) -> None:
        super().__init__(limiter, **options)
        self._decorated: set[Callable[..., object]] = set()
        """Route functions that `limit` decorates, in their original form."""
        self._apps: list[FastAPI] = []

    def limit(
        self, limit: LimitSpec = None, **options: Unpack[ViewOptions]
    ) -> Callable[[_Route], _Route]:
        """Limit a route function, sync or async: `@limits.limit("5/minute")` below `@app.get`.

        The function does not need the request as an argument. Counters are separated as with
        `depends`. Above `@app.get` the decorator has no effect; this raises `ConfigError` at the
        start.
        """
        view_limit = ViewLimit(self, limit, options)

        def decorate(function: _Route) -> _Route:
            self._decorated.add(function)
            return _depending(function, view_limit)

        return decorate

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Limiter]:
        """Open the limiter for a `with` block, unless it is open already.

        Raises `ConfigError` if `@limits.limit` is written above the route decorator, such as
        `@app.get`.
        """
        for route in [each for app in self._apps for each in _described(app)]:
            if route.endpoint in self._decorated:
                raise ConfigError(
                    f"@limits.limit must stand below the decorator of the route "
                    f"{route.path_format!r}, got it above, where the route does not see it; move "
                    f"it right above def {getattr(route.endpoint, '__name__', route.endpoint)}"
                )
        async with super().opened() as limiter:
            yield limiter

    def depends(self, limit: LimitSpec = None, **options: Unpack[ViewOptions]) -> Any:
        """Create a dependency that limits a route, a router or the application.

        `dependencies=[limits.depends("5/minute")]`, or `Annotated[Decision | None,
        limits.depends("5/minute")]` for the decision as an argument. Each route has its own
        counters unless `scope` names shared ones.
        """
        return Depends(ViewLimit(self, limit, options))

    def install(self, app: Starlette) -> None:
        """Add the middleware, the handler of denied requests, and status 429 in the OpenAPI
        document."""
        if not isinstance(app, FastAPI):
            raise ConfigError(
                f"app must be a FastAPI, got {app!r}; use ringfence.integrations.starlette"
            )
        super().install(app)
        self._apps.append(app)
        bare = app.openapi
        everywhere = self.policy.has_limits

        def openapi() -> dict[str, Any]:
            document = bare()
            limited = _limited_routes(app)
            exempt = _routes_with(app, lambda route: self.has_exempted(route.endpoint))
            for path, method, operation in _operations(document):
                is_general = (
                    everywhere
                    and not self.policy.exempts(method.upper(), path)
                    and (path, method) not in exempt
                )
                if is_general or (path, method) in limited:
                    operation.setdefault("responses", {}).setdefault("429", _REFUSAL)
            return document

        app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _depending(function: _Route, view_limit: ViewLimit) -> _Route:
    """Return a route function with an additional FastAPI dependency, which checks the limit."""
    if not inspect.isroutine(function) or _yields(function):
        raise ConfigError(
            f"@limits.limit must stand above a plain or async function, got {function!r}; limit "
            "other routes by dependencies=[limits.depends(...)]"
        )
    shown = _signature(function)
    name = "ringfence_decision"
    while name in shown.parameters:  # Another limit of this route uses it.
        name += "_"
    own = inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Any, Depends(view_limit)],
    )
    taken = [each for each in shown.parameters.values() if each.kind is not each.VAR_KEYWORD]
    rest = [each for each in shown.parameters.values() if each.kind is each.VAR_KEYWORD]
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def limited_async(*args: object, **kwargs: object) -> object:
            kwargs.pop(name, None)
            return await function(*args, **kwargs)

        limited: Any = limited_async
    else:

        @wraps(function)
        def limited_sync(*args: object, **kwargs: object) -> object:
            kwargs.pop(name, None)
            return function(*args, **kwargs)

        limited = limited_sync
    limited.__signature__ = shown.replace(parameters=[*taken, own, *rest])
    typed: _Route = limited
    return typed


def _yields(function: Callable[..., object]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _name(request: Request) -> str:
    state = request_state_of(request.scope)
    return f"{state.request.method} {state.request.route}"


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document.get("paths", {}).items():
        for method, operation in item.items():
            if method in _METHODS:
                yield path, method, operation


class _Described(Protocol):
    """Common interface of routes in all versions of FastAPI: path, methods, dependencies and
    function."""

    path_format: str
    methods: set[str] | None
    dependant: Dependant
    endpoint: Callable[..., object]


def _limited_routes(app: FastAPI) -> set[tuple[str, str]]:
    return _routes_with(app, lambda route: _is_limited(route.dependant))


def _routes_with(app: FastAPI, has: Callable[[_Described], bool]) -> set[tuple[str, str]]:
    """Return path pattern and lower-case method of the routes for which the function `has` is
    true."""
    return {
        (route.path_format, method.lower())
        for route in _described(app)
        if has(route)
        for method in route.methods or ()
    }


def _described(app: FastAPI) -> Iterable[_Described]:
    try:
        from fastapi.routing import iter_route_contexts
    except ImportError:  # Older versions copy the routes of a router into the application.
        routes: Any = app.routes
        return [route for route in routes if isinstance(route, APIRoute)]
    contexts: Any = iter_route_contexts(app.routes)
    return [each for each in contexts if isinstance(each.original_route, APIRoute)]


def _is_limited(dependant: Dependant) -> bool:
    call: Callable[..., object] | None = dependant.call
    return isinstance(call, ViewLimit) or any(
        [_is_limited(each) for each in dependant.dependencies]
    )


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature with evaluated annotations, because FastAPI cannot evaluate those of a
    wrapped function in every version."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # The name is defined later, or for type checkers only.
        return inspect.signature(function)
