"""What an application holds: checks in, decisions out.

Matching runs here, in the caller's process, so a request that meets no rule costs nothing else. Who
counts is the `Decider`'s affair: the nodes of a cluster, or an engine in this very process.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias

import anyio

from ringfence.client.batch import Batch, Verdicts
from ringfence.client.decision import NO_RULE, Decision, Status, decide, is_denied, status_of
from ringfence.errors import ConfigError, PeerUnavailable
from ringfence.limiter import Code, Limit
from ringfence.rules import Descriptor, Match, RuleSet, adhoc_rule, encode_key, parse_limit
from ringfence.wire import MAX_KEYS, Op, Source

__all__ = ["Decider", "Descriptors", "Limiter"]

Descriptors: TypeAlias = (
    Mapping[str, str]
    | Descriptor
    | Sequence[Mapping[str, str] | Descriptor | Sequence[tuple[str, str]]]
)
"""One descriptor as a mapping, `{"client": "203.0.113.7"}`, or several in a list."""

_MAX_COST = 2**53 - 1
_PARSED_LIMITS = 1024


class Decider(Protocol):
    """Who counts."""

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""

    async def decide(
        self, batch: Batch, vetoes: Callable[[int], bool], within: float | None
    ) -> Verdicts:
        """Decide every row; never raises for a member that cannot be had."""

    async def refresh_rules(self) -> None:
        """Fetch the rules again: a member did not know a rule that was asked for."""

    def refund(
        self, batch: Batch, rows: Sequence[int], verdicts: Verdicts, asked_at: float
    ) -> None:
        """Give back what rows were just charged, without waiting."""


class Limiter:
    """Checks requests against the rules; made by `ringfence.connect` and `ringfence.local`.

    Safe to share among the tasks of one event loop. Being over a limit is a `Decision`; these
    methods raise `ConfigError` for arguments that make no sense and, only when made with
    `raise_on_outage=True`, `PeerUnavailable` when no member decided.
    """

    def __init__(self, decider: Decider, *, raise_on_outage: bool = False) -> None:
        self._decider = decider
        self._raise_on_outage = raise_on_outage
        self._parsed: dict[str, Limit] = {}

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._decider.rules

    async def check(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a bound that ends in a decision
    ) -> Decision:
        """Ask and, if allowed, spend `cost` on every counter that `descriptors` meet, or on none.

        `timeout` (seconds) is the most this call takes; then the rules' `on_failure` decides.
        """
        described = _described(descriptors)
        return (await self._ask(Op.CHECK, domain, [described], [_checked(cost)], timeout))[0]

    async def check_many(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        costs: int | Sequence[int] = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Decision]:
        """Check many requests at once, each as `check` would; decisions in the same order."""
        column = [costs] * len(requests) if isinstance(costs, int) else list(costs)
        if len(column) != len(requests):
            raise ConfigError(
                f"{len(requests)} requests but {len(column)} costs; "
                "give one cost for all, or one per request"
            )
        described = [_described(descriptors) for descriptors in requests]
        return await self._ask(
            Op.CHECK, domain, described, [_checked(cost) for cost in column], timeout
        )

    async def peek(self, domain: str, descriptors: Descriptors) -> Decision:
        """Tell what a check of cost 1 would meet, without spending anything."""
        return await self.check(domain, descriptors, cost=0)

    async def refund(self, domain: str, descriptors: Descriptors, cost: int = 1) -> Decision:
        """Give `cost` back to every counter that `descriptors` meet, never past empty.

        The decision is that of a peek afterwards.
        """
        return (
            await self._ask(Op.REFUND, domain, [_described(descriptors)], [_checked(cost)], None)
        )[0]

    async def reset(self, domain: str, descriptors: Descriptors) -> Decision:
        """Forget every counter that `descriptors` meet."""
        return (await self._ask(Op.RESET, domain, [_described(descriptors)], [0], None))[0]

    async def acquire(
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float
    ) -> Decision:
        """Wait for one's turn, at most `max_wait` seconds; the decision is denied if it never came.

        A queueing limit tells each caller its turn; other limits are asked again when the denial
        said that this cost would pass.
        """
        give_up = anyio.current_time() + max_wait
        while True:
            decision = await self.check(domain, descriptors, cost)
            left = give_up - anyio.current_time()
            if decision.allowed:
                if decision.delay > left:
                    await self.refund(domain, descriptors, cost)
                    return _too_long(decision)
                await anyio.sleep(decision.delay)
                return decision
            if decision.retry_after is None or decision.retry_after > left:
                return decision
            await anyio.sleep(decision.retry_after)

    async def release(self, decision: Decision) -> None:
        """Return the places that `decision` holds under a concurrency limit, if any."""
        if decision.leases is not None:
            await self._decider.decide(decision.leases, _never_vetoes, None)

    @asynccontextmanager
    async def hold(
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float = 0.0
    ) -> AsyncIterator[Decision]:
        """Hold a place under a concurrency limit while the block runs.

        Look at the decision: the block runs also when it was denied.
        """
        decision = await self.acquire(domain, descriptors, cost, max_wait=max_wait)
        try:
            yield decision
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await self.release(decision)

    async def check_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Check an ad-hoc limit that stands in no rule: `check_limit("100/minute", "user:42")`.

        Counters are shared by all who name the same key and kind of limit; cost 0 peeks.
        """
        return await self._ask_limit(Op.CHECK, limit, key, _checked(cost), timeout)

    async def refund_limit(self, limit: str | Limit, *key: str, cost: int = 1) -> Decision:
        """Give `cost` back to the counter of an ad-hoc limit."""
        return await self._ask_limit(Op.REFUND, limit, key, _checked(cost), None)

    async def reset_limit(self, limit: str | Limit, *key: str) -> Decision:
        """Forget the counter of an ad-hoc limit."""
        return await self._ask_limit(Op.RESET, limit, key, 0, None)

    # -- from descriptors to columns and back --------------------------------------------------

    async def _ask_limit(
        self, op: Op, limit: str | Limit, key: tuple[str, ...], cost: int, within: float | None
    ) -> Decision:
        if not key:
            raise ConfigError("an ad-hoc limit needs a key, as in check_limit('5/s', 'user:42')")
        if isinstance(limit, str):
            limit = self._parse(limit)
        rule = adhoc_rule(limit)
        match = Match(rule, encode_key(rule.id, key), f"adhoc.{rule.name or limit.algorithm}", None)
        return (await self._decide(op, [[match]], [cost], within))[0]

    def _parse(self, text: str) -> Limit:
        limit = self._parsed.get(text)
        if limit is None:
            limit = parse_limit(text)
            if len(self._parsed) >= _PARSED_LIMITS:
                self._parsed.clear()
            self._parsed[text] = limit
        return limit

    async def _ask(
        self,
        op: Op,
        domain: str,
        requests: list[tuple[Descriptor, ...]],
        costs: list[int],
        within: float | None,
    ) -> list[Decision]:
        rules = self._decider.rules
        matches = [rules.match(domain, request) for request in requests]
        decisions = await self._decide(op, matches, costs, within)
        unknown = [i for i, decision in enumerate(decisions) if _is_unknown(decision)]
        if unknown:
            # The owner has other rules than we do: newer ones, or its file is not there yet.
            await self._decider.refresh_rules()
            rules = self._decider.rules
            again = [
                [_carried(match) for match in rules.match(domain, requests[i])] for i in unknown
            ]
            fresh = await self._decide(op, again, [costs[i] for i in unknown], within)
            for place, decision in zip(unknown, fresh, strict=True):
                decisions[place] = decision
        return decisions

    async def _decide(
        self,
        op: Op,
        requests: Sequence[Sequence[Match | None]],
        costs: list[int],
        within: float | None,
    ) -> list[Decision]:
        """Lay all counters into one batch, have it decided, and cut the answer by request."""
        batch = Batch(op, [], [])
        matches: list[Match] = []
        rows_of: list[range] = []
        for request, cost in zip(requests, costs, strict=True):
            start = len(matches)
            for match in request:
                if match is not None and match.rule.limit is not None:
                    matches.append(match)
                    batch.keys.append(match.key)
                    batch.costs.append(cost if match.cost is None or not cost else match.cost)
            rows = range(start, len(matches))
            rows_of.append(rows)
            if len(rows) > MAX_KEYS:
                raise ConfigError(
                    f"a request meets {len(rows)} counters; at most {MAX_KEYS} can be"
                )
        if not matches:
            return [decide([NO_RULE for _ in request] or [NO_RULE]) for request in requests]
        if len(matches) > len(rows_of) or any([len(rows) > 1 for rows in rows_of]):
            batch.groups.extend(len(rows) for rows in rows_of if rows)
        if any([match.rule.carried for match in matches]):
            _carry_limits(batch, matches)

        def vetoes(index: int) -> bool:
            rule = matches[index].rule
            return not (rule.shadow or rule.quota)

        asked_at = anyio.current_time()
        verdicts = await self._decider.decide(batch, vetoes, within)
        if self._raise_on_outage and Source.POLICY in verdicts.sources:
            raise PeerUnavailable(
                f"no member of the cluster decided a check of {matches[0].metric} in time"
            )
        return [
            self._read(batch, request, rows, matches, verdicts, asked_at)
            for request, rows in zip(requests, rows_of, strict=True)
        ]

    def _read(
        self,
        batch: Batch,
        request: Sequence[Match | None],
        rows: range,
        matches: list[Match],
        verdicts: Verdicts,
        asked_at: float,
    ) -> Decision:
        statuses: list[Status] = []
        row = rows.start
        for match in request:
            if match is None:
                statuses.append(NO_RULE)
            elif match.rule.limit is None:
                statuses.append(Status(True, match.rule, None, None, 0.0, 0.0, 0.0, Source.NO_RULE))
            else:
                statuses.append(status_of(matches[row], verdicts, row))
                row += 1
        if not statuses:
            statuses.append(NO_RULE)
        codes = verdicts.outcomes.codes
        if len(rows) > 1 and batch.op is Op.CHECK and is_denied(statuses):
            # Shadow and quota counters deny nobody alone, so their owners charged them.
            charged = [i for i in rows if codes[i] <= Code.OVER_SOFT]
            self._decider.refund(batch, charged, verdicts, asked_at)
        leases = None
        if any(verdicts.outcomes.leases[i] for i in rows):
            leases = _release_of(batch, rows, verdicts)
        return decide(statuses, leases)


def _described(descriptors: Descriptors) -> tuple[Descriptor, ...]:
    if isinstance(descriptors, Mapping):
        return (Descriptor(tuple(descriptors.items())),)
    if isinstance(descriptors, Descriptor):
        return (descriptors,)
    if isinstance(descriptors, str):
        raise ConfigError(
            f"descriptors {descriptors!r} is text; give a mapping such as "
            "{'client': '203.0.113.7'}, or a list of mappings"
        )
    described = []
    for one in descriptors:
        if isinstance(one, Descriptor):
            described.append(one)
        elif isinstance(one, Mapping):
            described.append(Descriptor(tuple(one.items())))
        else:
            described.append(Descriptor(tuple((key, value) for key, value in one)))
    return tuple(described)


def _checked(cost: int) -> int:
    if not 0 <= cost <= _MAX_COST:
        raise ConfigError(f"cost {cost} is out of range; give a whole number from 0 to 2**53 - 1")
    return cost


def _carry_limits(batch: Batch, matches: Sequence[Match]) -> None:
    places: dict[Limit, int] = {}
    for match in matches:
        limit = match.rule.limit
        if not match.rule.carried or limit is None:
            batch.which.append(0)
            continue
        if limit not in places:
            batch.limits.append(limit)
            places[limit] = len(batch.limits)
        batch.which.append(places[limit])


def _carried(match: Match | None) -> Match | None:
    """Let the limit travel with the check, for an owner that does not have the rule yet."""
    if match is None or match.rule.carried:
        return match
    return Match(match.rule.as_carried(), match.key, match.metric, match.cost)


def _is_unknown(decision: Decision) -> bool:
    return any(status.is_unknown for status in decision.statuses)


def _release_of(batch: Batch, rows: Sequence[int], verdicts: Verdicts) -> Batch:
    held = [i for i in rows if verdicts.outcomes.leases[i]]
    taken = batch.take(held)
    return Batch(
        Op.REFUND,
        taken.keys,
        taken.costs,
        limits=taken.limits,
        which=taken.which,
        leases=[verdicts.outcomes.leases[i] for i in held],
    )


def _too_long(decision: Decision) -> Decision:
    """A turn that comes too late for the caller, as a denial that says when it would have been."""
    return Decision(
        False,
        decision.limit,
        decision.remaining,
        decision.delay,
        decision.reset_after,
        0.0,
        decision.source,
        decision.rule,
        decision.over_soft,
        decision.over_shadow,
        decision.statuses,
    )


def _never_vetoes(index: int) -> bool:
    return False
