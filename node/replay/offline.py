"""A replay without any node: an engine in this process, by this clock or by the log's own."""

from collections.abc import Callable, Iterable

from node.replay.logs import Entry
from node.replay.tally import DOMAIN, Shape, Tally
from ringfence.client.clock import Clock, SystemClock
from ringfence.client.limiter import Limiter
from ringfence.client.local import LocalDecider
from ringfence.rules import RuleSet

__all__ = ["LogClock", "replay_offline"]


class LogClock:
    """The time is that of the line being replayed."""

    def __init__(self) -> None:
        self._now = 0

    def set(self, now: int) -> None:
        """Move on to `now` (nanoseconds since the Unix epoch); never back."""
        self._now = max(self._now, now)

    def now(self) -> int:
        """The current line's time-stamp."""
        return self._now


async def replay_offline(
    entries: Iterable[Entry],
    shape: Shape,
    rules: RuleSet,
    *,
    by_log_clock: bool,
    max_keys: int,
    on_progress: Callable[[int], None],
) -> Tally:
    """Decide every line in order. `entries` are in order of time when the log's clock counts."""
    log_clock = LogClock()
    clock: Clock = log_clock if by_log_clock else SystemClock()
    limiter = Limiter(LocalDecider(rules, clock, max_keys))
    tally = Tally()
    for entry in entries:
        log_clock.set(entry.time_ns)
        tally.add(entry, await limiter.check(DOMAIN, shape.of(entry)))
        if tally.checks % 1000 == 0:
            on_progress(tally.checks)
    on_progress(tally.checks)
    return tally
