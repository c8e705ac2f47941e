"""Registry of the limits of Flask views: limits of the view, its blueprints and the application.

A limit is an attribute of a view or blueprint; the view is not wrapped.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from flask import Blueprint, Flask
from msgspec import Struct

from ringfence.integrations import wsgi
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import LimitSpec, ViewOptions

__all__ = ["Integration", "ViewMark", "MarkedTargets", "TargetMarks", "has_marks", "marks_of"]

logger = logging.getLogger("ringfence.integrations")

_MARK = "_ringfence"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class ViewMark(Struct, frozen=True, eq=False):
    """Limit that a decorator has attached to a view or blueprint."""

    limit: LimitSpec
    options: ViewOptions


class TargetMarks(Struct):
    """All limits and exemptions of one view or blueprint."""

    limits: tuple[ViewMark, ...] = ()
    is_exempt: bool = False


class MarkedTargets:
    """Views and blueprints to which one `RateLimits` extension has attached limits or
    exemptions."""

    def __init__(self) -> None:
        self.blueprints: dict[object, TargetMarks] = {}
        self.views: list[tuple[str, TargetMarks]] = []
        """Marked views with their names, for the warning about limits without an endpoint."""

    def of(self, target: Callable[..., object] | Blueprint) -> TargetMarks:
        """Return the limits and exemptions of a view, a method of a view class, or a blueprint."""
        if isinstance(target, Blueprint):
            return self.blueprints.setdefault(target, TargetMarks())
        marks = getattr(target, _MARK, None)
        if not isinstance(marks, TargetMarks):
            marks = TargetMarks()
            setattr(target, _MARK, marks)
            self.views.append((f"{target.__module__}.{target.__qualname__}", marks))
        return marks


class Integration:
    """Limits of one Flask application, stored in `app.extensions["ringfence"]`."""

    def __init__(self, app: Flask, marked: MarkedTargets, limits: wsgi.RateLimits) -> None:
        self._app = app
        self._marked = marked
        self.limits = limits
        self._policies: dict[tuple[ViewMark, str], Policy] = {}
        self._policies_by_endpoint: dict[tuple[str, str], tuple[Policy, ...]] = {}
        self._is_checked = False

    def policies(self, endpoint: str | None, method: str) -> tuple[Policy, ...]:
        """Return all rate limit policies for requests to a Flask endpoint, the application's
        first."""
        if endpoint is None:  # Not cached: clients can send any number of methods.
            return tuple(self._find(None, method))
        found = self._policies_by_endpoint.get((endpoint, method))
        if found is None:
            found = self._policies_by_endpoint[endpoint, method] = tuple(
                self._find(endpoint, method)
            )
        return found

    def _find(self, endpoint: str | None, method: str) -> Iterator[Policy]:
        views = list(marks_of(self._app.view_functions, endpoint, method))
        blueprints = list(self._blueprints_above(endpoint or ""))
        if not any([each.is_exempt for each in views + [marks for _, marks in blueprints]]):
            if self.limits.policy.has_limits:
                yield self.limits.policy
            for name, marks in blueprints:
                for mark in marks.limits:
                    yield self._policy(mark, f"blueprint {name}")
        for marks in views:
            for mark in marks.limits:
                yield self._policy(mark, endpoint or "")

    def warn_of_lost_limits(self) -> None:
        """Log a warning, once, about limits without effect: the view has no endpoint, or the
        domain has no rules."""
        if self._is_checked:
            return
        views = [marks for _, marks in self._marked.views]
        for marks in [*views, *self._marked.blueprints.values()]:
            for mark in marks.limits:
                if mark.options.get("domain") is not None:
                    self.limits.policy_for("", mark.limit, mark.options)
        self._is_checked = True
        endpoints = self._app.view_functions
        found = {
            id(marks)
            for endpoint in endpoints
            for method in _METHODS
            for marks in marks_of(endpoints, endpoint, method)
        }
        for name, marks in self._marked.views:
            if id(marks) not in found:
                logger.warning(
                    "limit without an endpoint: view=%s; a decorator above it hides the limit, so "
                    "use functools.wraps there, or put the limit on top",
                    name,
                )

    def _blueprints_above(self, endpoint: str) -> Iterator[tuple[str, TargetMarks]]:
        """Return the blueprints `a` and `a.b` of an endpoint `a.b.view`, each with its limits."""
        parts = endpoint.split(".")
        for length in range(1, len(parts)):
            name = ".".join(parts[:length])
            blueprint = self._app.blueprints.get(name)
            marks = None if blueprint is None else self._marked.blueprints.get(blueprint)
            if marks is not None:
                yield name, marks

    def _policy(self, mark: ViewMark, name: str) -> Policy:
        policy = self._policies.get((mark, name))
        if policy is None:
            policy = self.limits.policy_for(name, mark.limit, mark.options)
            self._policies[mark, name] = policy
        return policy


def has_marks(app: Flask) -> bool:
    """Return whether a view function of an application has a limit or an exemption."""
    return any([hasattr(view, _MARK) for view in app.view_functions.values()])


def marks_of(
    views: Mapping[str, Callable[..., object]], endpoint: str | None, method: str
) -> Iterator[TargetMarks]:
    """Return the limits and exemptions of the view of an endpoint, and of the method of its view
    class."""
    view = None if endpoint is None else views.get(endpoint)
    view_class = getattr(view, "view_class", None)
    handler = getattr(view_class, method.lower(), None)
    if handler is None and method == "HEAD":  # Flask calls `get` for HEAD.
        handler = getattr(view_class, "get", None)
    for target in (view, handler):
        marks = getattr(target, _MARK, None)
        if isinstance(marks, TargetMarks):
            yield marks
