"""What an application holds: checks in, decisions out.

Matching runs here, in the caller's process, so a request that meets no rule costs nothing else. Who
counts is the `Decider`'s affair: the nodes of a cluster, or an engine in this very process.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol

from ringfence import runtime
from ringfence.client.checkpoints import Checkpoints
from ringfence.client.decision import (
    NO_RULE,
    UNDECIDED,
    UNLIMITED,
    Decision,
    SlotUnavailable,
    decide,
)
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.client.requests.batch_ops import decisions as decisions_of
from ringfence.client.requests.descriptors import (
    Descriptors,
    checked_cost,
    checked_seconds,
    described,
    require_domain,
    require_requests,
    require_text,
)
from ringfence.client.requests.match_cache import MatchCache
from ringfence.client.requests.request_rows import RequestRows, charged, has_slots
from ringfence.client.requests.unmatched_checks import Unmatched
from ringfence.client.slots.acquire import UNDO_WITHIN, AcquireLoop
from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import AccessDenied, ConfigError, PeerUnavailable, RingfenceError
from ringfence.limiter import MAX_CARRIED_SLOTS, Code, Limit, Outcomes
from ringfence.peering.target import PendingCheck, TimedOut
from ringfence.rules import Descriptor, Match, Rule, RuleSet, adhoc_rule, encode_key, parse_limit
from ringfence.rules.descriptor_tree import place as place_of
from ringfence.wire import BY_POLICY, CODE, SOURCE, Batch, Op, OutcomeRow, Results

__all__ = ["Decider", "Limiter"]

_ADHOC_RULES = 1024
_COUNTED_ALONE = (Op.REFUND, Op.CHARGE)
"""Operations whose rows do not stand or fall together."""
_UNKNOWN = Code.UNKNOWN_RULE.value
_BY_POLICY = frozenset([source.value for source in BY_POLICY])


class Decider(Protocol):
    """Who counts."""

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""

    @property
    def knows_rules(self) -> bool:
        """Whether `rules` are those of the cluster, instead of none for want of a member."""

    async def decide(
        self, batch: Batch, vetoes: Callable[[int], bool], within: float | None
    ) -> Results:
        """Decide every row; never raises for a member that cannot be had."""

    def join(self, key: bytes, cost: int, within: float | None) -> PendingCheck | None:
        """Let a check by its rule's own limit leave with others, and say where to wait for it.

        None when it cannot; then, and when the wait brings no row, `decide_one` decides. It brings
        none after `within` seconds.
        """

    def decide_one(
        self,
        key: bytes,
        cost: int,
        asked: PendingCheck | None,
        late: TimedOut | None,
        within: float | None,
    ) -> Awaitable[OutcomeRow]:
        """Decide a lone check that could not join, or was `asked` in vain, or whose answer is
        `late`; by the policy, `within` seconds after it was asked.

        Raises `AccessDenied` when a member says that we may not ask.
        """

    def time(self) -> float:
        """Seconds on the clock by which `refund` is told when a check was asked."""

    async def refresh_rules(self) -> None:
        """Fetch the rules again: a member did not know a rule that was asked for."""

    def refund(self, batch: Batch, rows: Sequence[int], verdicts: Results, asked_at: float) -> None:
        """Give back what rows were just charged, without waiting."""

    def outage(self) -> RingfenceError | None:
        """Why no member decides, when one of them has said so."""

    @property
    def slot_waits(self) -> SlotWaits:
        """The tasks that wait for slots, which whoever decides wakes."""

    def new_ticket(self) -> int:
        """Make the name, from 1 to 2**64 - 1, under which a task waits for a slot."""

    def slot_pause_s(self) -> float:
        """Seconds after which a task that waits for a slot asks again, although nobody woke it."""

    def keep(self, slots: Batch, period_s: float) -> None:
        """Renew from now on the slots that `slots` gives back, which live for a period each."""

    def let_go(self, slots: Batch) -> Batch:
        """Renew them no more; returns what gives them back as they are now."""

    def held(self) -> list[Batch]:
        """The slots that are renewed, by what gave them back at first."""


class Limiter:
    """Checks requests against the rules; made by `ringfence.connect` and `ringfence.local`.

    Safe to share among the tasks of one event loop. Being over a limit is a `Decision`; these
    methods raise `ConfigError` for arguments that make no sense and after the block that made the
    limiter has ended, `AccessDenied` when the token lacks the scope for what was asked, and, only
    when made with `raise_on_outage=True`, `PeerUnavailable` when no member decided. A cancelled
    check spends nothing.
    """

    def __init__(
        self,
        decider: Decider,
        *,
        raise_on_outage: bool = False,
        patience: AcquireLoop | None = None,
        near: LocalCache | None = None,
        in_loop: bool = True,
        strict: bool = False,
    ) -> None:
        """`near` is what need not be asked of the decider.

        `strict` raises `ConfigError` for checks that no rule can match, in place of a warning.
        `in_loop=False` is for a decider that never waits: then nothing but `acquire` and `hold`
        does, so that a thread without an event loop may run the calls to their end.
        """
        self._decider = decider
        self._patience = patience or AcquireLoop()
        self._near = near
        self._raise_on_outage = raise_on_outage
        self._adhoc: dict[str | Limit, Rule] = {}
        self._turns = Checkpoints(in_loop=in_loop)
        self._matches = MatchCache()
        self._unmatched = Unmatched(strict=strict)
        self._is_closed = False

    def close(self) -> None:
        """Refuse all further calls; the end of the block that made the limiter does this."""
        self._is_closed = True

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._decider.rules

    @property
    def unmatched(self) -> Mapping[str, int]:
        """Checks that no rule matched, by whether their domain is `known` or `unknown`."""
        return self._unmatched.counts

    def expect(self, domain: str, *paths: Sequence[str]) -> list[str]:
        """Declare descriptors of coming checks by their keys: `expect("api", ["path", "client"])`.

        Returns why no rule can match them, and logs it as a warning: now and after each change of
        the rules. As long as no member has sent its rules the list is empty.
        """
        rules = self._decider.rules if self._decider.knows_rules else None
        return self._unmatched.expect(rules, domain, paths)

    def rules_changed(self) -> None:
        """Look at what is expected again; called when a member has sent rules."""
        self._unmatched.verify(self._decider.rules)

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
        cost = checked_cost(cost)
        self._require_open()
        near = self._near
        known = None if near is None else near.again(domain, descriptors, cost)
        if known is None:
            found = self._matches.find(self._decider.rules, domain, descriptors)
            if found is None:
                asked = [described(descriptors)]
                return (await self._ask(Op.CHECK, domain, asked, [cost], timeout))[0]
            rule, key = found
            if rule is None:
                return await self._pass(domain, descriptors)
            if near is not None:
                known = near.decide(domain, descriptors, rule, key, cost)
        if known is not None:
            await self._turns.take()
            return known
        waiting = self._decider.join(key, cost, timeout)
        row = None if waiting is None else await waiting.wait(self._decider.refund)
        if row is None or isinstance(row, TimedOut):
            row = await self._decider.decide_one(key, cost, waiting, row, timeout)
        elif isinstance(row, AccessDenied):
            raise row
        decision = Decision(rule, row)
        if row[CODE] != _UNKNOWN and (row[SOURCE] not in _BY_POLICY or not self._raise_on_outage):
            return decision
        return await self._settle(domain, described(descriptors), cost, decision, timeout)

    def check_now(self, domain: str, descriptors: Descriptors, cost: int = 1) -> Decision | None:
        """Decide at once if nobody needs to be asked, else None: then await `check`.

        What `check` itself begins with, for callers in a hurry: a loop around this call must let
        other tasks run by itself.
        """
        self._require_open()
        near, cost = self._near, checked_cost(cost)
        if near is None:
            return None
        known = near.again(domain, descriptors, cost)
        if known is None:
            rule, key = self._matches.find(self._decider.rules, domain, descriptors) or (None, b"")
            if rule is not None:
                known = near.decide(domain, descriptors, rule, key, cost)
        return known

    async def check_many(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        costs: int | Sequence[int] = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Decision]:
        """Check many requests at once, each as `check` would; decisions in the same order."""
        require_requests(requests)
        if timeout is None:
            self._require_open()
            if self._near is not None:
                said = self._near.again_all(domain, requests, costs)
                if said is not None:
                    await self._turns.take()
                    return said
        costs = _column(costs, len(requests))
        if timeout is None:
            found = self._matches.find_all(self._decider.rules, domain, requests)
            if found is not None and requests:
                return await self._ask_plain(domain, requests, *found, costs)
        described_all = [described(descriptors) for descriptors in requests]
        return await self._ask(Op.CHECK, domain, described_all, costs, timeout)

    async def peek(self, domain: str, descriptors: Descriptors) -> Decision:
        """Tell what a check of cost 1 would meet, without spending anything."""
        return await self.check(domain, descriptors, cost=0)

    async def charge(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a bound that ends in a decision
    ) -> Decision:
        """Spend `cost` on every counter that `descriptors` meet, whatever is left.

        For costs that are known afterwards. The decision is denied when a limit is overdrawn now:
        checks are denied, too, until `retry_after` says that a cost of 1 would pass. Its `source`
        is `policy` or `shed` when no node counted it, in `timeout` seconds where that is given.
        A cancelled charge may count. Cost 0 only asks.
        Raises `ConfigError`, and counts nothing, where a concurrency limit applies.
        """
        asked, costs = [described(descriptors)], [checked_cost(cost)]
        return (await self._ask(Op.CHARGE, domain, asked, costs, timeout))[0]

    async def refund(self, domain: str, descriptors: Descriptors, cost: int = 1) -> Decision:
        """Give `cost` back to every counter that `descriptors` meet, never past empty.

        Nobody knows any more when it was charged, so the newest units come back: of a window the
        one that counts now, of a `sliding_window_log` its last hits. The decision is that of a peek
        afterwards.
        """
        return (
            await self._ask(Op.REFUND, domain, [described(descriptors)], [checked_cost(cost)], None)
        )[0]

    async def reset(self, domain: str, descriptors: Descriptors) -> Decision:
        """Forget every counter that `descriptors` meet."""
        return (await self._ask(Op.RESET, domain, [described(descriptors)], [0], None))[0]

    async def acquire(
        self, domain: str, descriptors: Descriptors, cost: int = 1, *, max_wait: float = 10.0
    ) -> Decision:
        """Wait for one's turn, at most `max_wait` seconds; the decision is denied if it never came.

        A queueing limit tells each caller its turn. For a slot of a concurrency limit callers wait
        in order of arrival, until one is released or its time ends. Other limits are asked again
        when the denial said that this cost would pass.
        """
        request = described(descriptors)
        undo = partial(self._undo, domain, descriptors, cost)
        cost = checked_cost(cost)
        if checked_seconds("max_wait", max_wait) and cost and self._has_slots(domain, request):
            ask = partial(self._ask_with, domain, request, cost)
            return await self._take_slot(ask, undo, max_wait)
        check = partial(self.check, domain, descriptors, cost)
        return await self._patience.take_turn(check, undo, max_wait)

    async def release(self, decision: Decision) -> None:
        """Return the places that `decision` holds under a concurrency limit, if any."""
        self._require_open()
        if not isinstance(decision, Decision):
            raise ConfigError(f"release takes the decision that acquired, not {decision!r}")
        if decision.leases is not None:
            await self._release(decision.leases)

    def keep(self, decision: Decision) -> None:
        """Renew the slots that `decision` holds until they are released, however long that takes.

        `hold` does this; call it after `acquire` for what may take longer than the limit's period.
        The slots of a decision that is dropped without `release` are free after their period.
        """
        self._require_open()
        if decision.leases is not None:
            periods = [
                status.rule.limit.period_ns
                for status in decision.statuses
                if status.rule is not None
                and status.rule.limit is not None
                and has_slots(status.rule)
            ]
            self._decider.keep(decision.leases, min(periods) / 1e9)

    @asynccontextmanager
    async def hold(
        self,
        domain: str,
        descriptors: Descriptors,
        cost: int = 1,
        *,
        max_wait: float = 10.0,
        raise_on_denied: bool = True,
    ) -> AsyncIterator[Decision]:
        """Hold a slot of a concurrency limit while the block runs; wait at most `max_wait` for it.

        The slot is renewed while the block runs, and released when it ends, fails or is cancelled.
        Raises `SlotUnavailable` when no slot was free in time; with `raise_on_denied=False` the
        block runs with a denied decision instead. Raises `ConfigError`, and spends nothing, where
        no rule with `algorithm: concurrency` applies.
        """
        self.require_place(domain, descriptors)
        taking = self.acquire(domain, descriptors, cost, max_wait=max_wait)
        async with self._holding(taking, raise_on_denied=raise_on_denied) as decision:
            yield decision

    @asynccontextmanager
    async def hold_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        max_wait: float = 10.0,
        raise_on_denied: bool = True,
    ) -> AsyncIterator[Decision]:
        """Hold a slot of an ad-hoc limit, as `hold` does under the rules.

        For example `hold_limit("4 concurrent", "user:42")`.
        """
        self.require_slots(limit)
        taking = self.acquire_limit(limit, *key, cost=cost, max_wait=max_wait)
        async with self._holding(taking, raise_on_denied=raise_on_denied) as decision:
            yield decision

    @asynccontextmanager
    async def _holding(
        self, taking: Awaitable[Decision], *, raise_on_denied: bool
    ) -> AsyncIterator[Decision]:
        decision = await self.begin_hold(taking, raise_on_denied=raise_on_denied)
        try:
            yield decision
        finally:
            with runtime.move_on_after(UNDO_WITHIN, shield=True):
                await self.release(decision)

    async def begin_hold(self, taking: Awaitable[Decision], *, raise_on_denied: bool) -> Decision:
        """Take a slot and renew it until `release`. Raises `SlotUnavailable`."""
        decision = await taking
        if decision:
            self.keep(decision)
        elif raise_on_denied:
            raise SlotUnavailable(decision)
        return decision

    async def release_held(self) -> None:
        """Release all slots that are still renewed: the process, or the connection, ends."""
        with runtime.move_on_after(UNDO_WITHIN, shield=True):
            for slots in self._decider.held():
                with suppress(RingfenceError):
                    await self._release(slots)

    def require_slots(self, limit: str | Limit) -> None:
        """Raise `ConfigError` when an ad-hoc limit has no slots to hold."""
        if not has_slots(self._adhoc_rule(limit)):
            raise ConfigError(
                f"hold_limit must have a concurrency limit, such as '4 concurrent', got {limit!r}; "
                "use check_limit or acquire_limit for other limits"
            )

    def require_place(self, domain: str, descriptors: Descriptors) -> None:
        """Raise `ConfigError` when no concurrency limit applies, so that there is none to hold."""
        matches = self._match(domain, described(descriptors))
        if self._decider.knows_rules and not any(map(_holds, matches)):
            raise ConfigError(
                f"hold needs a rule with algorithm concurrency, and these descriptors of domain "
                f"{domain!r} meet none; use check or acquire for other limits"
            )

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
        return await self._ask_limit(Op.CHECK, limit, key, cost, timeout)

    async def acquire_limit(
        self, limit: str | Limit, *key: str, cost: int = 1, max_wait: float = 10.0
    ) -> Decision:
        """Wait for one's turn under an ad-hoc limit, as `acquire` does under the rules."""
        undo = partial(self._undo_limit, limit, key, cost)
        if checked_seconds("max_wait", max_wait) and cost and has_slots(self._adhoc_rule(limit)):
            ask = partial(self._ask_limit_with, limit, key, checked_cost(cost))
            return await self._take_slot(ask, undo, max_wait)
        check = partial(self.check_limit, limit, *key, cost=cost)
        return await self._patience.take_turn(check, undo, max_wait)

    async def peek_limit(self, limit: str | Limit, *key: str) -> Decision:
        """Tell what a check of cost 1 of an ad-hoc limit would meet, without spending anything."""
        return await self._ask_limit(Op.CHECK, limit, key, 0, None)

    async def charge_limit(
        self,
        limit: str | Limit,
        *key: str,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Spend `cost` of an ad-hoc limit, whatever is left, as `charge` does under the rules."""
        return await self._ask_limit(Op.CHARGE, limit, key, cost, timeout)

    async def refund_limit(self, limit: str | Limit, *key: str, cost: int = 1) -> Decision:
        """Give `cost` back to the counter of an ad-hoc limit."""
        return await self._ask_limit(Op.REFUND, limit, key, cost, None)

    async def reset_limit(self, limit: str | Limit, *key: str) -> Decision:
        """Forget the counter of an ad-hoc limit."""
        return await self._ask_limit(Op.RESET, limit, key, 0, None)

    # -- asking --------------------------------------------------------------------------------

    async def _take_slot(
        self,
        ask: Callable[[int, bool], Awaitable[Decision]],
        undo: Callable[[Decision], Awaitable[None]],
        max_wait: float,
    ) -> Decision:
        """Wait in line for a slot, under a ticket that `ask` shows to whoever decides.

        `ask(ticket, False)` leaves the line.
        """
        ticket = self._decider.new_ticket()
        is_in_line = True
        with self._decider.slot_waits.open(ticket) as slot:
            try:
                decision = await self._patience.take_turn(
                    partial(ask, ticket, True),
                    undo,
                    max_wait,
                    slot,
                    self._decider.slot_pause_s,
                )
                is_in_line = not decision
            finally:
                if is_in_line:
                    with runtime.move_on_after(UNDO_WITHIN, shield=True), suppress(RingfenceError):
                        await ask(ticket, False)
        return decision

    async def _ask_with(
        self,
        domain: str,
        request: tuple[Descriptor, ...],
        cost: int,
        ticket: int,
        is_waiting: bool,
    ) -> Decision:
        costs = [cost if is_waiting else 0]
        return (await self._ask(Op.CHECK, domain, [request], costs, None, ticket))[0]

    async def _ask_limit_with(
        self,
        limit: str | Limit,
        key: tuple[str, ...],
        cost: int,
        ticket: int,
        is_waiting: bool,
    ) -> Decision:
        return await self._ask_limit(Op.CHECK, limit, key, cost if is_waiting else 0, None, ticket)

    def _has_slots(self, domain: str, request: tuple[Descriptor, ...]) -> bool:
        """Whether a concurrency limit applies whose denial counts, so that there is a line."""
        return any(
            [
                _holds(match) and not (match.rule.shadow or match.rule.quota)
                for match in self._match(domain, request)
                if match is not None
            ]
        )

    async def _release(self, slots: Batch) -> None:
        verdicts = await self._decider.decide(self._decider.let_go(slots), _never_vetoes, None)
        if verdicts.refusal is not None:
            raise verdicts.refusal

    def _adhoc_rule(self, limit: str | Limit) -> Rule:
        if not isinstance(limit, str | Limit):
            raise ConfigError(f"limit {limit!r} is neither text, such as '5/s', nor a Limit")
        rule = self._adhoc.get(limit)
        if rule is None:
            rule = adhoc_rule(parse_limit(limit) if isinstance(limit, str) else limit)
            if len(self._adhoc) >= _ADHOC_RULES:
                self._adhoc.clear()
            self._adhoc[limit] = rule
        return rule

    async def _ask_limit(
        self,
        op: Op,
        limit: str | Limit,
        key: tuple[str, ...],
        cost: int,
        within: float | None,
        ticket: int = 0,
    ) -> Decision:
        rule = self._adhoc_rule(limit)
        if not key or not all([isinstance(part, str) for part in key]):
            raise ConfigError(
                "an ad-hoc limit needs a key made of text, as in check_limit('5/s', 'user:42')"
            )
        match = Match(rule, encode_key(rule.id, key), "adhoc")
        decisions, _ = await self._decide(op, [[match]], [checked_cost(cost)], within, ticket)
        return decisions[0]

    async def _ask(
        self,
        op: Op,
        domain: str,
        requests: list[tuple[Descriptor, ...]],
        costs: list[int],
        within: float | None,
        ticket: int = 0,
    ) -> list[Decision]:
        matches = [self._match(domain, request) for request in requests]
        if self._decider.knows_rules:
            for request, found in zip(requests, matches, strict=True):
                if not any(found):
                    self._unmatched.note(self._decider.rules, domain, request)
        decisions, has_unknown = await self._decide(op, matches, costs, within, ticket)
        if has_unknown:
            await self._ask_unknown(op, domain, requests, costs, within, decisions)
        return decisions

    async def _ask_plain(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        rules: list[Rule],
        keys: list[bytes],
        costs: list[int],
    ) -> list[Decision]:
        """Check requests that each meet one counter: no groups, no questions of who vetoes."""
        known = None
        if self._near is not None:
            known = self._near.decide_all(domain, requests, rules, keys, costs)
        if known is None:
            return await self._ask_found(domain, requests, rules, keys, costs)
        places = [at for at, decision in enumerate(known) if decision is None]
        if not places:
            await self._turns.take()
        else:
            answers = await self._ask_found(
                domain,
                [requests[at] for at in places],
                [rules[at] for at in places],
                [keys[at] for at in places],
                [costs[at] for at in places],
            )
            for place, decision in zip(places, answers, strict=True):
                known[place] = decision
        return [decision for decision in known if decision is not None]

    async def _ask_found(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        rules: list[Rule],
        keys: list[bytes],
        costs: list[int],
    ) -> list[Decision]:
        batch = Batch(Op.CHECK, keys, costs)
        asked_at = self._decider.time()
        verdicts = await self._decider.decide(batch, _never_vetoes, None)
        self._require_decided(batch, verdicts, asked_at)
        decisions = decisions_of(rules, verdicts.rows())
        if _UNKNOWN in verdicts.outcomes.codes:
            every = [described(descriptors) for descriptors in requests]
            await self._ask_unknown(Op.CHECK, domain, every, costs, None, decisions)
        return decisions

    async def _pass(self, domain: str, descriptors: Descriptors) -> Decision:
        """Answer a check that meets no rule, if the rules are known."""
        if not self._decider.knows_rules:
            return (await self._ask(Op.CHECK, domain, [described(descriptors)], [1], None))[0]
        self._unmatched.note(self._decider.rules, domain, described(descriptors))
        await self._turns.take()
        return UNLIMITED

    async def _settle(
        self,
        domain: str,
        request: tuple[Descriptor, ...],
        cost: int,
        decision: Decision,
        within: float | None,
    ) -> Decision:
        """Take care of a lone check that nobody decided, or whose rule its owner does not know."""
        if self._raise_on_outage and decision.source in BY_POLICY:
            raise self._outage(1)
        decisions = [decision]
        await self._ask_unknown(Op.CHECK, domain, [request], [cost], within, decisions)
        return decisions[0]

    async def _ask_unknown(
        self,
        op: Op,
        domain: str,
        requests: Sequence[tuple[Descriptor, ...]],
        costs: Sequence[int],
        within: float | None,
        decisions: list[Decision],
    ) -> None:
        """Ask once more where an owner did not know the rule, and put in what it says then."""
        unknown = [place for place, each in enumerate(decisions) if _is_unknown(each)]
        # The owner has other rules than we do: newer ones, or its file is not there yet.
        await self._decider.refresh_rules()
        again = [
            _again(self._match(domain, requests[place]), decisions[place], op) for place in unknown
        ]
        fresh, _ = await self._decide(op, again, [costs[place] for place in unknown], within)
        for place, decision in zip(unknown, fresh, strict=True):
            if op in _COUNTED_ALONE:
                decisions[place] = _joined(decisions[place], decision)
            else:
                decisions[place] = decision

    def _match(self, domain: str, request: tuple[Descriptor, ...]) -> tuple[Match | None, ...]:
        try:
            found = self._decider.rules.match(domain, request)
        except (AttributeError, TypeError):
            require_domain(domain)
            require_text(request)
            raise
        for match in found:
            if match is None:
                require_domain(domain)
                require_text(request)
                break
        return found

    async def _decide(
        self,
        op: Op,
        requests: Sequence[Sequence[Match | None]],
        costs: list[int],
        within: float | None,
        ticket: int = 0,
    ) -> tuple[list[Decision], bool]:
        """Have all counters of some requests decided at once, and answer each request.

        Tells too whether an owner did not know some rule.
        """
        self._require_open()
        if op is Op.CHARGE:
            _require_chargeable(requests)
        unmet = NO_RULE
        if not self._decider.knows_rules and any([None in request for request in requests]):
            if self._raise_on_outage:
                raise self._decider.outage() or PeerUnavailable(
                    "no member of the cluster has told its rules yet"
                )
            unmet = UNDECIDED
        question = RequestRows(op, requests, costs, unmet, ticket)
        batch = question.batch
        if not batch.keys:
            await self._turns.take()
            return question.read(Results(Outcomes(), [])), False
        if op is Op.CHECK and self._near is not None:
            known = self._near.verdicts(batch)
            if known is not None:
                await self._turns.take()
                return question.read(known), False
        asked_at = self._decider.time() if len(batch) > 1 else 0.0
        verdicts = await self._decider.decide(batch, question.vetoes, within)
        self._require_decided(batch, verdicts, asked_at)
        decisions = question.read(verdicts)
        if op is Op.CHECK and len(batch) > 1:
            undue = question.undue(decisions, verdicts)
            if undue:
                self._decider.refund(batch, undue, verdicts, asked_at)
        return decisions, Code.UNKNOWN_RULE in verdicts.outcomes.codes

    def _require_decided(self, batch: Batch, verdicts: Results, asked_at: float) -> None:
        """Raise, after giving all back, when we may not ask or must not do without a member."""
        refusal: RingfenceError | None = verdicts.refusal
        is_outage = self._raise_on_outage and not _BY_POLICY.isdisjoint(verdicts.sources)
        if refusal is None and not is_outage:
            return
        if batch.op is Op.CHECK:
            every = charged(verdicts, range(len(batch)))
            self._decider.refund(batch, every, verdicts, asked_at)
        raise refusal or self._outage(len(batch))

    def _outage(self, checks: int) -> RingfenceError:
        return self._decider.outage() or PeerUnavailable(
            f"no member of the cluster decided {checks} check(s) in time"
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConfigError(
                "the client is closed; use the limiter inside of the block that opened it"
            )

    async def _undo(
        self, domain: str, descriptors: Descriptors, cost: int, decision: Decision
    ) -> None:
        """Give back all that an allowed check was charged."""
        await self.release(decision)
        matches = self._match(domain, described(descriptors))
        spent = [
            match if status.allowed and not status.over_shadow and not _holds(match) else None
            for match, status in zip(matches, decision.statuses, strict=True)
        ]
        await self._decide(Op.REFUND, [spent], [cost], None)

    async def _undo_limit(
        self, limit: str | Limit, key: tuple[str, ...], cost: int, decision: Decision
    ) -> None:
        if decision.leases is not None:
            await self.release(decision)
        else:
            await self.refund_limit(limit, *key, cost=cost)


def _column(costs: int | Sequence[int], count: int) -> list[int]:
    """One cost for each of `count` requests. Raises `ConfigError`."""
    if isinstance(costs, int):
        return [checked_cost(costs)] * count
    column = [checked_cost(cost) for cost in costs]
    if len(column) != count:
        raise ConfigError(
            f"{count} requests but {len(column)} costs; give one cost for all, or one per request"
        )
    return column


def _is_unknown(decision: Decision) -> bool:
    return any([status.is_unknown for status in decision.statuses])


def _again(found: Sequence[Match | None], before: Decision, op: Op) -> list[Match | None]:
    """What to ask once more, with limits that travel along for owners that do not have the rules.

    A check with an unknown rule charged nothing, so all of it is asked again; of a charge or refund
    only what was unknown, since the rest was counted.
    """
    return [
        Match(_portable(match.rule), match.key, match.metric, match.cost)
        if match is not None and (op not in _COUNTED_ALONE or status.is_unknown)
        else None
        for match, status in zip(found, before.statuses, strict=True)
    ]


def _portable(rule: Rule) -> Rule:
    """Have the limit come with the check, if nodes take such a limit."""
    if rule.limit is not None and rule.limit.slots > MAX_CARRIED_SLOTS:
        return rule
    return rule.as_carried()


def _joined(before: Decision, after: Decision) -> Decision:
    """Put what was unknown before in its place."""
    return decide(
        [
            new if old.is_unknown else old
            for old, new in zip(before.statuses, after.statuses, strict=True)
        ]
    )


def _require_chargeable(requests: Sequence[Sequence[Match | None]]) -> None:
    """Raise `ConfigError` where slots in flight would be charged."""
    for request in requests:
        for match in request:
            if match is not None and _holds(match):
                rule = match.rule
                got = f"rule {place_of(rule.domain, rule.path)!r}" if rule.domain else "a Limit"
                raise ConfigError(
                    f"charge needs limits other than concurrency, got {got} with slots; leave "
                    "its descriptor out, and use hold or release for slots"
                )


def _holds(match: Match | None) -> bool:
    """Whether what was charged is a place to be released, instead of units to be refunded."""
    return match is not None and has_slots(match.rule)


def _never_vetoes(index: int) -> bool:
    return False
