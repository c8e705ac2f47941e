"""The same limiter for code that blocks: threads, Flask, Celery.

One background thread runs the event loop and its connections; calls cross over to it and wait. Only
a limiter that counts in this process is asked in the caller's own thread, unless a turn has to be
waited for. After a fork the child starts a thread and a connection of its own with its first call.
"""

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
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ringfence.client.blocking.background_thread import Background, closed
from ringfence.client.connect import connect as connect_async
from ringfence.client.connect import local_limiter
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import Descriptors
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.limiter import Limit
from ringfence.peering.clock import Clock
from ringfence.rules import RuleSet

__all__ = ["BlockingLimiter", "connect", "local"]

_Result = TypeVar("_Result")
_MOST_EXPECTED = 256


class BlockingLimiter:
    """A `Limiter` whose methods block. Safe to share among threads, and across a fork.

    The connection is made by entering it as a context or, when it was never closed, by its first
    call: a wrong address is told there. After `close`, or the end of the context, calls raise
    `ConfigError`; entering it once more connects again.
    """

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[Limiter]],
        *,
        waits: bool = True,
    ) -> None:
        """`waits=False`: of what `make` opens, only `acquire` and `hold` ever wait, and any thread
        may call the rest."""
        self._make = make
        self._waits = waits
        self._lock = threading.Lock()
        self._background: Background | None = None
        self._is_closed = False
        self._expected: dict[tuple[str, tuple[tuple[str, ...], ...]], None] = {}
        os.register_at_fork(after_in_child=partial(_start_anew, weakref.ref(self)))

    def __enter__(self) -> "BlockingLimiter":
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
        """Close the connections and end the background thread; calls raise from now on."""
        with self._lock:
            self._is_closed = True
            background, self._background = self._background, None
        if background is not None:
            background.stop()

    def __repr__(self) -> str:
        return f"BlockingLimiter({'open' if self.is_open else 'idle'})"

    @property
    def is_open(self) -> bool:
        """Whether the background thread runs, so that a call connects to nothing first."""
        background = self._background
        return background is not None and background.is_alive

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._open().limiter.rules

    @property
    def unmatched(self) -> Mapping[str, int]:
        """See `Limiter.unmatched`; those since this process connected."""
        background = self._background
        return {"known": 0, "unknown": 0} if background is None else background.limiter.unmatched

    def expect(self, domain: str, *paths: Sequence[str]) -> list[str]:
        """See `Limiter.expect`. Before the first call connects, the list is empty."""
        expected = (domain, tuple([tuple(path) for path in paths]))
        with self._lock:
            if len(self._expected) < _MOST_EXPECTED:
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
        """See `Limiter.check`."""
        return self._ask(lambda limiter: limiter.check(domain, descriptors, cost, timeout=timeout))

    def check_many(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        costs: int | Sequence[int] = 1,
        *,
        timeout: float | None = None,
    ) -> list[Decision]:
        """See `Limiter.check_many`."""
        return self._ask(
            lambda limiter: limiter.check_many(domain, requests, costs, timeout=timeout)
        )

    def peek(self, domain: str, descriptors: Descriptors) -> Decision:
        """See `Limiter.peek`."""
        return self._ask(lambda limiter: limiter.peek(domain, descriptors))

    def charge(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,
    ) -> Decision:
        """See `Limiter.charge`."""
        return self._ask(lambda limiter: limiter.charge(domain, descriptors, cost, timeout=timeout))

    def refund(self, domain: str, descriptors: Descriptors, cost: int = 1) -> Decision:
        """See `Limiter.refund`."""
        return self._ask(lambda limiter: limiter.refund(domain, descriptors, cost))

    def reset(self, domain: str, descriptors: Descriptors) -> Decision:
        """See `Limiter.reset`."""
        return self._ask(lambda limiter: limiter.reset(domain, descriptors))

    def acquire(
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float = 10.0
    ) -> Decision:
        """See `Limiter.acquire`."""
        return self.run(
            lambda limiter: limiter.acquire(domain, descriptors, cost, max_wait=max_wait)
        )

    def release(self, decision: Decision) -> None:
        """See `Limiter.release`."""
        self._ask(lambda limiter: limiter.release(decision))

    def keep(self, decision: Decision) -> None:
        """See `Limiter.keep`."""
        if self._waits:
            self.run(partial(_keep, decision))
        else:
            self._open().limiter.keep(decision)

    @contextmanager
    def hold(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        max_wait: float = 10.0,
        raise_on_denied: bool = True,
    ) -> Iterator[Decision]:
        """See `Limiter.hold`. The slot is also released when the process exits meanwhile."""
        self._open().limiter.require_place(domain, descriptors)

        async def take(limiter: Limiter) -> Decision:
            taking = limiter.acquire(domain, descriptors, cost, max_wait=max_wait)
            return await limiter.begin_hold(taking, raise_on_denied=raise_on_denied)

        with self._holding(take) as decision:
            yield decision

    @contextmanager
    def hold_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        max_wait: float = 10.0,
        raise_on_denied: bool = True,
    ) -> Iterator[Decision]:
        """See `Limiter.hold_limit`."""
        self._open().limiter.require_slots(limit)

        async def take(limiter: Limiter) -> Decision:
            taking = limiter.acquire_limit(limit, *key, cost=cost, max_wait=max_wait)
            return await limiter.begin_hold(taking, raise_on_denied=raise_on_denied)

        with self._holding(take) as decision:
            yield decision

    @contextmanager
    def _holding(self, take: Callable[[Limiter], Awaitable[Decision]]) -> Iterator[Decision]:
        decision = self.run(take)
        _HOLDERS.add(self)
        try:
            yield decision
        finally:
            self.release(decision)

    def check_limit(
        self, limit: str | Limit, *key: str, cost: int = 1, timeout: float | None = None
    ) -> Decision:
        """See `Limiter.check_limit`."""
        return self._ask(
            lambda limiter: limiter.check_limit(limit, *key, cost=cost, timeout=timeout)
        )

    def peek_limit(self, limit: str | Limit, *key: str) -> Decision:
        """See `Limiter.peek_limit`."""
        return self._ask(lambda limiter: limiter.peek_limit(limit, *key))

    def acquire_limit(
        self, limit: str | Limit, *key: str, cost: int = 1, max_wait: float = 10.0
    ) -> Decision:
        """See `Limiter.acquire_limit`."""
        return self.run(
            lambda limiter: limiter.acquire_limit(limit, *key, cost=cost, max_wait=max_wait)
        )

    def charge_limit(
        self, limit: str | Limit, *key: str, cost: int = 1, timeout: float | None = None
    ) -> Decision:
        """See `Limiter.charge_limit`."""
        return self._ask(
            lambda limiter: limiter.charge_limit(limit, *key, cost=cost, timeout=timeout)
        )

    def refund_limit(self, limit: str | Limit, *key: str, cost: int = 1) -> Decision:
        """See `Limiter.refund_limit`."""
        return self._ask(lambda limiter: limiter.refund_limit(limit, *key, cost=cost))

    def reset_limit(self, limit: str | Limit, *key: str) -> Decision:
        """See `Limiter.reset_limit`."""
        return self._ask(lambda limiter: limiter.reset_limit(limit, *key))

    def run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        """Run `call` with the limiter, in the background, and wait for its result.

        For several questions with one crossing. A wait that is interrupted cancels the call.
        """
        # Made before the call begins: an interrupt may come while it is being started.
        future: Future[_Result] = Future()
        try:
            self._open().start(call, future)
            return future.result()
        except BaseException:
            future.cancel()  # Without effect when this is what the call itself has raised.
            raise

    def start(self, call: Callable[[Limiter], Awaitable[_Result]]) -> "Future[_Result]":
        """Run `call` as `run` does, and return what will be its result: for other event loops.

        Cancelling the future cancels the call.
        """
        future: Future[_Result] = Future()
        self._open().start(call, future)
        return future

    def _ask(self, call: Callable[[Limiter], Coroutine[object, None, _Result]]) -> _Result:
        """Run `call`, in this thread if it waits for nothing."""
        if self._waits:
            return self.run(call)
        try:
            call(self._open().limiter).send(None)
        except StopIteration as end:
            result: _Result = end.value
            return result
        raise AssertionError("a limiter in this process has waited for something")

    def _open(self) -> "Background":
        background = self._background
        if background is None or not background.is_alive:
            with self._lock:
                if self._is_closed:
                    raise closed()
                if self._background is None or not self._background.is_alive:
                    self._background = Background(self._make)
                    for domain, paths in self._expected:
                        self._background.limiter.expect(domain, *paths)
                background = self._background
        return background

    def _forget(self) -> None:
        """A forked child has neither the thread nor, perhaps, whoever held the lock."""
        self._lock = threading.Lock()
        self._background = None


async def _keep(decision: Decision, limiter: Limiter) -> None:
    limiter.keep(decision)


_HOLDERS: "weakref.WeakSet[BlockingLimiter]" = weakref.WeakSet()
"""Limiters that have held slots, which must not outlive the process."""


def _release_at_exit() -> None:
    """Release what threads hold that the interpreter does not wait for."""
    for limiter in list(_HOLDERS):
        if limiter.is_open:
            with suppress(Exception):  # The process ends: there is nobody left to tell.
                limiter.start(Limiter.release_held).result(timeout=2 * UNDO_WITHIN)


atexit.register(_release_at_exit)


def _start_anew(limiter: "weakref.ref[BlockingLimiter]") -> None:
    inherited = limiter()
    if inherited is not None:
        inherited._forget()


def connect(
    url: str | None = None,
    *,
    raise_on_outage: bool = False,
    rules: RuleSet | None = None,
    wait: float = 5.0,
    denials: int = 65_536,
    leases: bool = True,
    strict: bool = False,
) -> BlockingLimiter:
    """The blocking form of `ringfence.connect`; connects when entered or first used.

    What `ringfence.connect` raises comes then too.
    """
    return BlockingLimiter(
        lambda: connect_async(
            url,
            raise_on_outage=raise_on_outage,
            rules=rules,
            wait=wait,
            denials=denials,
            leases=leases,
            strict=strict,
        )
    )


def local(
    rules: RuleSet | Mapping[str, object] | str | Path,
    *,
    max_keys: int = 1_000_000,
    clock: Clock | None = None,
    strict: bool = False,
) -> BlockingLimiter:
    """The blocking form of `ringfence.local`."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Limiter]:
        limiter = local_limiter(rules, max_keys=max_keys, clock=clock, in_loop=False, strict=strict)
        try:
            yield limiter
        finally:
            limiter.close()

    return BlockingLimiter(make, waits=False)
