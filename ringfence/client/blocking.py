"""The same limiter for code that blocks: threads, Flask, Celery.

One background thread runs the event loop and its connections; every call crosses over to it and
waits. After a fork the child makes a connection of its own with its first call.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
)
from types import TracebackType
from typing import ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ringfence.client.connect import connect as connect_async
from ringfence.client.connect import local as local_async
from ringfence.client.decision import Decision
from ringfence.client.limiter import Descriptors, Limiter
from ringfence.limiter import Limit
from ringfence.rules import RuleSet

__all__ = ["BlockingLimiter", "connect", "local"]

P = ParamSpec("P")
T = TypeVar("T")


class BlockingLimiter:
    """A `Limiter` whose methods block. Safe to share among threads, and across a fork.

    The connection is made by the first call, or by entering it as a context.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Limiter]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._pid = 0
        self._stack: ExitStack | None = None
        self._portal: BlockingPortal | None = None
        self._limiter: Limiter | None = None

    def __enter__(self) -> "BlockingLimiter":
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
        """Close the connections and end the background thread."""
        with self._lock:
            stack, self._stack, self._portal, self._limiter = self._stack, None, None, None
            owner, self._pid = self._pid, 0
        if stack is not None and owner == os.getpid():
            stack.close()

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
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float
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

    def _open(self) -> tuple[BlockingPortal, Limiter]:
        portal, limiter = self._portal, self._limiter
        if portal is not None and limiter is not None and self._pid == os.getpid():
            return portal, limiter
        with self._lock:
            if self._portal is None or self._limiter is None or self._pid != os.getpid():
                # A forked child has no background thread: what it inherited is left alone.
                stack = ExitStack()
                with stack:
                    self._portal = stack.enter_context(start_blocking_portal("trio"))
                    self._limiter = stack.enter_context(_wrapped(self._portal, self._make))
                    self._stack = stack.pop_all()
                self._pid = os.getpid()
            return self._portal, self._limiter


def _wrapped(
    portal: BlockingPortal, make: Callable[[], AbstractAsyncContextManager[Limiter]]
) -> AbstractContextManager[Limiter]:
    return portal.wrap_async_context_manager(make())


def connect(
    url: str | None = None, *, raise_on_outage: bool = False, rules: RuleSet | None = None
) -> BlockingLimiter:
    """The blocking form of `ringfence.connect`; connects when entered or first used."""
    return BlockingLimiter(lambda: connect_async(url, raise_on_outage=raise_on_outage, rules=rules))


def local(rules: RuleSet | str, *, max_keys: int = 1_000_000) -> BlockingLimiter:
    """The blocking form of `ringfence.local`."""
    return BlockingLimiter(lambda: local_async(rules, max_keys=max_keys))
