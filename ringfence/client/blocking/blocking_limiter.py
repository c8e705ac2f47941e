"""The limiter for blocking code: threads, Flask, Celery.

The threads that wait for an answer run the event loop and the connections. One background thread
serves the connections while no thread waits. The limiter of `local` needs no event loop, except for
waits. After a fork, the first call of the child opens a new connection.
"""

from __future__ import annotations

import atexit
import os
import sys
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
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from cryptography.hazmat.backends import default_backend

from ringfence.client.blocking.open_limiter import LimiterLost, OpenLimiter
from ringfence.client.connect import RulesSource, connected, local_limiter
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter, closed_error
from ringfence.client.requests.check_ops_plain import LocalCheck
from ringfence.client.requests.descriptors import Descriptors, require_paths
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.errors import RingfenceError
from ringfence.peering.clock import Clock
from ringfence.rules import RuleSet

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
        _HOLDERS.add(self)
        result: _Result = self.run(lambda limiter: getattr(limiter, name)(*args, **kwargs))
        return result

    return call


def _blocking_context(
    method: Callable[Concatenate[Limiter, _Params], AbstractAsyncContextManager[_Result]],
) -> Callable[Concatenate[BlockingLimiter, _Params], AbstractContextManager[_Result]]:
    """Return the blocking form of `Limiter.hold` or `Limiter.reserve`. Slots are also released when
    the process exits."""
    name = method.__name__

    @wraps(method)
    @contextmanager
    def call(
        self: BlockingLimiter, /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> Iterator[_Result]:
        async def enter(limiter: Limiter) -> tuple[AbstractAsyncContextManager[_Result], _Result]:
            context = getattr(limiter, name)(*args, **kwargs)
            return context, await context.__aenter__()

        async def leave(_: Limiter) -> None:
            await context.__aexit__(None, None, None)

        _HOLDERS.add(self)
        while True:
            opened = self._open()
            try:
                context, result = opened.call(enter)
                break
            except LimiterLost:
                continue
        if isinstance(result, Decision):
            self._held[id(result)] = result
        try:
            yield result
        finally:
            held = self._held.pop(id(result), None)
            # Otherwise, this is a forked child without the slot, or closing has released the slot.
            if self._opened is opened:
                with suppress(LimiterLost):  # The slot ends after its period.
                    opened.call(leave)
            elif held is not None and not self._is_closed:  # A new limiter has replaced a lost one.
                with suppress(RingfenceError):
                    self._ask(partial(_release, held))

    return call


class BlockingLimiter:
    """A `Limiter` with blocking methods. Threads may share it, and so may forked processes.

    It connects when its `with` block begins or, without a block, at the first call. Errors of the
    address, keys and token are raised at that moment. After `close`, or the end of the block, calls
    raise `ConfigError`. A new block connects again.
    """

    _local_check: LocalCheck | None = None
    """Decides most checks of a limiter in this process; None before it is open, and with nodes."""

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[Limiter]],
        *,
        enter: Callable[[], AbstractAsyncContextManager[Limiter]] | None = None,
        waits: bool = True,
    ) -> None:
        """`enter` makes the limiter of a `with` block, by default as `make` does. With
        `waits=False`, all methods except `acquire` and `hold` run in the caller's thread."""
        self._make = make
        self._enter = enter or make
        self._waits = waits
        self._lock = threading.Lock()
        self._opened: OpenLimiter | None = None
        self._is_closed = False
        self._held: dict[int, Decision] = {}
        """Decisions of the `hold` blocks of this process that run now, by identity."""
        self._expected: dict[tuple[str, tuple[tuple[str, ...], ...]], None] = {}
        os.register_at_fork(after_in_child=partial(_reset_after_fork, weakref.ref(self)))

    def __enter__(self) -> BlockingLimiter:
        with self._lock:
            self._is_closed = False
        self._open(self._enter)
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
            self._local_check = None
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.stop()

    def __del__(self) -> None:
        """Close the connections of a limiter that the application has dropped."""
        opened: OpenLimiter | None = getattr(self, "_opened", None)
        if opened is not None and not sys.is_finalizing():
            # In another thread, because this one may be in the middle of anything.
            threading.Thread(target=opened.stop, name="ringfence-close", daemon=True).start()

    def __repr__(self) -> str:
        return f"BlockingLimiter({'open' if self.is_open else 'idle'})"

    @property
    def is_open(self) -> bool:
        """Whether calls need not connect first."""
        opened = self._opened
        return opened is not None and opened.is_alive

    @property
    def rules(self) -> RuleSet:
        """Rules against which this limiter checks requests."""
        return self._open().limiter.rules

    @property
    def unmatched(self) -> Mapping[str, int]:
        """Number of checks that matched no rule since this process connected; see
        `Limiter.unmatched`."""
        opened = self._opened
        return {"known": 0, "unknown": 0} if opened is None else opened.limiter.unmatched

    def expect(self, domain: str, *paths: Sequence[str]) -> list[str]:
        """Declare the descriptor keys of later checks; see `Limiter.expect`.

        The list is empty before the first call connects."""
        require_paths(domain, paths)
        expected = (domain, tuple([tuple(path) for path in paths]))
        with self._lock:
            if len(self._expected) < _MAX_EXPECTED:
                self._expected[expected] = None
            opened = self._opened
        return [] if opened is None else opened.limiter.expect(domain, *paths)

    def check(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,
    ) -> Decision:
        """Check a request, and spend `cost` on every counter that it matches, or on none."""
        local_check = self._local_check
        if local_check is not None and timeout is None:
            known = local_check(domain, descriptors, cost)
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
    reserve = _blocking_context(Limiter.reserve)
    release = _blocking(Limiter.release)
    renew = _blocking(Limiter.renew)

    check_limit = _blocking(Limiter.check_limit)
    check_many_limit = _blocking(Limiter.check_many_limit)
    peek_limit = _blocking(Limiter.peek_limit)
    charge_limit = _blocking(Limiter.charge_limit)
    refund_limit = _blocking(Limiter.refund_limit)
    reset_limit = _blocking(Limiter.reset_limit)
    acquire_limit = _blocking_wait(Limiter.acquire_limit)
    hold_limit = _blocking_context(Limiter.hold_limit)
    reserve_limit = _blocking_context(Limiter.reserve_limit)

    def keep(self, decision: Decision) -> None:
        """Renew the concurrency slots of a decision periodically; see `Limiter.keep`."""

        async def keep(limiter: Limiter) -> None:
            limiter.keep(decision)

        self._ask(keep)

    def run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        """Call `call` with the async limiter, and wait for its result.

        `call` may await several methods of the limiter, but no functions of trio or asyncio. When
        the wait is interrupted, the call is cancelled.
        """
        while True:
            try:
                return self._open().call(call)
            except LimiterLost:
                continue

    def start(self, call: Callable[[Limiter], Awaitable[_Result]]) -> Future[_Result]:
        """Call `call` as `run` does, but return a future of its result, for other event loops.

        Cancelling the future cancels the call.
        """
        future: Future[_Result] = Future()
        while True:
            with suppress(LimiterLost):
                self._open().start(call, future)
                return future

    def _ask(self, call: Callable[[Limiter], Coroutine[Any, Any, _Result]]) -> _Result:
        """Call `call` with the async limiter, without an event loop if the limiter never waits."""
        if self._waits:
            return self.run(call)
        try:
            call(self._open().limiter).send(None)
        except StopIteration as end:
            result: _Result = end.value
            return result
        raise AssertionError("a limiter in this process has waited for something")

    def _open(
        self, make: Callable[[], AbstractAsyncContextManager[Limiter]] | None = None
    ) -> OpenLimiter:
        opened = self._opened
        if opened is None or not opened.is_alive:
            with self._lock:
                if self._is_closed:
                    raise closed_error()
                if self._opened is None or not self._opened.is_alive:
                    self._opened = OpenLimiter(make or self._make)
                    if not self._waits:
                        self._local_check = self._opened.limiter.local_check
                    for domain, paths in self._expected:
                        self._opened.limiter.expect(domain, *paths)
                    if self._held:  # By a limiter that a signal handler has interrupted.
                        with suppress(LimiterLost):
                            self._opened.call(partial(_keep, [*self._held.values()]))
                opened = self._opened
        return opened

    def _reset(self) -> None:
        """Forget connections and locks of the parent in a forked child process.

        The threads of the parent do not exist there, and one may have held the lock.
        """
        self._lock = threading.Lock()
        self._held = {}
        self._local_check = None
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.abandon()


async def _keep(decisions: list[Decision], limiter: Limiter) -> None:
    """Renew the slots of decisions."""
    for decision in decisions:
        limiter.keep(decision)


async def _release(decision: Decision, limiter: Limiter) -> None:
    """Release the slots of a decision."""
    await limiter.release(decision)


_HOLDERS: weakref.WeakSet[BlockingLimiter] = weakref.WeakSet()
"""Limiters that have held slots or waited for them, which ends when the process exits."""


async def _end_slots(limiter: Limiter) -> None:
    """End the waits for slots, then release slots: otherwise a waiting thread would get one."""
    await limiter.end_waits(is_exiting=True)
    await limiter.release_held()


def _release_at_exit() -> None:
    """Release the concurrency slots of daemon threads when the process exits. The `finally`
    blocks of such threads do not run."""
    for limiter in list(_HOLDERS):
        if limiter.is_open:
            with suppress(Exception):  # The process ends; the slots end after their period.
                limiter.start(_end_slots).result(timeout=2 * UNDO_WITHIN)


atexit.register(_release_at_exit)


def _reset_after_fork(limiter: weakref.ref[BlockingLimiter]) -> None:
    inherited = limiter()
    if inherited is not None:
        inherited._reset()


def connect(
    url: str | None = None,
    *,
    rules: RulesSource | None = None,
    connect_timeout: float = 5.0,
    raise_on_outage: bool = False,
    strict: bool = False,
    denial_cache_size: int = 65_536,
    use_leases: bool = True,
) -> BlockingLimiter:
    """Return the blocking form of `ringfence.connect`, which connects when it is entered or first
    used.

    When it is entered, it raises the errors of `ringfence.connect`. Without a block, the first call
    waits at most `connect_timeout` seconds for a node. Later calls do not wait for a first node:
    they raise at once with `raise_on_outage`.
    """
    _import_all()
    open_with = partial(
        connected,
        url,
        rules=rules,
        connect_timeout=connect_timeout,
        raise_on_outage=raise_on_outage,
        strict=strict,
        denial_cache_size=denial_cache_size,
        use_leases=use_leases,
    )
    return BlockingLimiter(
        partial(open_with, must_answer=False),
        enter=partial(open_with, must_answer=raise_on_outage),
    )


def _import_all() -> None:
    """Import now what the first call would import: if the process forked during that call in
    another thread, the child could never import it."""
    import_module("ringfence.transport.udp.udp_caller_loop")
    default_backend()


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
