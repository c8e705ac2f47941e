"""Rate limits for FastAPI: limits stand beside the route, views need no `request` for them.

limits = RateLimits("ringfence://...", keys="user_or_ip")
app = FastAPI()
limits.install(app)

@app.get("/report", dependencies=[limits.depends("5/minute")])
async def report(): ...
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Unpack

from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.requests import Request

from ringfence.client import Decision
from ringfence.errors import ConfigError
from ringfence.integrations import starlette
from ringfence.integrations.asgi import RateLimitMiddleware, decision_of, visit_of
from ringfence.integrations.policy import Policy
from ringfence.integrations.settings import LimitSpec, ViewOptions
from ringfence.integrations.starlette import TooManyRequests

__all__ = ["RateLimitMiddleware", "RateLimits", "TooManyRequests", "ViewLimit"]

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
    """A dependency that limits the routes that depend on it; made by `RateLimits.depends`."""

    def __init__(self, limits: "RateLimits", limit: LimitSpec, options: ViewOptions) -> None:
        self._limits = limits
        self._limit = limit
        self._options = options
        self._policies: dict[str, Policy] = {}
        self._policy("")  # So that what makes no sense is told when the application starts.

    async def __call__(self, request: Request) -> Decision | None:
        """Raise `TooManyRequests` unless the request may pass; else tell what was decided."""
        await self._limits.require(self._policy(_name(request)), request)
        return decision_of(request.scope)

    def _policy(self, name: str) -> Policy:
        """The policy of one route: each has a budget of its own unless `scope` names another."""
        policy = self._policies.get(name)
        if policy is None:
            policy = self._limits.policy_for(name, self._limit, self._options)
            self._policies[name] = policy
        return policy


class RateLimits(starlette.RateLimits):
    """A limiter, and how it is asked: by the middleware for all requests, by views for theirs."""

    def depends(self, limit: LimitSpec = None, **options: Unpack[ViewOptions]) -> Any:
        """Make a dependency that limits a route, a router or the application.

        `dependencies=[limits.depends("5/minute")]`, or `Annotated[Decision | None,
        limits.depends("5/minute")]` where the view wants to see the decision. Each route has a
        budget of its own unless `scope` names one to share.
        """
        return Depends(ViewLimit(self, limit, options))

    def install(self, app: Starlette) -> None:
        """Add the middleware and the handler of refusals, and show them in the OpenAPI document."""
        if not isinstance(app, FastAPI):
            raise ConfigError(f"{app!r} is no FastAPI; use ringfence.integrations.starlette")
        super().install(app)
        bare = app.openapi
        everywhere = self.policy.limits_something

        def openapi() -> dict[str, Any]:
            document = bare()
            limited = _limited_routes(app)
            for path, method, operation in _operations(document):
                is_general = everywhere and not self.policy.exempts(method.upper(), path)
                if is_general or (path, method) in limited:
                    operation.setdefault("responses", {}).setdefault("429", _REFUSAL)
            return document

        app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _name(request: Request) -> str:
    visit = visit_of(request.scope)
    return f"{visit.request.method} {visit.request.route}"


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document.get("paths", {}).items():
        for method, operation in item.items():
            if method in _METHODS:
                yield path, method, operation


class _Described(Protocol):
    """What is read of a route, whether it was included with a prefix or not."""

    path_format: str
    methods: set[str] | None
    dependant: Dependant


def _limited_routes(app: FastAPI) -> set[tuple[str, str]]:
    return {
        (route.path_format, method.lower())
        for route in _described(app)
        if _is_limited(route.dependant)
        for method in route.methods or ()
    }


def _described(app: FastAPI) -> Iterable[_Described]:
    try:
        from fastapi.routing import iter_route_contexts
    except ImportError:  # Older ones copy a router's routes into the application.
        routes: Any = app.routes
        return [route for route in routes if isinstance(route, APIRoute)]
    contexts: Any = iter_route_contexts(app.routes)
    return [each for each in contexts if isinstance(each.original_route, APIRoute)]


def _is_limited(dependant: Dependant) -> bool:
    call: Callable[..., object] | None = dependant.call
    return isinstance(call, ViewLimit) or any(
        [_is_limited(each) for each in dependant.dependencies]
    )
