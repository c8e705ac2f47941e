"""A thread with an event loop and a limiter in it, for callers that have no loop or another one."""

import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import trio

from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError

__all__ = ["Background", "closed"]

logger = logging.getLogger("ringfence.client")

_Result = TypeVar("_Result")


class Background:
    """A thread with an event loop and a limiter in it.

    Not anyio's portal: a thread that runs trio itself may not use one, and the generator of its
    `start_blocking_portal`, inherited by a forked child, waits there for a thread that does not
    exist as soon as the garbage collector finds it.
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
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let calls in progress end, close the connections and end the thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def start(
        self, call: Callable[[Limiter], Awaitable[_Result]], result: "Future[_Result]"
    ) -> None:
        """Start a call in the background loop; `result` gets its result, and cancels it."""

        def begin() -> None:
            try:
                self._calls.start_soon(self._answer, call, result)
            except RuntimeError:  # The loop ends, and takes no more tasks.
                result.set_exception(closed())

        try:
            self._token.run_sync_soon(begin)
        except trio.RunFinishedError:
            result.set_exception(closed())

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
            except Exception as error:  # noqa: BLE001 - raised to whoever asks for the result
                with suppress(InvalidStateError):  # It was cancelled meanwhile.
                    result.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    result.set_result(answer)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # Told to whoever waits, else logged.
            if self._ready.done():
                logger.error("the limiter's thread has ended", exc_info=error)
            else:
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as limiter, trio.open_nursery() as calls:
            self._ready.set_result((trio.lowlevel.current_trio_token(), calls, limiter))
            await self._stop.wait()


def closed() -> ConfigError:
    """What a call on a closed client meets."""
    return ConfigError(
        "the client is closed; call before close(), inside of the `with` block, or enter it again"
    )
