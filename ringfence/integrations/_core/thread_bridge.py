"""Bridge between event loops: a task in one loop waits for a call that runs in another loop."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

import trio
from anyio.to_thread import run_sync

from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.limiter import Limiter

__all__ = ["ask"]

_Result = TypeVar("_Result")


async def ask(
    limiter: Limiter | BlockingLimiter, call: Callable[[Limiter], Awaitable[_Result]]
) -> _Result:
    """Run `call` with a limiter and wait for its result, on asyncio or trio.

    A blocking limiter runs it in its own loop. Cancelling the wait cancels the call.
    """
    if isinstance(limiter, Limiter):
        return await call(limiter)
    if limiter.is_open:
        future = limiter.start(call)
    else:  # The first call connects, which blocks.
        future = await run_sync(limiter.start, call)
    if not trio.lowlevel.in_trio_run():
        return await asyncio.wrap_future(future)
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(_: Future[_Result]) -> None:
        with suppress(trio.RunFinishedError):  # The waiting run has ended.
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
    except trio.Cancelled:
        future.cancel()
        raise
    return future.result()
