"""Performs a policy's effects with a limiter, awaiting or blocking, and survives its failures.

A limiter already answers by its rules' `on_failure` when no node can be had. What is caught here is
the rest: a refused token, a wrong certificate, a bug. None of it may take the application down.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, assert_never

import anyio

from ringfence.blocking import BlockingLimiter
from ringfence.client import Limiter
from ringfence.client.decision import Decision
from ringfence.errors import AccessDenied, ConfigError
from ringfence.integrations._core.effects import (
    Charge,
    Check,
    Effect,
    LimiterFailed,
    Pause,
    Refund,
    Release,
    RuleAsk,
    Steps,
)
from ringfence.integrations._core.request_state import Refusal
from ringfence.wire import BY_POLICY, Source

__all__ = [
    "Perform",
    "OutageTracker",
    "drive",
    "drive_blocking",
    "performer",
    "performer_from_loop",
]

logger = logging.getLogger("ringfence.integrations")

Perform: TypeAlias = Callable[[Effect], Awaitable[Decision | None]]
"""Does what an effect says."""

_REST = 1.0
"""Seconds not to ask a limiter that refused as such: each of its refusals costs a connection."""
_TELL_AGAIN = 60.0
"""Seconds between two lines in the log, however many requests are let through."""
_CALM = 1.0
"""Seconds without a failure after which an answer of a node ends an outage."""
_BY_NODE = (Source.OWNER, Source.STANDBY)


class OutageTracker:
    """Remembers that a limiter fails. Shared by threads: what they race for does not matter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rests_until: float | None = None
        self._silent_until = float("-inf")
        self._began = 0.0
        self._last = float("-inf")
        self._requests = 0
        """Checks without an answer since the outage began; 0 while there is none."""
        self._is_logged = False

    @property
    def is_resting(self) -> bool:
        """Whether the limiter is not to be asked now."""
        return self._rests_until is not None and self._rests_until > self._clock()

    def note_failure(self, error: Exception) -> LimiterFailed:
        """Remember and log a failure; return what the policy is told."""
        if isinstance(error, AccessDenied | ConfigError):
            self._rests_until = self._clock() + _REST
        if self._may_tell():
            logger.error("Ringfence: the limiter failed; requests are let through", exc_info=error)
        return LimiterFailed(str(error))

    @property
    def is_out(self) -> bool:
        """Whether a check had no answer lately, and nothing has ended that."""
        return self._requests > 0

    def note(self, decision: Decision) -> None:
        """Log the begin and the end of the time in which no node decides.

        Meanwhile the limits' `on_failure` does.
        """
        if decision.source in BY_POLICY:
            if self._may_tell():
                logger.warning(
                    "Ringfence: no node of the limiter answers; requests pass uncounted, or are "
                    "refused where on_failure says so"
                )
        elif self._requests and decision.source in _BY_NODE:
            self._end()

    def _may_tell(self) -> bool:
        now = self._last = self._clock()
        if not self._requests:
            self._began = now
        self._requests += 1
        if now < self._silent_until:
            return False
        self._silent_until = now + _TELL_AGAIN
        self._is_logged = True
        return True

    def _end(self) -> None:
        now = self._clock()
        if now < self._last + _CALM:
            return  # Some keys have an answer, others have none.
        if self._is_logged:
            logger.warning(
                "Ringfence: the limiter answers again after %.0f s, in which it did not decide "
                "%d checks",
                now - self._began,
                self._requests,
            )
        self._requests, self._is_logged = 0, False


async def drive(steps: Steps, perform: Perform, troubles: OutageTracker) -> Refusal | None:
    """Run the steps to their end, awaiting each effect. On trio and on asyncio."""
    try:
        effect = next(steps)
        while True:
            try:
                if troubles.is_resting:
                    raise LimiterFailed
                answer = await perform(effect)
            except LimiterFailed as failed:
                effect = steps.throw(failed)
            except Exception as error:  # noqa: BLE001 - its failure must not become the application's
                effect = steps.throw(troubles.note_failure(error))
            else:
                if answer is not None and (troubles.is_out or answer.source in BY_POLICY):
                    troubles.note(answer)
                effect = steps.send(answer)
    except StopIteration as end:
        result: Refusal | None = end.value
        return result


def performer(limiter: Limiter) -> Perform:
    """Perform effects in the limiter's own event loop."""

    async def perform(effect: Effect) -> Decision | None:
        if type(effect) is Check:  # Nearly always; a `match` takes as long as all else here.
            ask = effect.ask
            if isinstance(ask, RuleAsk):
                decision = await limiter.check(
                    ask.domain, ask.descriptors, effect.cost, timeout=ask.timeout
                )
            else:
                decision = await limiter.check_limit(ask.limit, *ask.key, cost=effect.cost)
            if decision.leases is not None:  # An answer may take longer than the limit's period.
                limiter.keep(decision)
            return decision
        return await _perform_rarely(limiter, effect)

    return perform


def performer_from_loop(limiter: BlockingLimiter) -> Perform:
    """Perform effects from an asyncio loop that is not the limiter's own.

    Only the effects run in the limiter's thread: what reads the request stays where it was.
    """

    async def perform(effect: Effect) -> Decision | None:
        return await asyncio.wrap_future(limiter.start(lambda inner: performer(inner)(effect)))

    return perform


def drive_blocking(
    steps: Steps, limiter: BlockingLimiter, troubles: OutageTracker
) -> Refusal | None:
    """Run the steps to their end, blocking at each effect."""
    try:
        effect = next(steps)
        while True:
            try:
                if troubles.is_resting:
                    raise LimiterFailed
                answer = _perform_blocking(limiter, effect)
            except LimiterFailed as failed:
                effect = steps.throw(failed)
            except Exception as error:  # noqa: BLE001 - as above
                effect = steps.throw(troubles.note_failure(error))
            else:
                if answer is not None and (troubles.is_out or answer.source in BY_POLICY):
                    troubles.note(answer)
                effect = steps.send(answer)
    except StopIteration as end:
        result: Refusal | None = end.value
        return result


async def _perform_rarely(limiter: Limiter, effect: Effect) -> Decision | None:
    match effect:
        case Charge(ask, cost):
            if isinstance(ask, RuleAsk):
                return await limiter.charge(ask.domain, ask.descriptors, cost, timeout=ask.timeout)
            return await limiter.charge_limit(ask.limit, *ask.key, cost=cost)
        case Refund(ask, cost):
            if isinstance(ask, RuleAsk):
                return await limiter.refund(ask.domain, ask.descriptors, cost)
            return await limiter.refund_limit(ask.limit, *ask.key, cost=cost)
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
            time.sleep(seconds)
        case _:
            assert_never(effect)
    return None


def _ask_blocking(limiter: BlockingLimiter, effect: Check | Charge | Refund) -> Decision:
    ask, cost = effect.ask, effect.cost
    match effect:
        case Check():
            if isinstance(ask, RuleAsk):
                decision = limiter.check(ask.domain, ask.descriptors, cost, timeout=ask.timeout)
            else:
                decision = limiter.check_limit(ask.limit, *ask.key, cost=cost)
            if decision.leases is not None:  # An answer may take longer than the limit's period.
                limiter.keep(decision)
            return decision
        case Charge():
            if isinstance(ask, RuleAsk):
                return limiter.charge(ask.domain, ask.descriptors, cost, timeout=ask.timeout)
            return limiter.charge_limit(ask.limit, *ask.key, cost=cost)
        case Refund():
            if isinstance(ask, RuleAsk):
                return limiter.refund(ask.domain, ask.descriptors, cost)
            return limiter.refund_limit(ask.limit, *ask.key, cost=cost)
        case _:
            assert_never(effect)
