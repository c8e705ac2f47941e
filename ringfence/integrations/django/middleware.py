"""Django middleware: limits all requests by the project's settings, and writes rate limit headers.

Place it after `AuthenticationMiddleware` when the keys include the user. `EXEMPT_PATHS`, or
`exempt` on a view, exempt requests.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.exemptions import ExemptViews
from ringfence.integrations.django.integration import (
    Integration,
    project_limits,
    refusal_response,
    request_state_of,
)

__all__ = ["RateLimitMiddleware"]

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
        refusal = limits.admit(limits.policy, state) if self._is_limited(request) else None
        response = self._next(request) if refusal is None else refusal_response(refusal)
        core_response = limits.finish(state, response)
        if not (state.spent and _settle_when_streamed(response, limits, state, core_response)):
            limits.settle(state, core_response)
        return response

    async def _serve_async(self, request: HttpRequest) -> HttpResponseBase:
        limits = self._integration
        state, _ = request_state_of(request)
        refusal = None
        if self._is_limited(request):
            refusal = await limits.admit_async(limits.policy, state)
        response = await self._next(request) if refusal is None else refusal_response(refusal)
        core_response = limits.finish(state, response)
        if not (state.spent and _settle_when_streamed(response, limits, state, core_response)):
            await limits.settle_async(state, core_response)
        return response

    def _is_limited(self, request: HttpRequest) -> bool:
        return self._limits_all and not self._exemptions.exempts(request)


def _settle_when_streamed(
    response: HttpResponseBase, limits: Integration, state: RequestState, core_response: Response
) -> bool:
    """Correct the charges of a request after the last part of a streamed response.

    Returns whether the response is a stream.
    """
    if not isinstance(response, StreamingHttpResponse):
        return False
    parts = response.streaming_content
    if isinstance(parts, AsyncIterator):
        response.streaming_content = _settling_async(parts, limits, state, core_response)
    else:
        response.streaming_content = _settling(parts, limits, state, core_response)
    return True


def _settling(
    parts: Iterator[bytes], limits: Integration, state: RequestState, core_response: Response
) -> Iterator[bytes]:
    try:
        yield from parts
    finally:
        limits.settle(state, core_response)


async def _settling_async(
    parts: AsyncIterator[bytes], limits: Integration, state: RequestState, core_response: Response
) -> AsyncIterator[bytes]:
    try:
        async for part in parts:
            yield part
    finally:
        await limits.settle_async(state, core_response)
