"""Fake cluster for tests of applications, with a manual clock and without nodes.

All limiters that connect to it share its counters, in all threads and event loops. The pytest
plug-in replaces the real cluster by it; other test runners can use `installed`.
"""

import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from numbers import Real
from pathlib import Path
from unittest import mock

import ringfence.client.connect  # noqa: F401 - to be found in sys.modules
from ringfence import runtime
from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.connect import rules_of
from ringfence.client.limiter import Limiter
from ringfence.client.local_decider import LocalDecider
from ringfence.client.requests.check_ops import LocalChecks, Matches
from ringfence.client.slots.acquire import AcquireLoop
from ringfence.client.slots.slot_waits import SlotWait, SlotWaits
from ringfence.client.url import ENVIRONMENT
from ringfence.integrations._core import clock
from ringfence.limiter import Outcomes
from ringfence.rules import RuleSet
from ringfence.wire import Batch, Op, OutcomeRow, Results, Source

__all__ = ["FakeClock", "FakeCluster"]

_KEYS = 100_000
_SETTLED = 0.05
"""Real seconds for other tasks to release a slot before the clock advances."""


class FakeClock:
    """Clock that moves only when `advance` is called."""

    def __init__(self) -> None:
        self._now = time.time_ns()

    def now(self) -> int:
        """Return the time of the fake clock in nanoseconds since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the fake clock forward by some seconds.

        Raises `TypeError` if `seconds` is not a number, `ValueError` if it is negative or infinite.
        """
        if not isinstance(seconds, Real):
            raise TypeError(
                f"seconds must be a number, got {seconds!r}; use the total_seconds() of a timedelta"
            )
        if not 0 <= seconds < inf:
            raise ValueError(
                f"seconds must be a number of at least 0, got {seconds}; the clock cannot go back"
            )
        self._now += round(seconds * 1e9)


class _FakeAcquireLoop(AcquireLoop):
    """Retry loop of `acquire` that advances the fake clock instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now() / 1e9

    async def sleep(self, seconds: float) -> None:
        self._clock.advance(seconds)
        await runtime.checkpoint()

    async def wait(self, slot: SlotWait, seconds: float) -> None:
        # Other tasks may release a slot before the clock advances.
        with runtime.move_on_after(_SETTLED):
            await slot.wait()
            return
        self._clock.advance(seconds)


class FakeCluster:
    """Counters in this process in place of a cluster; `rules` are given as for
    `ringfence.local`."""

    __slots__ = ("_counting", "_lock", "clock", "is_off", "limiter", "rules")

    def __init__(self, rules: RuleSet | Mapping[str, object] | str | Path) -> None:
        self.rules = rules_of(rules) if rules else RuleSet()
        self.clock = FakeClock()
        self.is_off = False
        """While true, all checks are allowed and nothing is counted."""
        self.limiter = BlockingLimiter(self._open)
        """A limiter over these counters, for the test itself."""
        self._lock = threading.Lock()
        self._counting = self._fresh()

    def advance(self, seconds: float) -> None:
        """Move the clock of the fake cluster forward by some seconds."""
        self.clock.advance(seconds)

    def reset(self) -> None:
        """Delete all counters of the fake cluster; its clock keeps its time."""
        with self._lock:
            self._counting = self._fresh()

    @contextmanager
    def installed(self) -> Iterator["FakeCluster"]:
        """Replace the real cluster during the block: every address connects to this fake
        cluster."""
        home = sys.modules["ringfence.client.connect"]
        acquire_loop = _FakeAcquireLoop(self.clock)
        limiter_class = partial(Limiter, acquire_loop=acquire_loop)
        environment = {ENVIRONMENT: "ringfence://localhost"}
        with (
            mock.patch.object(home, "open_cluster", self._connect),
            mock.patch.object(home, "tls_of"),
            mock.patch.object(home, "Limiter", limiter_class),
            mock.patch.dict("os.environ", environment),
            mock.patch.multiple(
                clock,
                now=acquire_loop.now,
                sleep=self.clock.advance,
                now_async=acquire_loop.now,
                sleep_async=acquire_loop.sleep,
            ),
        ):
            try:
                yield self
            finally:
                self.limiter.close()

    @property
    def counting(self) -> LocalDecider:
        """Counters that all limiters of the fake cluster share."""
        return self._counting

    def decide(self, batch: Batch) -> Results:
        """Decide every check or other operation of a batch immediately, in any thread."""
        with self._lock:
            if not self.is_off:
                return self._counting.decide_now(batch)
        rows = len(batch)
        nothing = [0] * rows
        amounts = [_amount(batch, row, self._limit_of) for row in range(rows)]
        return Results(
            Outcomes(nothing, amounts, amounts, nothing, nothing, nothing, nothing),
            [Source.OWNER] * rows,
        )

    def _fresh(self) -> LocalDecider:
        return LocalDecider(self.rules, self.clock, _KEYS)

    def _limit_of(self, identity: int) -> int:
        limits = {rule.id: rule.limit for rule in self.rules.rules()}
        limit = limits.get(identity)
        return 0 if limit is None else limit.amount

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Limiter]:
        yield Limiter(_Decider(self, self.rules), acquire_loop=_FakeAcquireLoop(self.clock))

    @asynccontextmanager
    async def _connect(
        self, url: object, *, rules: RuleSet | None = None, **options: object
    ) -> AsyncIterator["_Decider"]:
        yield _Decider(self, self.rules if rules is None else rules.as_carried())


class _Decider(LocalDecider):
    """Object that decides the checks of one limiter of the fake cluster.

    It may have its own rules, but shares the counters with all other limiters.
    """

    def __init__(self, cluster: FakeCluster, rules: RuleSet) -> None:
        super().__init__(rules, cluster.clock, _KEYS)
        self._cluster = cluster

    def decide_now(self, batch: Batch) -> Results:
        """Decide a batch of checks by the counters that all limiters of the fake cluster share."""
        return self._cluster.decide(batch)

    def local_checks(self, matches: Matches) -> LocalChecks:
        """Return what decides single checks by the counters that all limiters share."""

        def decide_lone(key: bytes, cost: int, now: int, source: int) -> OutcomeRow:
            return self.decide_now(Batch(Op.CHECK, [key], [cost])).row(0)

        return LocalChecks(matches, self.rules, threading.Lock(), self._clock, decide_lone)

    @property
    def slot_waits(self) -> SlotWaits:
        """Tasks of any limiter that wait for slots of concurrency limits in the fake cluster."""
        return self._cluster.counting.slot_waits

    def new_ticket(self) -> int:
        """Return the number that identifies the next task that waits for a slot of a concurrency
        limit."""
        return self._cluster.counting.new_ticket()

    def slot_pause(self) -> float:
        """Return the seconds until the next slot of a concurrency limit expires."""
        return self._cluster.counting.slot_pause()

    def keep(self, slots: Batch, period: float) -> None:
        """Start to renew slots of concurrency limits, so that they do not expire."""
        self._cluster.counting.keep(slots, period)

    def stop_renewing(self, slots: Batch) -> Batch:
        """Stop renewing slots of concurrency limits; return the request that releases the slots."""
        return self._cluster.counting.stop_renewing(slots)

    def held(self) -> list[Batch]:
        """Return no slots to release at the end: the fake cluster renews the slots of all
        limiters."""
        return []


def _amount(batch: Batch, row: int, limit_of: Callable[[int], int]) -> int:
    carried = batch.which[row] if batch.which else 0
    if carried:
        return batch.limits[carried - 1].amount
    return limit_of(int.from_bytes(batch.keys[row][:8], "big"))
