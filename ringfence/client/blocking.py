"""The same limiter for code that blocks: threads, Flask, Celery.

One background thread runs the event loop and its connections; every call crosses over to it and
waits. After a fork the child starts a thread and a connection of its own with its first call.
"""

import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from ringfence.client.clock import Clock
from ringfence.client.connect import connect as connect_async
from ringfence.client.connect import local as local_async
from ringfence.client.decision import Decision
from ringfence.client.descriptors import Descriptors
from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError
from ringfence.limiter import Limit
from ringfence.rules import RuleSet

__all__ = ["BlockingLimiter", "connect", "local"]

logger = logging.getLogger("ringfence.client")

T = TypeVar("T")


class BlockingLimiter:
    """A `Limiter` whose methods block. Safe to share among threads, and across a fork.

    The connection is made by entering it as a context or, when it was never closed, by its first
    call: a wrong address is told there. After `close`, or the end of the context, calls raise
    `ConfigError`; entering it once more connects again.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Limiter]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._background: _Background | None = None
        self._is_closed = False
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

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._open()[1].rules

    def check(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,
    ) -> Decision:
        """See `Limiter.check`."""
        portal, limiter = self._open()
        return portal.call(lambda: limiter.check(domain, descriptors, cost, timeout=timeout))

    def check_many(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        costs: int | Sequence[int] = 1,
        *,
        timeout: float | None = None,
    ) -> list[Decision]:
        """See `Limiter.check_many`."""
        portal, limiter = self._open()
        return portal.call(lambda: limiter.check_many(domain, requests, costs, timeout=timeout))

    def peek(self, domain: str, descriptors: Descriptors) -> Decision:
        """See `Limiter.peek`."""
        portal, limiter = self._open()
        return portal.call(limiter.peek, domain, descriptors)

    def refund(self, domain: str, descriptors: Descriptors, cost: int = 1) -> Decision:
        """See `Limiter.refund`."""
        portal, limiter = self._open()
        return portal.call(limiter.refund, domain, descriptors, cost)

    def reset(self, domain: str, descriptors: Descriptors) -> Decision:
        """See `Limiter.reset`."""
        portal, limiter = self._open()
        return portal.call(limiter.reset, domain, descriptors)

    def acquire(
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float = 10.0
    ) -> Decision:
        """See `Limiter.acquire`."""
        portal, limiter = self._open()
        return portal.call(lambda: limiter.acquire(domain, descriptors, cost, max_wait=max_wait))

    def release(self, decision: Decision) -> None:
        """See `Limiter.release`."""
        portal, limiter = self._open()
        portal.call(limiter.release, decision)

    @contextmanager
    def hold(
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float = 0.0
    ) -> Iterator[Decision]:
        """See `Limiter.hold`."""
        portal, limiter = self._open()
        portal.call(limiter.require_place, domain, descriptors)
        decision = self.acquire(domain, descriptors, cost, max_wait=max_wait)
        try:
            yield decision
        finally:
            self.release(decision)

    def check_limit(
        self, limit: str | Limit, *key: str, cost: int = 1, timeout: float | None = None
    ) -> Decision:
        """See `Limiter.check_limit`."""
        portal, limiter = self._open()
        return portal.call(lambda: limiter.check_limit(limit, *key, cost=cost, timeout=timeout))

    def refund_limit(self, limit: str | Limit, *key: str, cost: int = 1) -> Decision:
        """See `Limiter.refund_limit`."""
        portal, limiter = self._open()
        return portal.call(lambda: limiter.refund_limit(limit, *key, cost=cost))

    def reset_limit(self, limit: str | Limit, *key: str) -> Decision:
        """See `Limiter.reset_limit`."""
        portal, limiter = self._open()
        return portal.call(limiter.reset_limit, limit, *key)

    @property
    def is_open(self) -> bool:
        """Whether a call would find the connection made, in this process."""
        background = self._background
        return background is not None and background.is_alive

    def start(self, call: Callable[[Limiter], Awaitable[T]]) -> "Future[T]":
        """Begin a call of the async limiter and let its result come: for foreign event loops.

        It blocks only while connecting, where `is_open` is false. To cancel the future cancels the
        call.
        """
        portal, limiter = self._open()
        return portal.start_task_soon(call, limiter)

    def _open(self) -> "tuple[BlockingPortal, Limiter]":
        background = self._background
        if background is None or not background.is_alive:
            with self._lock:
                if self._is_closed:
                    raise ConfigError(
                        "the client is closed; call before close(), inside of the `with` block, or "
                        "enter it again"
                    )
                if self._background is None or not self._background.is_alive:
                    self._background = _Background(self._make)
                background = self._background
        return background.portal, background.limiter

    def _forget(self) -> None:
        """A forked child has neither the thread nor, perhaps, whoever held the lock."""
        self._lock = threading.Lock()
        self._background = None


class _Background:
    """A thread with an event loop and a limiter in it.

    Not anyio's `start_blocking_portal`: its generator, inherited by a forked child, waits there for
    a thread that does not exist as soon as the garbage collector finds it.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Limiter]]) -> None:
        self._make = make
        self._ready: Future[tuple[BlockingPortal, Limiter]] = Future()
        self._thread = threading.Thread(target=self._run, name="ringfence", daemon=True)
        self._thread.start()
        self.portal, self.limiter = self._ready.result()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let calls in progress end, close the connections and end the thread."""
        with suppress(RuntimeError):  # It has stopped already.
            self.portal.call(self.portal.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend="trio")
        except BaseException as error:  # Told to whoever waits, else logged.
            if self._ready.done():
                logger.error("the limiter's thread has ended", exc_info=error)
            else:
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as limiter, BlockingPortal() as portal:
            self._ready.set_result((portal, limiter))
            await portal.sleep_until_stopped()


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
) -> BlockingLimiter:
    """The blocking form of `ringfence.connect`; connects when entered or first used.

    What `ringfence.connect` raises comes then too.
    """
    return BlockingLimiter(
        lambda: connect_async(url, raise_on_outage=raise_on_outage, rules=rules, wait=wait)
    )


def local(
    rules: RuleSet | Mapping[str, object] | str | Path,
    *,
    max_keys: int = 1_000_000,
    clock: Clock | None = None,
) -> BlockingLimiter:
    """The blocking form of `ringfence.local`."""
    return BlockingLimiter(lambda: local_async(rules, max_keys=max_keys, clock=clock))
