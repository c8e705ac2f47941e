"""Limiter that runs in the threads which call it."""

import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from threading import Thread
from typing import TypeVar

from ringfence import runtime
from ringfence.client.limiter import Limiter, closed_error
from ringfence.errors import PeerUnavailable
from ringfence.runtime.caller_loop import CallerLoop, LoopLost

__all__ = ["LimiterLost", "OpenLimiter"]

logger = logging.getLogger("ringfence.client")

_Result = TypeVar("_Result")

LimiterLost = LoopLost
"""Exception of calls in progress when a fork or a signal handler made the limiter unusable."""


class OpenLimiter:
    """Open limiter with the loop in which its coroutines run."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Limiter]]) -> None:
        """Open the limiter that `make` creates; raises the errors of `make`."""
        self._make = make
        self._loop = CallerLoop(_lost_error)
        self._limiter: Limiter | None = None
        self._failure: BaseException | None = None
        self._ready = runtime.Event()
        self._stop = runtime.Event()
        self._is_closing = False
        try:
            self._loop.start(self._serve)
            self._loop.call(self._ready.wait)
        except BaseException as error:
            # A signal handler may have raised it after the start of the helper thread.
            with suppress(LoopLost):
                self._loop.call_from_thread(self._stop.set)
            # In a thread that runs trio, the loop may have ended before the call.
            if not isinstance(error, LoopLost) or self._failure is None:
                # No other code waits for the end of the helper thread and closes its files.
                Thread(target=self._loop.join, name="ringfence-close", daemon=True).start()
                raise
        if self._limiter is None:
            self._loop.join()
            assert self._failure is not None
            raise self._failure
        self.limiter: Limiter = self._limiter
        """The async limiter; its coroutines must run in `call` or `start`."""

    @property
    def is_alive(self) -> bool:
        """Whether calls can be made."""
        return self._loop.is_running

    def call(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        """Call `call` with the limiter, and wait for its result. Raises `LimiterLost`."""
        if self._is_closing:
            raise closed_error()
        return self._loop.call(partial(call, self.limiter))

    def start(
        self, call: Callable[[Limiter], Awaitable[_Result]], result: "Future[_Result]"
    ) -> None:
        """Call `call` with the limiter; cancelling the future `result` cancels the call."""
        if self._is_closing:
            result.set_exception(closed_error())
            return
        self._loop.submit(partial(call, self.limiter), result)

    def stop(self) -> None:
        """Wait for the calls in progress, and close the connections."""
        with suppress(LoopLost):
            self._loop.call_from_thread(self._stop.set)
        self._loop.join()

    def abandon(self) -> None:
        """Forget the connections, which belong to the parent process of this forked process."""
        self._loop.abandon()

    async def _serve(self) -> None:
        """Open the limiter, and close it when it is asked to stop; log the errors of its tasks."""
        try:
            async with self._make() as limiter:
                self._loop.admit_calls()
                self._limiter = limiter
                self._ready.set()
                await self._stop.wait()
                self._is_closing = True
                await limiter.end_waits()
                await self._loop.wait_idle()
        except Exception as error:
            self._failure = error
            if self._ready.is_set():
                logger.error("the limiter has ended", exc_info=error)
        finally:
            self._is_closing = True
            self._ready.set()


def _lost_error() -> Exception:
    return PeerUnavailable("the call was interrupted: a signal handler raised an exception")
