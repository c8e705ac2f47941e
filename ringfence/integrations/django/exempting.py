"""Views that what limits all requests leaves alone: the mark on a view, and finding it by a URL.

The middleware runs before Django has chosen a view, so it resolves the URL itself, and only where
the project has an exempt view.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.http import HttpRequest
from django.urls import Resolver404, URLResolver, get_resolver, resolve

__all__ = ["Exemptions", "exempt"]

_View = TypeVar("_View", bound=Callable[..., object])
_EXEMPT = "_ringfence_exempt"


def exempt(view: _View) -> _View:
    """Exempt a view from what limits all requests: `@exempt`; a limit of its own still holds.

    On classes by `@method_decorator(exempt, name="dispatch")`.
    """
    setattr(view, _EXEMPT, True)
    return view


class Exemptions:
    """Finds out whether the view of a request is exempt."""

    def __init__(self) -> None:
        self._has_any: bool | None = None
        """Whether any view of the project's own URLs is; None before the first request."""

    def cover(self, request: HttpRequest) -> bool:
        """Whether the view that will answer a request is exempt."""
        own = getattr(request, "urlconf", None)  # Set by a middleware, where there are several.
        if own is None:
            if self._has_any is None:
                self._has_any = any(_exempt_below(get_resolver().url_patterns))
            if not self._has_any:
                return False
        try:
            return is_exempt(resolve(request.path_info, own).func)
        except Resolver404:
            return False


def is_exempt(view: object) -> bool:
    """Whether `exempt` was applied to a view."""
    return bool(getattr(view, _EXEMPT, False))


def _exempt_below(patterns: Iterable[Any]) -> Iterable[bool]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _exempt_below(pattern.url_patterns)
        else:
            yield is_exempt(pattern.callback)
