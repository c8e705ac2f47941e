"""Django middleware: limits all requests by the project's settings, and writes rate limit headers.

Place it after `AuthenticationMiddleware` when the keys include the user. `EXEMPT_PATHS`, or
`exempt` on a view, exempt requests.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.disconnects import serve_cancellable
from ringfence.integrations.django.exemptions import ExemptViews
from ringfence.integrations.django.integration import (
    project_limits,
    refusal_response,
    request_state_of,
)
from ringfence.integrations.django.streams import settle_when_streamed

__all__ = ["RateLimitMiddleware"]

_FAILED = Response(500, {})
_Next: TypeAlias = Callable[[HttpRequest], Any]
"""Returns a response, or an awaitable of one."""


class RateLimitMiddleware:
    """Django middleware that checks the limits of each request, sync or async like its next
    handler."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: _Next) -> None:
        self._next = get_response
        self._integration = project_limits()
        self._limits_all = self._integration.policy.has_limits
        self._exemptions = ExemptViews()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Check the limits of one request, and serve it if it is allowed."""
        return self._serve_async(request) if self._is_async else self._serve(request)

    def _serve(self, request: HttpRequest) -> HttpResponseBase:
        limits = self._integration
        state, _ = request_state_of(request)
        try:
            refusal = limits.admit(limits.policy, state) if self._is_limited(request) else None
            response = self._next(request) if refusal is None else refusal_response(refusal)
        except BaseException:
            limits.settle(state, _FAILED)
            raise
        core_response = limits.finish(state, response)
        if not settle_when_streamed(response, limits, state, core_response):
            limits.settle(state, core_response)
        return response

    async def _serve_async(self, request: HttpRequest) -> HttpResponseBase:
        limits = self._integration
        state, _ = request_state_of(request)
        refusal = None
        try:
            if self._is_limited(request):
                refusal = await limits.admit_async(limits.policy, state)
        except BaseException:
            await limits.settle_async(state, _FAILED)
            raise
        if refusal is None:
            response = await serve_cancellable(self._next, request, limits, state)
        else:
            response = refusal_response(refusal)
        core_response = limits.finish(state, response)
        if not settle_when_streamed(response, limits, state, core_response):
            await limits.settle_async(state, core_response)
        return response

    def _is_limited(self, request: HttpRequest) -> bool:
        return self._limits_all and not self._exemptions.exempts(request)
