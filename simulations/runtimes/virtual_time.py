"""Virtual time, and runs of trio in which nothing is left to chance.

Trio's clock is told when nothing can run any more, and then is at the next deadline: an hour of
waiting costs nothing. The order of tasks comes from the seed. Hosts tell the time by clocks of
their own, which may be off, run too fast or be set.
"""

import gc
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import trio
import trio._core._run as trio_run  # Its order of tasks can be had in no public way.

from simulations.runtimes.scheduler import Scheduler
from simulations.scenarios.scenario import Level
from simulations.scenarios.seeds import stream

__all__ = ["EPOCH_NS", "HostClock", "run_at_level"]

EPOCH_NS = 1_800_000_000 * 1_000_000_000
"""The hour that all runs begin at, in ns since 1970: the beginning of a minute and of an hour."""

_MOST_IDLE = 1000


class _Clock(trio.abc.Clock):
    """Jumps to the next deadline as soon as no task can run."""

    def __init__(self) -> None:
        self._now = 0.0
        self._idle = 0

    def start_clock(self) -> None:
        """Time begins at 0."""

    def current_time(self) -> float:
        """Seconds since the run began."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Be there at once."""
        if deadline == inf:
            self._idle += 1
            if self._idle > _MOST_IDLE:
                raise RuntimeError("deadlock: every task waits for another one")
            return 0
        self._idle = 0
        self._now = max(self._now, deadline)
        return 0


def run_at_level(level: Level, main: Callable[[], Coroutine[Any, Any, None]], seed: int) -> None:
    """Run `main` on virtual time; equal seeds give equal orders of tasks.

    Cyclic garbage stays meanwhile, so that no finaliser runs at an instant of its own.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if level == "core":
            Scheduler().run(main)
        else:
            trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
            trio_run._r.seed(stream(seed, "scheduler").getrandbits(64))
            trio.run(main, clock=_Clock())
    finally:
        if was_enabled:
            gc.enable()


class HostClock:
    """The wall clock of one host: virtual time, off by something that faults may change."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0
        self._offset_ns = 0
        self._drift_ppm = 0.0

    def now(self) -> int:
        """Nanoseconds since 1970, as this host has it."""
        now = self._now()
        drifted = (now - self._since) * self._drift_ppm * 1000
        return EPOCH_NS + round(now * 1e9 + drifted) + self._offset_ns

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._offset_ns += round(seconds * 1e9)

    def drift(self, ppm: float) -> None:
        """Let it run fast by so many millionths from now on, or slow."""
        drifted = (self._now() - self._since) * self._drift_ppm * 1000
        self._offset_ns += round(drifted)
        self._since, self._drift_ppm = self._now(), ppm
