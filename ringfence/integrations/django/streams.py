"""Corrections of charges at the end of Django's streamed responses."""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.integration import Integration

__all__ = ["UnreadStreams", "settle_when_streamed"]

logger = logging.getLogger("ringfence.integrations")

_MAX_WAITING = 1000
"""Unread streams whose charges may wait for their correction."""


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
            has_slots = any([spent.decision.slots is not None for spent in self._state.spent])
            settle = partial(self._limits.settle, self._state, self._response)
            _unread.add(settle, has_slots=has_slots)


class UnreadStreams:
    """Charges of streams that were never read. One thread corrects them, and ends after the last
    one."""

    def __init__(self, most: int = _MAX_WAITING) -> None:
        self._most = most
        self.reset()

    def reset(self) -> None:
        """Forget the waiting charges and the thread of the parent in a forked child process."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = threading.Lock()

    def add(self, settle: Callable[[], None], *, has_slots: bool) -> None:
        """Add the correction of one stream. A destructor may call this at any point of any thread.

        When too many wait, charges without slots are dropped: their units become available when
        their period ends. Slots would be renewed without end; their limit bounds their number.
        """
        if len(self._waiting) < self._most or has_slots:
            self._waiting.append(settle)
            self._start()

    def _start(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._settle_all, name="ringfence-settle", daemon=True).start()
        except BaseException:
            self._running.release()
            raise

    def _settle_all(self) -> None:
        try:
            while self._waiting:
                try:
                    self._waiting.popleft()()
                except Exception:
                    logger.exception("a charge of a stream that was never read was not corrected")
        finally:
            self._running.release()
        if self._waiting:  # Added after the last look, while the lock was still held.
            self._start()


_unread = UnreadStreams()
os.register_at_fork(after_in_child=_unread.reset)
