"""Corrections of charges at the end of Django's streamed responses."""

import sys
import threading
from collections.abc import AsyncIterator, Iterator

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.integration import Integration

__all__ = ["settle_when_streamed"]


def settle_when_streamed(
    response: HttpResponseBase, limits: Integration, state: RequestState, core_response: Response
) -> bool:
    """Correct the charges of a request after the last part of a streamed response.

    Returns whether the response is a stream with charges to correct.
    """
    if not state.spent or not isinstance(response, StreamingHttpResponse):
        return False
    charges = _Charges(limits, state, core_response)
    parts = response.streaming_content
    if isinstance(parts, AsyncIterator):
        response.streaming_content = charges.settled_after_async(parts)
    else:
        response.streaming_content = charges.settled_after(parts)
    return True


class _Charges:
    """Charges of a request whose response is a stream."""

    def __init__(self, limits: Integration, state: RequestState, response: Response) -> None:
        self._limits = limits
        self._state = state
        self._response = response

    def settled_after(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Return the parts of a response; correct the charges after the last one."""
        try:
            yield from parts
        finally:
            self._settle()

    async def settled_after_async(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the parts of a response; correct the charges after the last one."""
        try:
            async for part in parts:
                yield part
        finally:
            await self._limits.settle_async(self._state, self._response)

    def _settle(self) -> None:
        self._limits.settle(self._state, self._response)

    def __del__(self) -> None:
        """Correct the charges of a stream that was never read, for example because a middleware
        has sent the status 304 instead."""
        if self._state.spent and not sys.is_finalizing():
            # In another thread, because this one may be in the middle of anything.
            threading.Thread(target=self._settle, name="ringfence-settle", daemon=True).start()
