"""Adapter from an ASGI scope to the request from which the keys of counters are read."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from ringfence.http import RequestHeaders
from ringfence.integrations._core.lifespan import Scope

__all__ = ["AsgiRequest"]

_UNMATCHED = "(no route)"
"""Route of all paths that the application does not serve. Each path alone would be a new key."""
_FULL = 2
"""Starlette's `Match.FULL`."""


@runtime_checkable
class _Route(Protocol):
    """Common interface of routes in Starlette and FastAPI."""

    def matches(self, scope: Scope) -> "tuple[_Match, Scope]": ...


class _Match(Protocol):
    value: int


class AsgiRequest:
    """HTTP request of an ASGI server, in the form from which the keys of counters are read."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def method(self) -> str:
        """Request method in upper case, such as `GET`."""
        method: str = self._scope["method"]
        return method

    @property
    def path(self) -> str:
        """Path of the request, without the query string."""
        path: str = self._scope["path"]
        return path

    @property
    def peer(self) -> str | None:
        """Address of the connection's peer, as the server reports it."""
        client = self._scope.get("client")
        return client[0] if client else None

    @property
    def route(self) -> str | None:
        """Pattern of the route that the framework has matched or will match."""
        scope = self._scope
        path = _chosen(scope)
        if path is not None:
            return path
        routes = _routes_of(scope)
        if routes is None:
            return None
        found = _find(routes, scope)
        return _UNMATCHED if found is None else found[0]

    @property
    def endpoint(self) -> object:
        """Function or class that handles the request in Starlette or FastAPI; None in other
        frameworks."""
        routes = _routes_of(self._scope)
        found = None if routes is None else _find(routes, self._scope)
        return None if found is None else found[1]

    @property
    def user(self) -> str | None:
        """User that an outer authentication middleware has stored."""
        user = self._scope.get("user")
        if user is None or isinstance(user, str):
            return user or None
        if not getattr(user, "is_authenticated", True):
            return None
        try:
            name = user.identity
        except (AttributeError, NotImplementedError):  # Starlette's base class only declares it.
            name = getattr(user, "display_name", None)
        return str(name) if name else None

    @property
    def native(self) -> Scope:
        """The ASGI scope of the request."""
        return self._scope

    def header(self, name: str) -> str | None:
        """Return a request header by its name, with lines joined by commas; None when absent."""
        wanted = name.lower().encode("latin-1")
        lines = [value for key, value in self._scope["headers"] if key == wanted]
        return b", ".join(lines).decode("latin-1") if lines else None

    @property
    def headers(self) -> RequestHeaders:
        """All request headers, with case-insensitive names."""
        return RequestHeaders(
            [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in self._scope["headers"]
            ]
        )


def _chosen(scope: Scope) -> str | None:
    """Return the pattern of the route that Litestar, FastAPI or Starlette has matched."""
    template: str | None = scope.get("path_template")
    if template is None:
        # Routes of FastAPI do not have the prefixes of their routers.
        included = scope.get("fastapi", {}).get("effective_route_context")
        template = getattr(included, "path_format", None)
    return getattr(scope.get("route"), "path", None) if template is None else template


def _routes_of(scope: Scope) -> list[_Route] | None:
    """Return the routes of an application in Starlette or FastAPI; None in other frameworks."""
    routes = getattr(scope.get("app"), "routes", None)
    return routes if routes and isinstance(routes[0], _Route) else None


def _find(routes: Iterable[_Route], scope: Scope) -> tuple[str, object] | None:
    """Return pattern and endpoint of the first route that matches path and method."""
    for route in routes:
        match, child = route.matches(scope)
        if match.value == _FULL:
            return _resolve(route, {**scope, **child})
    return None


def _resolve(route: _Route, scope: Scope) -> tuple[str, object] | None:
    path: str | None = getattr(route, "path", None)
    included = getattr(route, "effective_route_contexts", None)
    mounted = getattr(route, "routes", None)
    if included is not None:  # FastAPI's `include_router`.
        return _find(included(), scope)
    if mounted:
        found = _find(mounted, scope)
        return None if found is None else ((path or "") + found[0], found[1])
    return None if path is None else (path, getattr(route, "endpoint", scope.get("endpoint")))
