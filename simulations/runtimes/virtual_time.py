"""Virtual time for deterministic runs of trio.

When no task can run, the clock jumps to the next deadline, so waiting takes no real time. The seed
determines the order of tasks. Each host has its own wall clock. Faults can give it an offset, a
drift or a step.
"""

import gc
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf
from typing import Any

import trio
import trio._core._run as trio_run  # Trio has no public way to control its order of tasks.

from ringfence import runtime
from simulations.runtimes.call_heap import CallHeap, PlannedCall
from simulations.runtimes.scheduler import Scheduler
from simulations.scenarios.scenario import Level
from simulations.scenarios.seeds import stream

__all__ = ["EPOCH_NS", "HostClock", "clock", "open_timed_calls", "run_at_level"]

EPOCH_NS = 1_800_000_000 * 1_000_000_000
"""Start time of all runs, in nanoseconds since the Unix epoch; a full hour."""

_MAX_IDLE = 1000


class _Clock(trio.abc.Clock):
    """Trio clock that jumps to the next deadline or timed call as soon as no task can run.

    It makes the timed calls of the simulated network itself, between the steps of the tasks. A task
    of trio that makes them would be cancelled and started again for each call.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._idle = 0
        self._heap = CallHeap()

    def start_clock(self) -> None:
        """Start the virtual clock at 0."""

    def current_time(self) -> float:
        """Return the virtual seconds since the start of the run."""
        return self._now

    def call_at(self, when: float, call: Callable[[], object]) -> PlannedCall:
        """Schedule a call for an instant, or for now if that instant has passed."""
        return self._heap.plan(when, call)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Schedule a call after the tasks that are ready now."""
        self._heap.plan(self._now, call)

    async def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `main` to its end, then drop the timed calls that are left."""
        try:
            await main()
        finally:
            self._heap.entries.clear()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return 0, because waiting for a deadline takes no real time.

        Make the timed calls before the deadline, until one of them makes a task ready.
        """
        heap, ready = self._heap, trio_run.GLOBAL_RUN_CONTEXT.runner.runq
        while heap.entries and heap.entries[0][0] <= deadline:
            when, call = heap.pop()
            if call is not None:
                self._idle = 0
                self._now = max(self._now, when)
                call()
                if ready:
                    return 0
        if deadline == inf:
            self._idle += 1
            if self._idle > _MAX_IDLE:
                raise RuntimeError("deadlock: every task waits for another one")
            return 0
        self._idle = 0
        self._now = max(self._now, deadline)
        return 0


def clock() -> Callable[[], float]:
    """Return the clock function of this run. At the level `node` it calls no function of trio,
    because it is called very often."""
    own = _own_clock()
    return runtime.clock() if own is None else own.current_time


def open_timed_calls() -> AbstractAsyncContextManager[runtime.TimedCalls]:
    """Return the scheduler of timed calls of this run: the clock at the level `node`, otherwise the
    runtime's own."""
    own = _own_clock()
    return runtime.open_timed_calls() if own is None else nullcontext(own)


def _own_clock() -> _Clock | None:
    """Return the clock of this run at the level `node`, otherwise None."""
    found = trio.lowlevel.current_clock() if runtime.in_trio_run() else None
    return found if isinstance(found, _Clock) else None


def run_at_level(level: Level, main: Callable[[], Coroutine[Any, Any, None]], seed: int) -> None:
    """Run `main` on virtual time: by the deterministic scheduler at the level `core`, otherwise by
    trio.

    Equal seeds give equal orders of tasks.

    Garbage collection is disabled during the run, since finalizers would run at unpredictable
    times.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if level == "core":
            Scheduler().run(main)
        else:
            trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
            trio_run._r.seed(stream(seed, "scheduler").getrandbits(64))
            clock = _Clock()
            trio.run(clock.run, main, clock=clock)
    finally:
        if was_enabled:
            gc.enable()


class HostClock:
    """Wall clock of one host: virtual time plus an offset and a drift that faults may change."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0
        self._offset_ns = 0
        self._drift_ppm = 0.0
        self._last_ns = self._ticks = 0

    def now(self) -> int:
        """Return nanoseconds since the Unix epoch on this host's clock.

        Each further reading at one virtual instant is a nanosecond later, as a host needs time
        between two readings.
        """
        now = self._now()
        ns = now * 1e9
        if self._drift_ppm:
            ns += (now - self._since) * self._drift_ppm * 1000
        rounded = round(ns)
        self._ticks = self._ticks + 1 if rounded == self._last_ns else 0
        self._last_ns = rounded
        return EPOCH_NS + rounded + self._offset_ns + self._ticks

    def step(self, seconds: float) -> None:
        """Change the clock by a number of seconds, forwards or backwards."""
        self._offset_ns += round(seconds * 1e9)

    def drift(self, ppm: float) -> None:
        """Set the drift of the clock from now on, in parts per million."""
        drifted = (self._now() - self._since) * self._drift_ppm * 1000
        self._offset_ns += round(drifted)
        self._since, self._drift_ppm = self._now(), ppm
