"""Background thread that runs an event loop and a limiter, for callers without a trio event
loop.
"""

import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import trio

from ringfence.client.limiter import Limiter, closed_error

__all__ = ["BackgroundThread"]

logger = logging.getLogger("ringfence.client")

_Result = TypeVar("_Result")


class BackgroundThread:
    """Thread with an event loop and a limiter.

    anyio's portal is not used: a thread that runs trio cannot use one. Also, in a forked child
    process the garbage collector would close the portal's generator, which then waits for a thread
    that does not exist.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Limiter]]) -> None:
        self._make = make
        self._ready: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery, Limiter]] = Future()
        self._stop = trio.Event()
        self._thread = threading.Thread(target=self._run, name="ringfence", daemon=True)
        self._thread.start()
        self._token, self._calls, self.limiter = self._ready.result()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Wait for the calls in progress, close the connections and end the thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def start(
        self, call: Callable[[Limiter], Awaitable[_Result]], result: "Future[_Result]"
    ) -> None:
        """Start a call of the limiter in the thread's event loop; cancelling the future `result`
        cancels it."""

        def begin() -> None:
            try:
                self._calls.start_soon(self._answer, call, result)
            except RuntimeError:  # The loop ends and accepts no tasks.
                result.set_exception(closed_error())

        try:
            self._token.run_sync_soon(begin)
        except trio.RunFinishedError:
            result.set_exception(closed_error())

    async def _answer(
        self, call: Callable[[Limiter], Awaitable[_Result]], result: "Future[_Result]"
    ) -> None:
        if result.cancelled():
            return
        with trio.CancelScope() as scope:

            def on_done(_: object) -> None:
                if result.cancelled():
                    with suppress(trio.RunFinishedError):
                        self._token.run_sync_soon(scope.cancel)

            result.add_done_callback(on_done)
            try:
                answer = await call(self.limiter)
            except trio.Cancelled:
                result.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - raised by `result`
                with suppress(InvalidStateError):  # The caller has cancelled it.
                    result.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    result.set_result(answer)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # The constructor raises it; later it is logged.
            if self._ready.done():
                logger.error("background thread ended", exc_info=error)
            else:
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as limiter, trio.open_nursery() as calls:
            self._ready.set_result((trio.lowlevel.current_trio_token(), calls, limiter))
            await self._stop.wait()
