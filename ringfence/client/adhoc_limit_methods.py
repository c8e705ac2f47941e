"""Methods of the limiter for ad-hoc limits, which are in no rule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from ringfence.client.decider import Decider
from ringfence.client.decision import Decision
from ringfence.client.requests.descriptors import (
    checked_cost,
    checked_costs,
    checked_seconds,
    require_requests,
)
from ringfence.client.requests.dispatcher import Dispatcher
from ringfence.client.requests.targets import AdhocLimits, Target
from ringfence.client.reservation import Reservation, reserve
from ringfence.client.slots.slot_holder import SlotHolder
from ringfence.errors import ConfigError
from ringfence.limiter import Limit
from ringfence.wire import Op

__all__ = ["AdhocLimitMethods", "closed_error"]

_MAX_AGE = 1e9
"""Longest age of a charge in seconds, about 30 years; no counter lasts as long."""


class AdhocLimitMethods:
    """Part of `Limiter`: one method with the suffix `_limit` for each of its other methods."""

    _decider: Decider
    _dispatcher: Dispatcher
    _slots: SlotHolder
    _adhoc: AdhocLimits
    _is_closed: bool

    async def check_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Check an ad-hoc limit, which is in no rule: `check_limit("100/minute", "user:42")`.

        Callers that name the same key and the same kind of limit share the counter.
        """
        return await self._ask(Op.CHECK, self._adhoc.target(limit, key), cost, timeout)

    async def check_many_limit(
        self,
        limit: str | Limit,
        keys: Sequence[str | Sequence[str]],
        costs: int | Sequence[int] = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Decision]:
        """Check many keys of an ad-hoc limit at once; return decisions in the order of `keys`."""
        self._require_open(timeout)
        require_requests(keys)
        targets = [
            self._adhoc.target(limit, (key,) if isinstance(key, str) else key) for key in keys
        ]
        return await self._dispatcher.ask(
            Op.CHECK, targets, checked_costs(costs, len(keys)), timeout
        )

    async def peek_limit(
        self,
        limit: str | Limit,
        *key: str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Return the decision that a check of cost 1 would get from an ad-hoc limit, without
        spending."""
        return await self._ask(Op.CHECK, self._adhoc.target(limit, key), 0, timeout)

    async def charge_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Spend `cost` of an ad-hoc limit even if less is left, as `charge` does."""
        return await self._ask(Op.CHARGE, self._adhoc.target(limit, key), cost, timeout)

    async def refund_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        age: float = 0.0,
        decision: Decision | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Refund `cost` to the counter of an ad-hoc limit, as `refund` does."""
        return await self._refund(self._adhoc.target(limit, key), cost, age, decision, timeout)

    async def reset_limit(
        self,
        limit: str | Limit,
        *key: str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Clear the counter of an ad-hoc limit, as `reset` does."""
        return await self._ask(Op.RESET, self._adhoc.target(limit, key), 0, timeout)

    def reserve_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[Reservation]:
        """Reserve units of an ad-hoc limit, as `reserve` does."""
        return self._reserve(self._adhoc.target(limit, key), cost, timeout)

    async def acquire_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        max_wait: float = 10.0,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Check an ad-hoc limit, and wait at most `max_wait` seconds until it allows the cost."""
        self._require_open(timeout)
        target = self._adhoc.target(limit, key)
        check = partial(self.check_limit, limit, *key, cost=cost, timeout=timeout)
        return await self._acquire(target, cost, check, max_wait, timeout)

    @asynccontextmanager
    async def hold_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        max_wait: float = 10.0,
        timeout: float | None = None,  # noqa: ASYNC109
        raise_on_denied: bool = True,
    ) -> AsyncIterator[Decision]:
        """Hold a slot of an ad-hoc limit, as in `hold_limit("4 concurrent", "user:42")`.

        When no node decides and `on_failure` allows the request, the block runs without a slot.
        """
        self._slots.require_slots(self._adhoc.target(limit, key))
        taking = self.acquire_limit(limit, *key, cost=cost, max_wait=max_wait, timeout=timeout)
        async with self._slots.hold(taking, raise_on_denied=raise_on_denied) as decision:
            yield decision

    async def _acquire(
        self,
        target: Target,
        cost: int,
        check: Callable[[], Awaitable[Decision]],
        max_wait: float,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Decision:
        units = checked_cost(cost)
        decision = await self._slots.acquire(target, units, check, max_wait, timeout)
        if decision is None:
            raise closed_error()
        return decision

    def _reserve(
        self,
        target: Target,
        cost: int,
        timeout: float | None,
    ) -> AbstractAsyncContextManager[Reservation]:
        self._require_open(timeout)
        return reserve(self._decider, self._dispatcher, target, checked_cost(cost), timeout)

    async def _refund(
        self,
        target: Target,
        cost: int,
        age: float,
        decision: Decision | None,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Decision:
        self._require_open(timeout)
        age = min(checked_seconds("age", age), _MAX_AGE)
        if decision is not None:
            if not isinstance(decision, Decision):
                raise ConfigError(f"decision must be what a check returned, got {decision!r}")
            return await self._dispatcher.refund(target, decision, checked_cost(cost), age, timeout)
        costs, age_ns = [checked_cost(cost)], round(age * 1e9)
        return (await self._dispatcher.ask(Op.REFUND, [target], costs, timeout, age_ns=age_ns))[0]

    async def _ask(
        self,
        op: Op,
        target: Target,
        cost: int,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Decision:
        self._require_open(timeout)
        return (await self._dispatcher.ask(op, [target], [checked_cost(cost)], timeout))[0]

    def _require_open(self, timeout: float | None) -> None:
        """Raise `ConfigError` after `aclose`, or for a time-out that is not a valid duration."""
        if self._is_closed:
            raise closed_error()
        if timeout is not None:
            checked_seconds("timeout", timeout)


def closed_error() -> ConfigError:
    """Create the error for calls on a closed limiter."""
    return ConfigError(
        "limiter must be open, got a call after it was closed; call it inside of the `with` block, "
        "or enter it again"
    )
