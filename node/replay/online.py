"""Replay of a log against a running cluster, through the embedded client."""

import math
from collections.abc import Callable, Iterable

import trio

from node.replay.log_formats import Entry
from node.replay.tally import Shape, Tally
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import NS_PER_SECOND
from ringfence.wire import BY_POLICY, Source

__all__ = ["replay_online"]

_AT_ONCE = 256
"""Maximum number of checks in flight."""


async def replay_online(
    entries: Iterable[Entry],
    shape: Shape,
    limiter: Limiter,
    *,
    speed: float,
    on_decision: Callable[[Entry, Decision, float, float], None],
    on_progress: Callable[[int], None],
) -> Tally:
    """Check every line of a log at its time; `speed` is a factor, and inf means without pauses.

    `on_decision` receives each decision and the times when its check was sent and answered (trio's
    clock). At most 256 checks are in flight; when they all are, the replay falls behind.
    """
    tally = Tally.of(limiter.rules, shape.domain)
    slots = trio.Semaphore(_AT_ONCE)
    started_at = trio.current_time()
    first: int | None = None

    async def check(entry: Entry) -> None:
        sent = trio.current_time()
        try:
            decision = await limiter.check(shape.domain, shape.of(entry))
        finally:
            slots.release()
        tally.add(entry, decision, is_undecided=_is_undecided(decision))
        on_decision(entry, decision, sent, trio.current_time())
        if tally.checks % 100 == 0:
            on_progress(tally.checks)

    async with trio.open_nursery() as nursery:
        for entry in entries:
            if first is None:
                first = entry.time_ns
            if not math.isinf(speed):
                await trio.sleep_until(started_at + (entry.time_ns - first) / NS_PER_SECOND / speed)
            await slots.acquire()
            nursery.start_soon(check, entry)
    on_progress(tally.checks)
    return tally


def _is_undecided(decision: Decision) -> bool:
    return any([status.source in (Source.LOCAL, *BY_POLICY) for status in decision.statuses])
