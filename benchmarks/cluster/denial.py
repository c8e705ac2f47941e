"""Rate of denials that a client answers from its denial cache, for each kind of call.

A real node denied the keys over real QUIC. From then on no call leaves the process; the sources of
the decisions prove that. Times are processor time of this thread, so other load on the machine has
little effect. Ratios are computed per round.
"""

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from time import thread_time

import trio

from benchmarks.cluster.cluster import connected
from benchmarks.reporting.figure import Figure, figure, ratio
from node.demo.cluster import running_cluster
from ringfence.client.limiter import Limiter
from ringfence.wire import Source

__all__ = ["run"]

RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1, unit: day, algorithm: token_bucket}
"""
_KEYS = [{"user": f"user-{number}"} for number in range(1024)]
_BATCH = 256
_TURNS = 40
_ASKED = 1000
"""Checks per sample that reach the node, for comparison."""


def run(rounds: int) -> Iterator[Figure]:
    """Yield denials per second: in batches, by the call that never waits, and by `await
    limiter.check`."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes:
            found = trio.run(connected, nodes.url, partial(_measure, rounds))
    yield figure("denial.per_s", "1/s", found["many"])
    yield figure("denial.check_now_per_s", "1/s", found["now"])
    yield figure("denial.check_per_s", "1/s", found["check"])
    yield figure("denial.asked_per_s", "1/s", found["asked"])
    yield ratio("denial.check_vs_asked", found["check"], found["asked"])


async def _measure(rounds: int, limiter: Limiter) -> dict[str, list[float]]:
    for _ in range(2):
        await limiter.check_many("bench", _KEYS)
    await trio.sleep(0.1)
    samples: dict[str, Callable[[Limiter], Awaitable[float]]] = {
        "many": _many,
        "now": _now,
        "check": _check,
        "asked": _asked,
    }
    found: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(rounds):
        for name, sample in samples.items():
            found[name].append(await sample(limiter))
    return found


async def _many(limiter: Limiter) -> float:
    frames = [_KEYS[at : at + _BATCH] for at in range(0, len(_KEYS), _BATCH)]
    decisions = []
    started_at = thread_time()
    for _ in range(_TURNS):
        for frame in frames:
            decisions = await limiter.check_many("bench", frame)
    took = thread_time() - started_at
    assert {decision.source for decision in decisions} == {Source.CACHE}
    return _TURNS * len(_KEYS) / took


async def _now(limiter: Limiter) -> float:
    check_now = limiter.check_now
    started_at = thread_time()
    for _ in range(_TURNS):
        for key in _KEYS:
            decision = check_now("bench", key)
    took = thread_time() - started_at
    assert decision is not None
    assert not decision.allowed
    return _TURNS * len(_KEYS) / took


async def _check(limiter: Limiter) -> float:
    check = limiter.check
    started_at = thread_time()
    for _ in range(_TURNS):
        for key in _KEYS:
            decision = await check("bench", key)
    took = thread_time() - started_at
    assert decision.source is Source.CACHE
    return _TURNS * len(_KEYS) / took


async def _asked(limiter: Limiter) -> float:
    """Measure peeks (checks that use no units): they always ask the node and so show the cost
    without the cache."""
    started_at = thread_time()
    for number in range(_ASKED):
        decision = await limiter.peek("bench", _KEYS[number % len(_KEYS)])
    took = thread_time() - started_at
    assert decision.source is Source.OWNER
    return _ASKED / took
