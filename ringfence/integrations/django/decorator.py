"""A limit on one view, sync or async, with the middleware or without."""

from collections.abc import Awaitable, Callable
from functools import cache, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import LimitSpec, Response, Settings, ViewOptions
from ringfence.integrations.django.integration import Integration, face, refusal_response, visit_of

__all__ = ["rate_limit"]

_View = TypeVar("_View", bound=Callable[..., object])


def rate_limit(limit: LimitSpec = None, **options: Unpack[ViewOptions]) -> Callable[[_View], _View]:
    """Limit a view: `@rate_limit("5/minute")`; on classes by `method_decorator(..., "dispatch")`.

    The budget is the view's own unless `scope` names one to share. Everything else is as the
    project's settings say, but for the options given here. Raises `ConfigError` for those that make
    no sense.
    """
    Policy(Settings()).for_view("", limit, options)  # Tells now what makes no sense.

    # Settings may not be read while modules are imported; and `method_decorator` decorates anew at
    # each call, which must not read the limit anew.
    @cache
    def policy_of(limits: Integration, name: str) -> Policy:
        return limits.policy_for(name, limit, options)

    def decorate(view: _View) -> _View:
        limited = _Limited(view, policy_of)
        if _is_async(view):

            @wraps(view)
            async def async_view(request: HttpRequest, *args: object, **kwargs: object) -> Any:
                return await limited.serve_async(request, args, kwargs)

            return async_view  # type: ignore[return-value]  # called as the view is

        @wraps(view)
        def sync_view(request: HttpRequest, *args: object, **kwargs: object) -> Any:
            return limited.serve(request, args, kwargs)

        return sync_view  # type: ignore[return-value]

    return decorate


class _Limited:
    """A view and its limit."""

    def __init__(
        self, view: Callable[..., Any], policy_of: Callable[[Integration, str], Policy]
    ) -> None:
        self._view = view
        self._name = f"{view.__module__}.{getattr(view, '__qualname__', '')}"
        self._policy_of = policy_of

    def serve(
        self, request: HttpRequest, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> HttpResponseBase:
        limits, visit, is_outermost = self._begin(request)
        response: HttpResponseBase
        try:
            refusal = limits.admit(self._policy_of(limits, self._name), visit)
            if refusal is None:
                response = self._view(request, *args, **kwargs)
            else:
                response = refusal_response(refusal)
        except Exception as error:
            if is_outermost:
                limits.settle(visit, _response_to(error))
            raise
        if is_outermost:
            limits.settle(visit, limits.finish(visit, response))
        return response

    async def serve_async(
        self, request: HttpRequest, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> HttpResponseBase:
        limits, visit, is_outermost = self._begin(request)
        response: HttpResponseBase
        try:
            refusal = await limits.admit_async(self._policy_of(limits, self._name), visit)
            if refusal is None:
                answer = self._view(request, *args, **kwargs)
                response = await answer if isinstance(answer, Awaitable) else answer
            else:
                response = refusal_response(refusal)
        except Exception as error:
            if is_outermost:
                await limits.settle_async(visit, _response_to(error))
            raise
        if is_outermost:
            await limits.settle_async(visit, limits.finish(visit, response))
        return response

    def _begin(self, request: HttpRequest) -> "tuple[Integration, Any, bool]":
        visit, is_outermost = visit_of(request)
        return face(), visit, is_outermost


def _is_async(view: Callable[..., object]) -> bool:
    """Whether a view is to be awaited: `dispatch` of a class with async handlers is, too."""
    instance = getattr(getattr(view, "func", None), "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(instance, "view_is_async", False))


def _response_to(error: Exception) -> Response:
    """What Django will answer to a view's exception, as far as it can be told from here."""
    if isinstance(error, Http404):
        return Response(404, {})
    return Response(403 if isinstance(error, PermissionDenied) else 500, {})
