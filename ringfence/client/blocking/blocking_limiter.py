"""The limiter for blocking code: threads, Flask, Celery.

A background thread runs the event loop and the connections. Each call is passed to that thread, and
the caller waits for the result. The limiter of `local` is called in the caller's thread, except for
waits. After a fork, the first call of the child starts a new thread and connection.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ringfence.client.connect import RulesSource, local_limiter
from ringfence.client.connect import connect as connect_async
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter, closed_error
from ringfence.client.requests.descriptors import Descriptors
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.peering.clock import Clock
from ringfence.rules import RuleSet

if TYPE_CHECKING:
    from ringfence.client.blocking.background_thread import BackgroundThread

__all__ = ["BlockingLimiter", "connect", "local"]

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")
_MAX_EXPECTED = 256


def _blocking(
    method: Callable[Concatenate[Limiter, _Params], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[BlockingLimiter, _Params], _Result]:
    """Return the blocking form of a limiter method that only waits for answers of nodes."""
    name = method.__name__

    @wraps(method)
    def call(self: BlockingLimiter, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        result: _Result = self._ask(lambda limiter: getattr(limiter, name)(*args, **kwargs))
        return result

    return call


def _blocking_wait(
    method: Callable[Concatenate[Limiter, _Params], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[BlockingLimiter, _Params], _Result]:
    """Return the blocking form of a limiter method that may wait until a request is allowed."""
    name = method.__name__

    @wraps(method)
    def call(self: BlockingLimiter, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        result: _Result = self.run(lambda limiter: getattr(limiter, name)(*args, **kwargs))
        return result

    return call


def _blocking_context(
    method: Callable[Concatenate[Limiter, _Params], AbstractAsyncContextManager[Decision]],
) -> Callable[Concatenate[BlockingLimiter, _Params], AbstractContextManager[Decision]]:
    """Return the blocking form of `Limiter.hold`, which also releases the slot when the process
    exits."""
    name = method.__name__

    @wraps(method)
    @contextmanager
    def hold(
        self: BlockingLimiter, /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> Iterator[Decision]:
        background = self._open()

        async def enter(limiter: Limiter) -> tuple[AbstractAsyncContextManager[Decision], Decision]:
            context = getattr(limiter, name)(*args, **kwargs)
            return context, await context.__aenter__()

        async def leave(_: Limiter) -> None:
            await context.__aexit__(None, None, None)

        context, decision = self._run_in(background, enter)
        _HOLDERS.add(self)
        try:
            yield decision
        finally:
            # This is a forked child without the slot, or closing has released the slot.
            if self._background is background:
                self._run_in(background, leave)

    return hold


class BlockingLimiter:
    """A `Limiter` with blocking methods. Threads may share it, and so may forked processes.

    It connects when its `with` block begins or, without a block, at the first call. Connection
    errors are raised at that moment. After `close`, or the end of the block, calls raise
    `ConfigError`. A new block connects again.
    """

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[Limiter]],
        *,
        waits: bool = True,
    ) -> None:
        """With `waits=False`, all methods except `acquire` and `hold` run in the caller's
        thread."""
        self._make = make
        self._waits = waits
        self._lock = threading.Lock()
        self._background: BackgroundThread | None = None
        self._is_closed = False
        self._expected: dict[tuple[str, tuple[tuple[str, ...], ...]], None] = {}
        os.register_at_fork(after_in_child=partial(_reset_after_fork, weakref.ref(self)))

    def __enter__(self) -> BlockingLimiter:
        with self._lock:
            self._is_closed = False
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release held slots and close the connections; later calls raise `ConfigError`.

        The end of the `with` block also does this. Closing twice has no effect.
        """
        with self._lock:
            self._is_closed = True
            background, self._background = self._background, None
        if background is not None:
            background.stop()

    def __repr__(self) -> str:
        return f"BlockingLimiter({'open' if self.is_open else 'idle'})"

    @property
    def is_open(self) -> bool:
        """Whether the background thread is running, so that calls need not connect first."""
        background = self._background
        return background is not None and background.is_alive

    @property
    def rules(self) -> RuleSet:
        """Rules against which this limiter checks requests."""
        return self._open().limiter.rules

    @property
    def unmatched(self) -> Mapping[str, int]:
        """Number of checks that matched no rule since this process connected; see
        `Limiter.unmatched`."""
        background = self._background
        return {"known": 0, "unknown": 0} if background is None else background.limiter.unmatched

    def expect(self, domain: str, *paths: Sequence[str]) -> list[str]:
        """Declare the descriptor keys of later checks; see `Limiter.expect`.

        The list is empty before the first call connects."""
        expected = (domain, tuple([tuple(path) for path in paths]))
        with self._lock:
            if len(self._expected) < _MAX_EXPECTED:
                self._expected[expected] = None
            background = self._background
        return [] if background is None else background.limiter.expect(domain, *paths)

    def check(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,
    ) -> Decision:
        """Check a request, and spend `cost` on every counter that it matches, or on none."""
        background = self._background
        if background is not None and timeout is None and not self._waits:
            known = background.limiter.check_now(domain, descriptors, cost)
            if known is not None:
                return known
        return self._check(domain, descriptors, cost, timeout=timeout)

    _check = _blocking(Limiter.check)
    check_many = _blocking(Limiter.check_many)
    peek = _blocking(Limiter.peek)
    charge = _blocking(Limiter.charge)
    refund = _blocking(Limiter.refund)
    reset = _blocking(Limiter.reset)
    acquire = _blocking_wait(Limiter.acquire)
    hold = _blocking_context(Limiter.hold)
    release = _blocking(Limiter.release)

    check_limit = _blocking(Limiter.check_limit)
    check_many_limit = _blocking(Limiter.check_many_limit)
    peek_limit = _blocking(Limiter.peek_limit)
    charge_limit = _blocking(Limiter.charge_limit)
    refund_limit = _blocking(Limiter.refund_limit)
    reset_limit = _blocking(Limiter.reset_limit)
    acquire_limit = _blocking_wait(Limiter.acquire_limit)
    hold_limit = _blocking_context(Limiter.hold_limit)

    def keep(self, decision: Decision) -> None:
        """Renew the concurrency slots of a decision periodically; see `Limiter.keep`."""

        async def keep(limiter: Limiter) -> None:
            limiter.keep(decision)

        self._ask(keep)

    def run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        """Call `call` with the async limiter in the background thread, and wait for its result.

        `call` may use the limiter several times, with only one change of thread. When the wait is
        interrupted, the call is cancelled.
        """
        return self._run_in(self._open(), call)

    def start(self, call: Callable[[Limiter], Awaitable[_Result]]) -> Future[_Result]:
        """Call `call` as `run` does, but return a future of its result, for other event loops.

        Cancelling the future cancels the call.
        """
        future: Future[_Result] = Future()
        self._open().start(call, future)
        return future

    def _run_in(
        self, background: BackgroundThread, call: Callable[[Limiter], Awaitable[_Result]]
    ) -> _Result:
        # The future exists before the call begins, because an interrupt may come in between.
        future: Future[_Result] = Future()
        try:
            background.start(call, future)
            return future.result()
        except BaseException:
            future.cancel()  # No effect if the call itself raised the error.
            raise

    def _ask(self, call: Callable[[Limiter], Coroutine[Any, Any, _Result]]) -> _Result:
        """Call `call` with the async limiter: in the caller's thread if the limiter never waits,
        otherwise in the background thread."""
        if self._waits:
            return self.run(call)
        try:
            call(self._open().limiter).send(None)
        except StopIteration as end:
            result: _Result = end.value
            return result
        raise AssertionError("a limiter in this process has waited for something")

    def _open(self) -> BackgroundThread:
        background = self._background
        if background is None or not background.is_alive:
            # Imported here, because applications on asyncio need no trio.
            from ringfence.client.blocking.background_thread import BackgroundThread

            with self._lock:
                if self._is_closed:
                    raise closed_error()
                if self._background is None or not self._background.is_alive:
                    self._background = BackgroundThread(self._make)
                    for domain, paths in self._expected:
                        self._background.limiter.expect(domain, *paths)
                background = self._background
        return background

    def _reset(self) -> None:
        """Replace the thread and the lock in a forked child process.

        The thread does not exist there, and another thread may have held the lock.
        """
        self._lock = threading.Lock()
        self._background = None


_HOLDERS: weakref.WeakSet[BlockingLimiter] = weakref.WeakSet()
"""Limiters that have held slots, which are released when the process exits."""


def _release_at_exit() -> None:
    """Release the concurrency slots of daemon threads when the process exits. The `finally`
    blocks of such threads do not run."""
    for limiter in list(_HOLDERS):
        if limiter.is_open:
            with suppress(Exception):  # The process ends; the slots end after their period.
                limiter.start(Limiter.release_held).result(timeout=2 * UNDO_WITHIN)


atexit.register(_release_at_exit)


def _reset_after_fork(limiter: weakref.ref[BlockingLimiter]) -> None:
    inherited = limiter()
    if inherited is not None:
        inherited._reset()


def connect(
    url: str | None = None,
    *,
    rules: RuleSet | None = None,
    connect_timeout: float = 5.0,
    raise_on_outage: bool = False,
    strict: bool = False,
    denial_cache_size: int = 65_536,
    use_leases: bool = True,
) -> BlockingLimiter:
    """Return the blocking form of `ringfence.connect`, which connects when it is entered or first
    used.

    At that moment it raises the errors of `ringfence.connect`.
    """
    return BlockingLimiter(
        lambda: connect_async(
            url,
            rules=rules,
            connect_timeout=connect_timeout,
            raise_on_outage=raise_on_outage,
            strict=strict,
            denial_cache_size=denial_cache_size,
            use_leases=use_leases,
        )
    )


def local(
    rules: RulesSource,
    *,
    max_keys: int = 1_000_000,
    clock: Clock | None = None,
    strict: bool = False,
) -> BlockingLimiter:
    """Return the blocking form of `ringfence.local`."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Limiter]:
        limiter = local_limiter(rules, max_keys=max_keys, clock=clock, in_loop=False, strict=strict)
        try:
            yield limiter
        finally:
            await limiter.aclose()

    return BlockingLimiter(make, waits=False)
