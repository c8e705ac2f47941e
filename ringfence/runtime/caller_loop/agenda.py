"""Socket and timers of a loop: what it must process, and when."""

from math import inf
from typing import Protocol

from ringfence.runtime.timers import Timers

__all__ = ["Agenda", "Source"]


class Source(Protocol):
    """Socket with timers, which a loop watches."""

    def fileno(self) -> int:
        """Return the file number of the socket."""

    def next_deadline(self) -> float | None:
        """Return when `tick` must be called; None when no timer is set."""

    def receive(self) -> None:
        """Process what the socket has received; never waits."""

    def tick(self) -> None:
        """Process what the socket has received, and run the timers that are due."""

    def abandon(self) -> None:
        """Close the socket of this process without sending anything."""


class Agenda:
    """Timers of tasks, and at most one socket with timers."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.source: Source | None = None

    def next_deadline(self) -> float:
        """Return when the first timer is due; infinity when there is none."""
        at = self.timers.next_deadline()
        due = None if self.source is None else self.source.next_deadline()
        if at is None:
            return inf if due is None else due
        return at if due is None else min(at, due)

    def receive(self) -> None:
        """Process what the socket has received."""
        if self.source is not None:
            self.source.receive()

    def run_due(self, now: float) -> None:
        """Run the timers that are due."""
        for planned in self.timers.take_due(now):
            planned.run()
        if self.source is not None:
            due = self.source.next_deadline()
            if due is not None and due <= now:
                self.source.tick()
