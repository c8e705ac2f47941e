"""The middleware: limits every request by the project's settings, and writes the headers of all.

It stands after `AuthenticationMiddleware` where the user is counted. Exempt what is not to be
limited by `EXEMPT_PATHS`, or by `exempt` on a view.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.exempting import Exemptions
from ringfence.integrations.django.integration import Integration, face, refusal_response, visit_of

__all__ = ["RateLimitMiddleware"]

_Next: TypeAlias = Callable[[HttpRequest], Any]
"""Gives a response, or an awaitable of one, as Django decides."""


class RateLimitMiddleware:
    """Django middleware, sync or async as what stands below it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: _Next) -> None:
        self._next = get_response
        self._face = face()
        self._limits_all = self._face.policy.limits_something
        self._exemptions = Exemptions()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Serve one request."""
        return self._serve_async(request) if self._is_async else self._serve(request)

    def _serve(self, request: HttpRequest) -> HttpResponseBase:
        limits = self._face
        visit, _ = visit_of(request)
        refusal = limits.admit(limits.policy, visit) if self._is_limited(request) else None
        response = self._next(request) if refusal is None else refusal_response(refusal)
        told = limits.finish(visit, response)
        if not (visit.spent and _settles_at_its_end(response, limits, visit, told)):
            limits.settle(visit, told)
        return response

    async def _serve_async(self, request: HttpRequest) -> HttpResponseBase:
        limits = self._face
        visit, _ = visit_of(request)
        refusal = None
        if self._is_limited(request):
            refusal = await limits.admit_async(limits.policy, visit)
        response = await self._next(request) if refusal is None else refusal_response(refusal)
        told = limits.finish(visit, response)
        if not (visit.spent and _settles_at_its_end(response, limits, visit, told)):
            await limits.settle_async(visit, told)
        return response

    def _is_limited(self, request: HttpRequest) -> bool:
        return self._limits_all and not self._exemptions.cover(request)


def _settles_at_its_end(
    response: HttpResponseBase, limits: Integration, visit: RequestState, told: Response
) -> bool:
    """Have a stream settle when its last part is sent; tell whether the answer is a stream."""
    if not isinstance(response, StreamingHttpResponse):
        return False
    parts = response.streaming_content
    if isinstance(parts, AsyncIterator):
        response.streaming_content = _settling_async(parts, limits, visit, told)
    else:
        response.streaming_content = _settling(parts, limits, visit, told)
    return True


def _settling(
    parts: Iterator[bytes], limits: Integration, visit: RequestState, told: Response
) -> Iterator[bytes]:
    try:
        yield from parts
    finally:
        limits.settle(visit, told)


async def _settling_async(
    parts: AsyncIterator[bytes], limits: Integration, visit: RequestState, told: Response
) -> AsyncIterator[bytes]:
    try:
        async for part in parts:
            yield part
    finally:
        await limits.settle_async(visit, told)
