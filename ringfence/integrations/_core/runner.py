"""Runner of rate limit policies: makes the limiter calls that they request, async or blocking.

When no node answers, the limiter applies the failure policy of the rules. This module handles all
other failures: a rejected token, an invalid certificate, an internal error. They allow the request.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, assert_never

import anyio

from ringfence.blocking import BlockingLimiter
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.errors import AccessDenied, ConfigError
from ringfence.integrations._core.effects import (
    Charge,
    Check,
    Effect,
    LimiterFailed,
    Pause,
    Refund,
    Refusal,
    Release,
    RuleCheckSpec,
    Steps,
)
from ringfence.wire import BY_POLICY, Source

__all__ = [
    "SETTLE_WITHIN",
    "Perform",
    "OutageTracker",
    "run_steps",
    "run_steps_blocking",
    "performer",
    "performer_from_loop",
]

logger = logging.getLogger("ringfence.integrations")

Perform: TypeAlias = Callable[[Effect], Awaitable[Decision | None]]
"""Function that performs one effect."""

SETTLE_WITHIN = 2.0
"""Time-out of corrections after a response in seconds, also in a task that is being cancelled."""
_RETRY_AFTER_REFUSAL = 1.0
"""Pause after a refused token or address, in seconds: each attempt costs a connection."""
_LOG_INTERVAL = 60.0
"""Minimum seconds between two log lines about an outage."""
_RECOVERY_TIME = 1.0
"""Seconds without a failure after which a decision of a node ends an outage."""
_BY_NODE = (Source.OWNER, Source.STANDBY)
_UNDECIDED = (*BY_POLICY, Source.LOCAL)


class OutageTracker:
    """Start and end of outages of a limiter, for the log. Threads share it; race conditions are
    harmless."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paused_until: float | None = None
        self._silent_until = float("-inf")
        self._began = 0.0
        self._last = float("-inf")
        self._requests = 0
        """Checks without an answer since the outage began; 0 while there is none."""
        self._is_logged = False

    @property
    def is_paused(self) -> bool:
        """Whether checks are skipped for a while after a rejected token or address."""
        return self._paused_until is not None and self._paused_until > self._clock()

    def record_failure(self, error: Exception) -> LimiterFailed:
        """Record and log a failure of the limiter; return the exception to throw into the
        policy."""
        if isinstance(error, AccessDenied | ConfigError):
            self._paused_until = self._clock() + _RETRY_AFTER_REFUSAL
        if self._should_log():
            logger.error("limiter failed; requests are allowed without a check", exc_info=error)
        return LimiterFailed(str(error))

    @property
    def is_out(self) -> bool:
        """Whether an outage of the limiter is in progress."""
        return self._requests > 0

    def record(self, decision: Decision) -> None:
        """Log an outage at its first decision by the failure policy, and its end at a decision
        by a node."""
        if decision.source in _UNDECIDED:
            if self._should_log():
                logger.warning(
                    "Ringfence: no node of the limiter answers; requests pass uncounted, unless "
                    "on_failure says that they are refused, or counted by each process"
                )
        elif self._requests and decision.source in _BY_NODE:
            self._end()

    def _should_log(self) -> bool:
        now = self._last = self._clock()
        if not self._requests:
            self._began = now
        self._requests += 1
        if now < self._silent_until:
            return False
        self._silent_until = now + _LOG_INTERVAL
        self._is_logged = True
        return True

    def _end(self) -> None:
        now = self._clock()
        if now < self._last + _RECOVERY_TIME:
            return  # Nodes answer for some keys and not for others.
        if self._is_logged:
            logger.warning(
                "Ringfence: the limiter answers again after %.0f s, in which it did not decide "
                "%d checks",
                now - self._began,
                self._requests,
            )
        self._requests, self._is_logged = 0, False


async def run_steps(steps: Steps, perform: Perform, outages: OutageTracker) -> Refusal | None:
    """Run the steps of a policy and await each requested limiter call, on trio or asyncio."""
    try:
        effect = next(steps)
        while True:
            try:
                if outages.is_paused:
                    raise LimiterFailed
                answer = await perform(effect)
            except LimiterFailed as failed:
                effect = steps.throw(failed)
            except Exception as error:  # noqa: BLE001 - its failure must not become the application's
                effect = steps.throw(outages.record_failure(error))
            else:
                if answer is not None and (outages.is_out or answer.source in _UNDECIDED):
                    outages.record(answer)
                effect = steps.send(answer)
    except StopIteration as end:
        result: Refusal | None = end.value
        return result


def performer(limiter: Limiter) -> Perform:
    """Return a function that makes requested limiter calls, in the limiter's own event loop."""

    async def perform(effect: Effect) -> Decision | None:
        if (
            type(effect) is Check
        ):  # Nearly always. A `match` would double the time of this function.
            ask = effect.ask
            if isinstance(ask, RuleCheckSpec):
                decision = await limiter.check(
                    ask.domain, ask.descriptors, effect.cost, timeout=ask.timeout
                )
            else:
                decision = await limiter.check_limit(ask.limit, *ask.key, cost=effect.cost)
            if (
                decision.slots is not None
            ):  # A response may take longer than the period of the limit.
                limiter.keep(decision)
            return decision
        return await _perform_other(limiter, effect)

    return perform


def performer_from_loop(limiter: BlockingLimiter) -> Perform:
    """Return a function that makes requested limiter calls from another asyncio loop than the
    limiter's.

    Only these calls run in the thread of the limiter, not the code that reads the request.
    """

    async def perform(effect: Effect) -> Decision | None:
        return await asyncio.wrap_future(limiter.start(lambda inner: performer(inner)(effect)))

    return perform


def run_steps_blocking(
    steps: Steps, limiter: BlockingLimiter, outages: OutageTracker
) -> Refusal | None:
    """Run the steps of a policy, and block the thread during each requested limiter call."""
    try:
        effect = next(steps)
        while True:
            try:
                if outages.is_paused:
                    raise LimiterFailed
                answer = _perform_blocking(limiter, effect)
            except LimiterFailed as failed:
                effect = steps.throw(failed)
            except Exception as error:  # noqa: BLE001 - as above
                effect = steps.throw(outages.record_failure(error))
            else:
                if answer is not None and (outages.is_out or answer.source in _UNDECIDED):
                    outages.record(answer)
                effect = steps.send(answer)
    except StopIteration as end:
        result: Refusal | None = end.value
        return result


async def _perform_other(limiter: Limiter, effect: Effect) -> Decision | None:
    match effect:
        case Charge(ask, cost):
            if isinstance(ask, RuleCheckSpec):
                return await limiter.charge(ask.domain, ask.descriptors, cost, timeout=ask.timeout)
            return await limiter.charge_limit(ask.limit, *ask.key, cost=cost)
        case Refund(ask, cost, age, made):
            if isinstance(ask, RuleCheckSpec):
                return await limiter.refund(
                    ask.domain, ask.descriptors, cost, age=age, decision=made
                )
            return await limiter.refund_limit(
                ask.limit, *ask.key, cost=cost, age=age, decision=made
            )
        case Release(decision):
            await limiter.release(decision)
        case Pause(seconds):
            await anyio.sleep(seconds)
        case Check():
            raise AssertionError("performed before")
        case _:
            assert_never(effect)
    return None


def _perform_blocking(limiter: BlockingLimiter, effect: Effect) -> Decision | None:
    match effect:
        case Check() | Charge() | Refund():
            return _ask_blocking(limiter, effect)
        case Release(decision):
            limiter.release(decision)
        case Pause(seconds):
            time.sleep(seconds)  # The delay that the limit requires.
        case _:
            assert_never(effect)
    return None


def _ask_blocking(limiter: BlockingLimiter, effect: Check | Charge | Refund) -> Decision:
    ask, cost = effect.ask, effect.cost
    match effect:
        case Check():
            if isinstance(ask, RuleCheckSpec):
                decision = limiter.check(ask.domain, ask.descriptors, cost, timeout=ask.timeout)
            else:
                decision = limiter.check_limit(ask.limit, *ask.key, cost=cost)
            if (
                decision.slots is not None
            ):  # A response may take longer than the period of the limit.
                limiter.keep(decision)
            return decision
        case Charge():
            if isinstance(ask, RuleCheckSpec):
                return limiter.charge(ask.domain, ask.descriptors, cost, timeout=ask.timeout)
            return limiter.charge_limit(ask.limit, *ask.key, cost=cost)
        case Refund(_, _, age, made):
            if isinstance(ask, RuleCheckSpec):
                return limiter.refund(ask.domain, ask.descriptors, cost, age=age, decision=made)
            return limiter.refund_limit(ask.limit, *ask.key, cost=cost, age=age, decision=made)
        case _:
            assert_never(effect)
