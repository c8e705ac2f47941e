"""Limiter: the object by which an application checks requests.

Rules are matched in the caller's process, so a request that matches no rule costs no message. A
`Decider` counts the units, in the nodes of a cluster or in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from ringfence.client.adhoc_limit_methods import AdhocLimitMethods, closed_error
from ringfence.client.checkpoints import Checkpoints
from ringfence.client.decider import Decider
from ringfence.client.decision import Decision
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.client.requests.check_ops import decision_of
from ringfence.client.requests.check_ops_plain import LocalCheck
from ringfence.client.requests.descriptors import (
    Descriptors,
    checked_cost,
    checked_costs,
    described,
    require_requests,
)
from ringfence.client.requests.dispatcher import Dispatcher
from ringfence.client.requests.match_cache import MatchCache
from ringfence.client.requests.targets import AdhocLimits, DescriptorTarget
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.client.reservation import Reservation
from ringfence.client.slots.acquire import AcquireLoop
from ringfence.client.slots.slot_holder import SlotHolder
from ringfence.errors import ConfigError
from ringfence.limiter import Code
from ringfence.rules import RuleSet
from ringfence.wire import BY_POLICY, CODE, SOURCE, Batch, Op

__all__ = ["Limiter", "closed_error"]

_UNKNOWN = Code.UNKNOWN_RULE.value
_BY_POLICY = frozenset([source.value for source in BY_POLICY])


class Limiter(AdhocLimitMethods):
    """Limiter that checks requests against rules; made by `ringfence.connect` and
    `ringfence.local`.

    All tasks of one event loop may share it. A check over its limit returns a denied `Decision` and
    raises no error. Methods raise `ConfigError` for invalid arguments and after `aclose`, and
    `AccessDenied` when the token lacks the scope of the call. Only with `raise_on_outage=True` they
    raise `PeerUnavailable` when no node and no `on_failure: local` decided. A cancelled check
    spends nothing.

    `timeout` means the same in all methods: the maximum seconds that one request to the nodes may
    take. Then the `on_failure` of the rules decides. By default, the observed round trips set the
    time-out.
    """

    def __init__(
        self,
        decider: Decider,
        *,
        raise_on_outage: bool = False,
        acquire_loop: AcquireLoop | None = None,
        local_cache: LocalCache | None = None,
        unmatched: UnmatchedChecks | None = None,
        in_loop: bool = True,
    ) -> None:
        """Create a limiter for an open decider.

        `local_cache` answers before the decider is asked. `in_loop=False` is for a decider that
        never waits: then only `acquire` and `hold` wait, and a thread without an event loop can run
        the other coroutines to their end.
        """
        self._decider = decider
        self._local_cache = local_cache
        self._raise_on_outage = raise_on_outage
        self._checkpoints = Checkpoints(in_loop=in_loop)
        self._match_cache = MatchCache()
        self._unmatched = unmatched or UnmatchedChecks()
        self._adhoc = AdhocLimits()
        self._local_checks = decider.local_checks(self._match_cache)
        self._dispatcher = Dispatcher(
            decider,
            local_cache,
            self._unmatched,
            self._checkpoints,
            raise_on_outage=raise_on_outage,
        )
        self._slots = SlotHolder(decider, self._dispatcher, acquire_loop or AcquireLoop())
        self._is_closed = False

    async def aclose(self) -> None:
        """Release held slots and close the connections; later calls raise `ConfigError`.

        The end of the block that opened the limiter does this. Closing twice has no effect.
        """
        if not self._is_closed:
            self._is_closed = True
            self._local_checks = None
            await self.end_waits()
            await self.release_held()
            await self._decider.aclose()

    @property
    def rules(self) -> RuleSet:
        """Rules against which this limiter checks requests."""
        return self._decider.rules

    @property
    def unmatched(self) -> Mapping[str, int]:
        """Number of checks that matched no rule: `known` counts domains that the rules define,
        `unknown` others."""
        return self._unmatched.counts

    def expect(self, domain: str, *paths: Sequence[str]) -> list[str]:
        """Declare the descriptor keys of later checks: `expect("api", ["path", "client"])`.

        Returns why no rule can match them, and logs it as a warning: now and after each change of
        the rules. The list is empty until a node has sent its rules.
        """
        rules = self._decider.rules if self._decider.knows_rules else None
        return self._unmatched.expect(rules, domain, paths)

    # -- limits of the rules -------------------------------------------------------------------

    async def check(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a bound that ends in a decision
    ) -> Decision:
        """Check a request, and spend `cost` on every counter that it matches, or on none."""
        if type(cost) is not int or cost != 1:
            cost = checked_cost(cost)
        if self._is_closed or timeout is not None:
            self._require_open(timeout)
        cache, spent = self._local_cache, b""
        known = None if cache is None else cache.repeat(domain, descriptors, cost)
        if known is None:
            found = self._match_cache.find(self._decider.rules, domain, descriptors)
            if found is None:
                target = DescriptorTarget(domain, described(descriptors))
                return (await self._dispatcher.ask(Op.CHECK, [target], [cost], timeout))[0]
            rule, key = found
            if rule is None:
                target = DescriptorTarget(domain, described(descriptors))
                return await self._dispatcher.answer_unmatched(target, timeout)
            if self._local_checks is not None:
                decide = self._local_checks.decide
                await self._checkpoints.take()
                return decide(rule, key, cost)
            if cache is not None:
                known = cache.decide(domain, descriptors, rule, key, cost)
                spent = key
        if known is not None:
            try:
                await self._checkpoints.take()
            except BaseException:  # A cancelled check spends nothing.
                if cache is not None:
                    cache.undo([known], [spent], [cost])
                raise
            return known
        row = await self._decider.ask(key, cost, timeout)
        decision = decision_of(rule, row)
        if row[CODE] != _UNKNOWN and (row[SOURCE] not in _BY_POLICY or not self._raise_on_outage):
            return decision
        target = DescriptorTarget(domain, described(descriptors))
        return await self._dispatcher.complete(target, cost, decision, timeout)

    @property
    def local_check(self) -> LocalCheck | None:
        """Function that decides a single check as `check_now` does, if the limiter of this process
        decides; None with nodes. Any thread may call it."""
        return None if self._local_checks is None else self._local_checks.check

    def check_now(self, domain: str, descriptors: Descriptors, cost: int = 1) -> Decision | None:
        """Check without waiting, if the local cache or the limiter of this process can decide;
        otherwise return None, and the caller awaits `check`.

        `check` begins with the same look-up. A loop around this call must let other tasks run.
        """
        if self._local_checks is not None:
            decision = self._local_checks.check(domain, descriptors, cost)
            if decision is not None:
                return decision
        if type(cost) is not int or cost != 1:
            cost = checked_cost(cost)
        if self._is_closed:
            self._require_open(None)
        cache = self._local_cache
        if cache is None:
            return None
        known = cache.repeat(domain, descriptors, cost)
        if known is not None:
            return known
        rules = self._decider.rules
        rule, key = self._match_cache.find(rules, domain, descriptors) or (None, b"")
        return None if rule is None else cache.decide(domain, descriptors, rule, key, cost)

    async def check_many(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        costs: int | Sequence[int] = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Decision]:
        """Check many requests at once, each as `check` does; return decisions in their order."""
        require_requests(requests)
        self._require_open(timeout)
        if timeout is None and self._local_cache is not None:
            known = self._local_cache.repeat_all(domain, requests, costs)
            if known is not None:
                await self._checkpoints.take()
                return known
        costs = checked_costs(costs, len(requests))
        if timeout is None:
            found = self._match_cache.find_all(self._decider.rules, domain, requests)
            if found is not None and requests:
                return await self._dispatcher.ask_plain(domain, requests, *found, costs)
        targets = [DescriptorTarget(domain, described(each)) for each in requests]
        return await self._dispatcher.ask(Op.CHECK, targets, costs, timeout)

    async def peek(
        self,
        domain: str,
        descriptors: Descriptors,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Return the decision that a check of cost 1 would get, without spending anything."""
        return await self.check(domain, descriptors, cost=0, timeout=timeout)

    async def charge(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Spend `cost` on every counter that a request matches, even if less is left.

        For costs that are known afterwards. The decision is denied when a limit is now overdrawn;
        checks are denied too, until `retry_after` has passed. Its `source` is `policy` or `shed`
        when no node counted the charge. A cancelled charge may count.
        Raises `ConfigError`, and counts nothing, where a concurrency limit applies.
        """
        return await self._ask(Op.CHARGE, self._target(domain, descriptors), cost, timeout)

    async def refund(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        age: float = 0.0,
        decision: Decision | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Refund `cost` to every counter that a request matches, at most the units that it has
        spent.

        `age` is the time in seconds since the units were spent. Then units of a later window are
        not refunded. Without it, the newest units are refunded: those of the current window, or the
        last hits of a log. With `decision`, which a check of this request has returned, only the
        counters that it charged get units back; others have no limit in the returned decision. That
        is the decision of a peek after the refund, and its `refunded` is the number of units that
        were given back. `refunded` is 0 and `source` is `policy` or `shed` when no node confirmed
        the refund in time; the decision is then allowed, and the refund may not be done.
        """
        return await self._refund(self._target(domain, descriptors), cost, age, decision, timeout)

    async def reset(
        self,
        domain: str,
        descriptors: Descriptors,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Clear every counter that a request matches; return the decision of a peek after that.

        The `source` of the decision is `policy` or `shed` when no node confirmed the reset in time.
        The decision is then allowed too, but the counter may not be cleared: repeat the reset. With
        `on_failure: local`, the `source` is then `local`, and only the counter of this process is
        cleared. With several counters, see the `source` of each status in `statuses`.
        """
        return await self._ask(Op.RESET, self._target(domain, descriptors), 0, timeout)

    def reserve(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[Reservation]:
        """Reserve units for a block whose real cost is known later.

        Use it as `async with limiter.reserve("llm", {"user": "42"}, cost=500) as reservation`.
        `cost` units are spent before the block if the limits allow it; otherwise the reservation is
        false, and the block must end. When the block sets `reservation.cost`, its end charges or
        refunds the difference. Otherwise the reserved units stay spent, also when the block fails.
        Raises `ConfigError`, and spends nothing, where a concurrency limit applies.
        """
        return self._reserve(self._target(domain, descriptors), cost, timeout)

    async def acquire(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        max_wait: float = 10.0,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Check, and wait at most `max_wait` seconds until the request is allowed.

        The decision is denied if the wait was too short. A queueing limit gives each caller a turn.
        For slots of a concurrency limit, callers wait in order of arrival. Other limits are checked
        again when the denial says that this cost would pass.
        """
        self._require_open(timeout)
        target = self._target(domain, descriptors)
        check = partial(self.check, domain, descriptors, cost, timeout=timeout)
        return await self._acquire(target, cost, check, max_wait, timeout)

    @asynccontextmanager
    async def hold(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        max_wait: float = 10.0,
        timeout: float | None = None,  # noqa: ASYNC109
        raise_on_denied: bool = True,
    ) -> AsyncIterator[Decision]:
        """Hold a slot of a concurrency limit while the block runs; wait at most `max_wait` for it.

        The slot is renewed while the block runs, and released when it ends, fails or is cancelled.
        Raises `SlotUnavailable` when no slot was free in time; with `raise_on_denied=False` the
        block runs with a denied decision instead. Raises `ConfigError`, and spends nothing, where
        no rule with `algorithm: concurrency` applies. When no node decides and `on_failure` allows
        the request, the block runs without a slot: `slots` of the decision is None.
        """
        self._slots.require_slots(self._target(domain, descriptors))
        taking = self.acquire(domain, descriptors, cost, max_wait=max_wait, timeout=timeout)
        async with self._slots.hold(taking, raise_on_denied=raise_on_denied) as decision:
            yield decision

    def keep(self, decision: Decision) -> None:
        """Renew the concurrency slots of a decision periodically until they are released.

        `hold` does this; call it after `acquire` for work that may exceed the limit's period. If
        the decision is dropped without `release`, its slots are free after that period.
        """
        self._require_open(None)
        self._slots.keep(_required(decision))

    async def release(
        self,
        decision: Decision | Batch,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> int | None:
        """Release the slots of concurrency limits that a decision holds, if any.

        Another process gives `Decision.slots`. Returns the units that are free again, None when no
        node decided in time. It returns 0 when the slots had ended, or when their owner changed and
        the token lacks the scope `refund`; then they expire.
        """
        self._require_open(timeout)
        return await self._slots.release(_slots_of(decision), timeout)

    async def renew(
        self,
        decision: Decision | Batch,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> float | None:
        """Renew the slots of a decision once; `keep` does so periodically.

        Another process gives `Decision.slots`. Returns the seconds until they expire, 0 when a slot
        has ended, None when no node decided in time.
        """
        self._require_open(timeout)
        return await self._slots.renew(_slots_of(decision), timeout)

    async def release_held(self) -> None:
        """Release all slots of concurrency limits that this limiter still renews."""
        await self._slots.release_all()

    async def end_waits(self, *, is_exiting: bool = False) -> None:
        """End all calls of `acquire` and `hold` that wait.

        They raise `ConfigError`. When the process exits, they do not return.
        """
        await self._slots.end_waits(is_exiting=is_exiting)

    def _target(self, domain: str, descriptors: Descriptors) -> DescriptorTarget:
        return DescriptorTarget(domain, described(descriptors))


def _slots_of(decision: Decision | Batch) -> Batch | None:
    return decision if isinstance(decision, Batch) else _required(decision).slots


def _required(decision: object) -> Decision:
    if isinstance(decision, Decision):
        return decision
    raise ConfigError(
        f"decision must be what check or acquire returned, got {decision!r}; keep it until release"
    )
