"""Requests of the clients in a run: sends them and records every answer.

Each load of the scenario runs twice: together with the faults, and after the calm without faults.
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import zip_longest
from math import inf
from random import Random

from msgspec.structs import replace

from ringfence import runtime
from ringfence.client.decision import NO_RULE, Decision, Status, decide
from ringfence.client.limiter import Limiter
from ringfence.client.reservation import Reservation
from ringfence.integrations._core.asgi_request import AsgiRequest
from ringfence.integrations._core.effects import Charge, Check, Effect, Refund, RuleCheckSpec
from ringfence.integrations._core.policy import Policy, settle
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.runner import OutageTracker, performer, run_steps
from ringfence.integrations._core.settings import Response, Settings
from ringfence.wire import BY_POLICY, Source
from simulations.judging.ledger import Answered, Ledger
from simulations.judging.pairs import Usage, features_of_rule
from simulations.judging.slots import HeldSlot, HoldLedger
from simulations.scenarios.loads import Arrival, arrivals
from simulations.scenarios.log_loads import load_arrivals
from simulations.scenarios.scenario import CHARGED, RESERVED, Holds, Load, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.hosts import Hosts
from simulations.world.named_rules import DOMAIN, NamedRules, descriptors_of
from simulations.world.operating.statistics import Tally

__all__ = ["LoadRunner"]

_REFUND_S = 0.1
"""Seconds in which other owners refund a group that one owner denied."""
_BY_MEMBER = (Source.OWNER, Source.STANDBY)
_LONGEST_PROBE_S = 6.0
"""Longest retry time after which a denied check is repeated."""
_EARLY = 0.9
"""Part of the retry time after which a check is repeated too early."""
_LATE_S = 0.02
"""Seconds after the retry time at which a check is repeated again."""
_QUICK = 0.05
"""Longest duration of a check, as a part of its retry time, to repeat the check too early."""


class LoadRunner:
    """Sender of all requests of a run."""

    def __init__(self, scenario: Scenario, seed: int, hosts: Hosts, rules: NamedRules) -> None:
        self.ledger = Ledger()
        self.held = HoldLedger()
        self.usage = Usage()
        self.tally: Tally | None = None
        """Answers since the statistics of the nodes count; None before."""
        self._rules = rules
        self._features = {name: features_of_rule(rule) for name, rule in rules.limited().items()}
        self._scenario = scenario
        self._seed = seed
        self._hosts = hosts

    async def run(self, begin: float, seconds: float) -> None:
        """Send all loads of the scenario for some seconds, from second `begin` on."""
        async with runtime.open_task_group() as tasks:
            for number in range(len(self._scenario.loads)):
                tasks.start_soon(self._load, number, begin, seconds)
            for number in range(len(self._scenario.holds)):
                tasks.start_soon(self._hold_slots, number, begin, seconds)

    async def _load(self, number: int, begin: float, seconds: float) -> None:
        load, hosts = self._scenario.loads[number], self._hosts
        random = self._stream("load", number, begin)
        chance = self._stream("refunds", number, begin)
        charged = self._stream("charged", number, begin)
        costs = self._stream("costs", number, begin)
        reserved = self._stream("reserved", number, begin)
        async with runtime.open_task_group() as tasks:
            for arrival in load_arrivals(load, seconds, len(hosts.clients), random):
                await self._sleep_until(begin + arrival.at)
                if load.costs:
                    arrival = replace(arrival, cost=costs.choice(load.costs))  # noqa: PLW2901
                if charged.random() < load.charges:
                    arrival = replace(arrival, cost=charged.choice(CHARGED))  # noqa: PLW2901
                    tasks.start_soon(self._charge, load, arrival)
                elif load.peeks and costs.random() < load.peeks:
                    tasks.start_soon(self._peek, load, arrival)
                elif load.batch > 1:
                    tasks.start_soon(self._check_many, load, arrival)
                elif load.reservations and reserved.random() < load.reservations:
                    estimate, real = reserved.choice(RESERVED)
                    arrival = replace(arrival, cost=estimate)  # noqa: PLW2901
                    held_s = reserved.uniform(0.0, load.settle_after_s)
                    tasks.start_soon(self._reserve, load, arrival, real, held_s)
                else:
                    until = begin + seconds
                    tasks.start_soon(self._check_and_probe, load, arrival, chance, until)

    async def _hold_slots(self, number: int, begin: float, seconds: float) -> None:
        holds, hosts = self._scenario.holds[number], self._hosts
        random = self._stream("holds", number, begin)
        load = Load(per_second=holds.per_second, keys=holds.keys)
        if begin:  # All slots must be free at the final reading.
            last = self._scenario.read_at - holds.max_wait - 2 * holds.longest_s
            seconds = max(0.0, min(seconds, last - begin))
        async with runtime.open_task_group() as tasks:
            for arrival in arrivals(load, seconds, len(hosts.clients), random):
                await self._sleep_until(begin + arrival.at)
                held_s = random.uniform(0.0, holds.longest_s)
                tasks.start_soon(self._hold, holds, arrival.client, arrival.key, held_s)

    def _stream(self, name: str, number: int, begin: float) -> Random:
        return stream(self._seed, name, number, *(["calm"] if begin else []))

    async def _sleep_until(self, instant: float) -> None:
        await runtime.sleep(self._hosts.began + instant - runtime.current_time())

    async def _hold(self, holds: Holds, client: int, key: str, seconds: float) -> None:
        hosts = self._hosts
        caller = hosts.clients[client]
        asked_at = hosts.now
        hosts_used = ["processes"] if self._scenario.processes > 1 else []
        self.usage.add(frozenset(["concurrency", *hosts_used]), caller.datacenter, asked_at)
        async with caller.limiter.hold(
            DOMAIN, {holds.rule: key}, max_wait=holds.max_wait, raise_on_denied=False
        ) as decision:
            answered_at = hosts.now
            if decision:
                await runtime.sleep(seconds)
            until = hosts.now
        is_held = decision.allowed and decision.slots is not None
        where, wait = caller.datacenter, holds.max_wait
        self.held.add(
            holds.rule,
            HeldSlot(
                *(asked_at, answered_at, where, key, wait, is_held, until, hosts.now),
                *(caller.address[0], decision.source),
            ),
        )
        hosts.note(
            f"client-{client}", f"{holds.rule}={key} held {is_held} {answered_at:.6f} {until:.6f}"
        )

    async def _check_and_probe(
        self, load: Load, arrival: Arrival, random: Random, until: float
    ) -> None:
        """Check; repeat some denied checks just before and just after their retry time."""
        asked_at = self._hosts.now
        decision = await self._check(load, arrival, random)
        answered_at, wait = self._hosts.now, decision.retry_after
        if decision.allowed or not wait or not load.probes or random.random() >= load.probes:
            return
        late_at = answered_at + wait + _LATE_S
        if wait > _LONGEST_PROBE_S or late_at > until:
            return
        if answered_at - asked_at < _QUICK * wait:
            await self._sleep_until(asked_at + _EARLY * wait)
            await self._check(load, arrival, random, probe="early")
        await self._sleep_until(late_at)
        await self._check(load, arrival, random, probe="late")

    async def _check(
        self, load: Load, arrival: Arrival, random: Random, probe: str = ""
    ) -> Decision:
        hosts, ledger, key, cost = self._hosts, self.ledger, arrival.key, arrival.cost
        limiter = self._limiter(arrival)
        asked_at = hosts.now
        kinds = [name for name, is_used in (("probe", probe), ("cost", cost > 1)) if is_used]
        self._use(load, arrival, *(kinds or [""]))
        number = ledger.ask(load.rule, key, asked_at)
        if load.limit and not load.overrides:
            decision = await limiter.check_limit(load.limit, key, cost=cost)
        elif load.limit or load.also:
            decision = await limiter.check(DOMAIN, descriptors_of(load, key), cost)
        else:
            decision = await limiter.check(DOMAIN, {load.rule: key}, cost)
        ledger.answered(number)
        self._count(load, key, decision)
        rows = [self._row(asked_at, arrival, status, probe) for status in decision.statuses]
        for name, row in zip(load.names, rows, strict=True):
            if row.allowed and not decision.allowed:
                ledger.add_refunded(name, _undone(row))
            elif _is_held(row) and random.random() < load.refunds:
                if load.refund_after_s:
                    await runtime.sleep(random.uniform(0.0, load.refund_after_s))
                if load.aged_refunds:
                    row = dataclasses.replace(row, refund_age=hosts.now - asked_at)  # noqa: PLW2901
                ledger.add_refunded(name, await self._refunded(load, name, arrival, row))
            else:
                ledger.add(name, row)
        verdict = "allowed" if decision.allowed else "denied"
        self._note(load, arrival, f"{verdict} {decision.remaining}", decision)
        return decision

    async def _check_many(self, load: Load, arrival: Arrival) -> None:
        """Send several checks in one call: of the drawn key and the keys after it."""
        ledger, asked_at = self.ledger, self._hosts.now
        first = int(arrival.key.removeprefix("k"))
        keys = [f"k{(first + each) % load.keys}" for each in range(load.batch)]
        numbers = [ledger.ask(load.rule, key, asked_at) for key in keys]
        self._use(load, arrival, "batch")
        decisions = await self._limiter(arrival).check_many(
            DOMAIN, [{load.rule: key} for key in keys], arrival.cost
        )
        for number, key, decision in zip(numbers, keys, decisions, strict=True):
            ledger.answered(number)
            self._count(load, key, decision)
            each = replace(arrival, key=key)
            ledger.add(load.rule, self._row(asked_at, each, decision.statuses[0]))
        allowed = sum(decision.allowed for decision in decisions)
        self._note(load, arrival, f"{allowed} of {load.batch} allowed", decisions[0])

    async def _reserve(self, load: Load, arrival: Arrival, real: int, held_s: float) -> None:
        """Reserve the cost of an arrival for a block of `held_s` seconds, whose cost is `real`."""
        ledger, key, limiter, cost = self.ledger, arrival.key, self._limiter(arrival), arrival.cost
        asked_at = self._hosts.now
        self._use(load, arrival, "reservation", "cost" if cost > 1 else "")
        number = ledger.ask(load.rule, key, asked_at)
        block: AbstractAsyncContextManager[Reservation]
        if load.cost_after:
            block = _served_by_middleware(limiter, lambda: self._hosts.now, load, key, cost)
        elif load.limit and not load.overrides:
            block = limiter.reserve_limit(load.limit, key, cost=cost)
        else:
            block = limiter.reserve(DOMAIN, descriptors_of(load, key), cost)
        async with block as reservation:
            ledger.answered(number)
            decision = reservation.decision
            self._count(load, key, decision)
            rows = [self._row(asked_at, arrival, status) for status in decision.statuses]
            for name, row in zip(load.names, rows, strict=True):
                if row.allowed and not decision.allowed:
                    ledger.add_refunded(name, _undone(row))
                elif _is_held(row):
                    kept = dataclasses.replace(row, cost=min(real, cost), estimate=cost)
                    ledger.add(name, kept)
                else:
                    ledger.add(name, row)
            if decision.allowed:
                if held_s:
                    await runtime.sleep(held_s)
                reservation.cost = real
            settled_at = self._hosts.now
            number = ledger.ask(load.rule, key, settled_at)
        ledger.answered(number)
        if decision.allowed:
            self._settle(load, arrival, real, rows, settled_at, reservation.settlement)
        verdict = f"of {real} allowed" if decision.allowed else "denied"
        self._note(load, arrival, f"reservation {verdict}", decision)

    def _settle(
        self,
        load: Load,
        arrival: Arrival,
        real: int,
        rows: Sequence[Answered],
        settled_at: float,
        settlement: Decision | None,
    ) -> None:
        """Record the charges and refunds after which each counter of a reservation has its real
        cost.

        Without a settlement in time, no member has confirmed them. A refund also adds a charge of
        0 units, so that the judge checks its answer.
        """
        is_bounded = self._scenario.bounded_refunds
        refund_kinds = "refund", "aged_refund", "bounded_refund" if is_bounded else ""
        if real != arrival.cost:
            kinds = ["charge"] if real > arrival.cost else refund_kinds
            self._use(load, arrival, "reservation", *kinds)
        statuses = () if settlement is None else settlement.statuses
        for name, row, status in zip_longest(load.names, rows, statuses):
            more = real - (0 if row.source in BY_POLICY else arrival.cost)
            if more > 0 or (more < 0 and _is_held(row)):
                settled = Answered(
                    *(settled_at, self._hosts.now, row.datacenter, row.key, max(0, more)),
                    allowed=True,
                    source=Source.POLICY if status is None else status.source,
                    client=row.client,
                    is_charge=True,
                )
                self.ledger.add(name, settled)
                if more > 0 and status is not None and self.tally is not None:
                    self.tally.add_charge(status)
                elif more < 0:
                    is_done = settled.source in _BY_MEMBER
                    refund = dataclasses.replace(
                        row,
                        cost=-more,
                        refund_age=settled_at - row.asked_at,
                        refund_done_at=settled.answered_at if is_done else inf,
                    )
                    self.ledger.add_refunded(name, refund)

    async def _refunded(self, load: Load, name: str, arrival: Arrival, row: Answered) -> Answered:
        """Refund the cost of one counter of an admitted check, and return its row with the time."""
        is_bounded = self._scenario.bounded_refunds
        kinds = ("bounded_refund" if is_bounded else "", "aged_refund" if row.refund_age else "")
        self._use(load, arrival, "refund", *kinds)
        decision = await self._refund(load, name, arrival, row.refund_age)
        if decision.source not in _BY_MEMBER:
            return row
        return dataclasses.replace(row, refund_done_at=self._hosts.now)

    async def _refund(self, load: Load, name: str, arrival: Arrival, age: float) -> Decision:
        """Refund the cost of one counter of an admitted check; age 0 stands for the newest
        units."""
        limiter, key, cost = self._limiter(arrival), arrival.key, arrival.cost
        if load.limit and not load.overrides:
            return await limiter.refund_limit(load.limit, key, cost=cost, age=age)
        [descriptor] = [
            each for each in descriptors_of(load, key) if each.entries == ((name, key),)
        ]
        return await limiter.refund(DOMAIN, [descriptor], cost, age=age)

    def _limiter(self, arrival: Arrival) -> Limiter:
        return self._hosts.clients[arrival.client].limiter

    async def _peek(self, load: Load, arrival: Arrival) -> None:
        ledger, key, limiter = self.ledger, arrival.key, self._limiter(arrival)
        asked_at = self._hosts.now
        self._use(load, arrival, "peek")
        number = ledger.ask(load.rule, key, asked_at)
        if load.limit and not load.overrides:
            decision = await limiter.peek_limit(load.limit, key)
        else:
            decision = await limiter.peek(DOMAIN, descriptors_of(load, key)[:1])
        ledger.answered(number)
        self._count(load, key, decision)
        # A peek answers for a check of cost 1.
        row = self._row(asked_at, replace(arrival, cost=1), decision.statuses[0])
        ledger.add(load.rule, dataclasses.replace(row, is_uncounted=True))
        verdict = "allowed" if decision.allowed else "denied"
        self._note(load, arrival, f"peek {verdict} {decision.remaining}", decision)

    async def _charge(self, load: Load, arrival: Arrival) -> None:
        ledger, key, limiter = self.ledger, arrival.key, self._limiter(arrival)
        asked_at = self._hosts.now
        self._use(load, arrival, "charge")
        number = ledger.ask(load.rule, key, asked_at)
        if load.limit and not load.overrides:
            decision = await limiter.charge_limit(load.limit, key, cost=arrival.cost)
        else:
            target = descriptors_of(load, key)[:1]
            decision = await limiter.charge(DOMAIN, target, arrival.cost)
        ledger.answered(number)
        if self.tally is not None:
            self.tally.add_charge(decision.statuses[0])
        row = self._row(asked_at, arrival, decision.statuses[0])
        ledger.add(
            load.rule, dataclasses.replace(row, allowed=True, retry_after=None, is_charge=True)
        )
        verdict = "within" if decision.allowed else "overdrawn"
        self._note(load, arrival, f"charged {verdict}", decision)

    def _use(self, load: Load, arrival: Arrival, *kinds: str) -> None:
        """Record the features that a request uses."""
        where, key = self._hosts.clients[arrival.client].datacenter, arrival.key
        names = load.names[: 1 if kinds[0] in ("peek", "charge") else None]
        carried = [name for name in names if name in load.limits]
        found = {
            *kinds,
            "group" if len(names) > 1 else "",
            "hot_key" if key == "k0" and load.shape in ("hot", "zipf") else "",
            "new_key" if key.startswith("x") else "",
            "processes" if self._scenario.processes > 1 else "",
        }
        for name in names:
            features = self._features[name] | found
            if name in carried:
                features |= {"override" if load.overrides else "adhoc"}
                features |= {"several_overrides"} if len(carried) > 1 else frozenset()
            self.usage.add(features - {""}, where, self._hosts.now)

    def _row(self, asked_at: float, arrival: Arrival, status: Status, probe: str = "") -> Answered:
        """Return what one counter answered. A shadow rule over its limit counts as a denial,
        since it counts no units."""
        caller = self._hosts.clients[arrival.client]
        return Answered(
            asked_at,
            self._hosts.now,
            caller.datacenter,
            arrival.key,
            arrival.cost,
            status.allowed and not status.over_shadow,
            status.source,
            None if status.over_shadow else status.retry_after,
            client=caller.address[0],
            probe=probe,
            over_soft=status.over_soft,
            delay=status.delay,
            remaining=status.remaining,
        )

    def _count(self, load: Load, key: str, decision: Decision) -> None:
        """Count the answers of all counters of a check, as the statistics of nodes do."""
        if self.tally is None:
            return
        for name, status in zip(load.names, decision.statuses, strict=False):
            label = self._rules.label(name)
            match = self._rules.match(name, key)
            if match is not None and label not in self._rules.repeated:
                self.tally.add(label, match.key.hex(), status, is_admitted=decision.allowed)

    def _note(self, load: Load, arrival: Arrival, what: str, decision: Decision) -> None:
        what = f"{load.rule}={arrival.key} {arrival.cost} {what} {decision.source.name}"
        self._hosts.note(f"client-{arrival.client}", what)


@asynccontextmanager
async def _served_by_middleware(
    limiter: Limiter, clock: Callable[[], float], load: Load, key: str, cost: int
) -> AsyncIterator[Reservation]:
    """Serve a request in the block, behind a middleware whose `cost_after` returns the cost of the
    reservation."""
    settings = Settings(
        domain=DOMAIN,
        keys=[{name: lambda _: key} for name in load.names],
        cost=cost,
        cost_after=lambda request, response: reservation.cost,
    )
    policy, outages, call = Policy(settings, clock=clock), OutageTracker(clock), performer(limiter)
    statuses: dict[str, Status] = {}
    """Last answers by name of the counter."""

    async def perform(effect: Effect) -> Decision | None:
        if not isinstance(effect, Check | Charge | Refund):
            return None  # The simulated block replaces this wait.
        decision = await call(effect)
        assert decision is not None
        assert isinstance(effect.ask, RuleCheckSpec)
        asked = effect.ask.descriptors
        for entries, status in zip(
            [asked] if isinstance(asked, dict) else asked, decision.statuses, strict=True
        ):
            if status.rule is not None:
                statuses.update(dict.fromkeys(entries, status))
        return decision

    request = AsgiRequest({"type": "http", "method": "GET", "path": "/", "headers": []})
    state = RequestState(request)
    await run_steps(policy.admit(state, policy), perform, outages)
    [decision] = state.decisions
    reservation = Reservation(decision, cost)
    yield reservation
    statuses.clear()
    await run_steps(settle(state, Response(200, {}), policy), perform, outages)
    if statuses:
        reservation.settlement = decide([statuses.get(name, NO_RULE) for name in load.names])


def _is_held(row: Answered) -> bool:
    """Return whether a member has counted the units of a check, so that a refund removes them."""
    return row.allowed and row.source in _BY_MEMBER


def _undone(row: Answered) -> Answered:
    """Return the row of a counter that allowed a check which another counter denied."""
    done_at = row.answered_at + _REFUND_S
    return dataclasses.replace(row, refund_done_at=done_at, in_denied_group=True)
