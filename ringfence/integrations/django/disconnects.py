"""Requests whose client disconnects under ASGI: Django cancels the task of the request.

Cancellation ends an async view, but not the thread of a sync view. Such a view runs to its end, so
its slots and charges are kept until then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.integration import Integration

__all__ = ["serve_cancellable"]

_FAILED = Response(500, {})
_settling: set[asyncio.Task[None]] = set()
"""Corrections of charges in progress. An event loop keeps only weak references to tasks."""


async def serve_cancellable(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
    request: HttpRequest,
    limits: Integration,
    state: RequestState,
) -> HttpResponseBase:
    """Await the response to a request. When it fails or is cancelled, correct its charges.

    After a cancellation, the charges are corrected when the view has ended, by its response.
    """
    context = copy_context()
    serving = asyncio.create_task(_await(get_response, request), context=context)
    try:
        return await asyncio.shield(serving)
    except BaseException:
        if not _is_sync_view(request):
            serving.cancel()
        settling = asyncio.create_task(_settle_after(serving, limits, state))
        _settling.add(settling)
        settling.add_done_callback(_settling.discard)
        await asyncio.shield(settling)
        raise
    finally:
        _adopt(context)


async def _await(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]], request: HttpRequest
) -> HttpResponseBase:
    return await get_response(request)


async def _settle_after(
    serving: asyncio.Task[HttpResponseBase], limits: Integration, state: RequestState
) -> None:
    response = _FAILED
    try:
        await asyncio.wait([serving])
        if not serving.cancelled() and serving.exception() is None:
            response = limits.finish(state, serving.result())
    finally:
        await limits.settle_async(state, response)


def _is_sync_view(request: HttpRequest) -> bool:
    """Whether Django has chosen a sync view for the request, which runs in a thread."""
    match = request.resolver_match
    return match is not None and not iscoroutinefunction(match.func)


def _adopt(context: Context) -> None:
    """Set the context variables of this task to the values that an inner task has set."""
    for variable, value in context.items():
        if variable.get(None) is not value:
            variable.set(value)
