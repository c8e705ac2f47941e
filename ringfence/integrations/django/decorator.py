"""Decorator that limits one view, sync or async, with or without the middleware."""

from collections.abc import Awaitable, Callable
from functools import cache, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import LimitSpec, Response, Settings, ViewOptions
from ringfence.integrations.django.integration import (
    Integration,
    project_limits,
    refusal_response,
    request_state_of,
)
from ringfence.integrations.django.streams import settle_when_streamed

__all__ = ["rate_limit"]

_View = TypeVar("_View", bound=Callable[..., object])


def rate_limit(limit: LimitSpec = None, **options: Unpack[ViewOptions]) -> Callable[[_View], _View]:
    """Limit a view: `@rate_limit("5/minute")`; on classes by `method_decorator(..., "dispatch")`.

    Each view has its own counters unless `scope` names shared ones. The options override the
    settings of the project. Raises `ConfigError` for invalid ones.
    """
    Policy(Settings()).for_view("", limit, options)  # Raises for invalid settings now.

    # Settings cannot be read while modules are imported. The cache is needed because
    # `method_decorator` decorates again at each call.
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
    """View function of Django together with its rate limit."""

    def __init__(
        self, view: Callable[..., Any], policy_of: Callable[[Integration, str], Policy]
    ) -> None:
        self._view = view
        self._name = f"{view.__module__}.{getattr(view, '__qualname__', '')}"
        self._policy_of = policy_of

    def serve(
        self, request: HttpRequest, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> HttpResponseBase:
        limits, state, is_outermost = self._begin(request)
        response: HttpResponseBase
        try:
            refusal = limits.admit(self._policy_of(limits, self._name), state)
            if refusal is None:
                response = self._view(request, *args, **kwargs)
            else:
                response = refusal_response(refusal)
        except BaseException as error:
            if is_outermost:
                limits.settle(state, _response_to(error))
            raise
        if is_outermost:
            core_response = limits.finish(state, response)
            if not settle_when_streamed(response, limits, state, core_response):
                limits.settle(state, core_response)
        return response

    async def serve_async(
        self, request: HttpRequest, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> HttpResponseBase:
        limits, state, is_outermost = self._begin(request)
        response: HttpResponseBase
        try:
            refusal = await limits.admit_async(self._policy_of(limits, self._name), state)
            if refusal is None:
                answer = self._view(request, *args, **kwargs)
                response = await answer if isinstance(answer, Awaitable) else answer
            else:
                response = refusal_response(refusal)
        except BaseException as error:  # Django cancels the task when the client disconnects.
            if is_outermost:
                await limits.settle_async(state, _response_to(error))
            raise
        if is_outermost:
            core_response = limits.finish(state, response)
            if not settle_when_streamed(response, limits, state, core_response):
                await limits.settle_async(state, core_response)
        return response

    def _begin(self, request: HttpRequest) -> "tuple[Integration, Any, bool]":
        state, is_outermost = request_state_of(request)
        return project_limits(), state, is_outermost


def _is_async(view: Callable[..., object]) -> bool:
    """Whether a view is asynchronous, including `dispatch` of a class with async handlers."""
    instance = getattr(getattr(view, "func", None), "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(instance, "view_is_async", False))


def _response_to(error: BaseException) -> Response:
    """Return the response that Django sends for the exception of a view."""
    if isinstance(error, Http404):
        return Response(404, {})
    return Response(403 if isinstance(error, PermissionDenied) else 500, {})
