"""Views that are exempt from the limits on all requests.

The middleware runs before Django has chosen a view, so it resolves the URL itself. It does so only
when the project has an exempt view.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.http import HttpRequest
from django.urls import Resolver404, URLResolver, get_resolver, resolve

__all__ = ["ExemptViews", "exempt"]

_View = TypeVar("_View", bound=Callable[..., object])
_EXEMPT = "_ringfence_exempt"


def exempt(view: _View) -> _View:
    """Exempt a view from the limits on all requests: `@exempt`. Its own limit still applies.

    On classes by `@method_decorator(exempt, name="dispatch")`.
    """
    setattr(view, _EXEMPT, True)
    return view


class ExemptViews:
    """Look-up of whether the view of a request is exempt."""

    def __init__(self) -> None:
        self._has_any: bool | None = None
        """Whether the project has an exempt view; None before the first request."""

    def exempts(self, request: HttpRequest) -> bool:
        """Whether the view of a request is exempt."""
        own = getattr(request, "urlconf", None)  # A middleware may set it.
        if own is None:
            if self._has_any is None:
                self._has_any = any(_exempt_flags(get_resolver().url_patterns))
            if not self._has_any:
                return False
        try:
            return is_exempt(resolve(request.path_info, own).func)
        except Resolver404:
            return False


def is_exempt(view: object) -> bool:
    """Whether `exempt` was applied to a view."""
    return bool(getattr(view, _EXEMPT, False))


def _exempt_flags(patterns: Iterable[Any]) -> Iterable[bool]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _exempt_flags(pattern.url_patterns)
        else:
            yield is_exempt(pattern.callback)
