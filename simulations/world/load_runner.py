"""Requests of the clients in a run: sends them and records every answer.

Each load of the scenario runs twice: together with the faults, and after the calm without faults.
"""

from dataclasses import replace
from random import Random

from ringfence import runtime
from ringfence.client.decision import Decision, Status
from ringfence.wire import Source
from simulations.judging.ledger import Answered, Ledger
from simulations.judging.slots import HeldSlot, HoldLedger
from simulations.scenarios.loads import Arrival, arrivals
from simulations.scenarios.log_loads import load_arrivals
from simulations.scenarios.scenario import CHARGED, Holds, Load, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.hosts import Hosts

__all__ = ["DOMAIN", "LoadRunner", "rule_names"]

DOMAIN = "sim"
_REFUND_S = 0.1
"""Seconds in which other owners refund a group that one owner denied."""
_BY_MEMBER = (Source.OWNER, Source.STANDBY)


class LoadRunner:
    """Sender of all requests of a run."""

    def __init__(self, scenario: Scenario, seed: int, hosts: Hosts) -> None:
        self.ledger = Ledger()
        self.held = HoldLedger()
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
                else:
                    tasks.start_soon(self._check, load, arrival, chance)

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
            HeldSlot(asked_at, answered_at, where, key, wait, is_held, until, hosts.now),
        )
        hosts.note(
            f"client-{client}", f"{holds.rule}={key} held {is_held} {answered_at:.6f} {until:.6f}"
        )

    async def _check(self, load: Load, arrival: Arrival, random: Random) -> None:
        hosts, ledger, key, cost = self._hosts, self.ledger, arrival.key, arrival.cost
        caller = hosts.clients[arrival.client]
        asked_at = hosts.now
        names = rule_names(load)
        number = ledger.ask(load.rule, key, asked_at)
        decision = await caller.limiter.check(DOMAIN, [{name: key} for name in names], cost)
        ledger.answered(number)
        for name, status in zip(names, decision.statuses, strict=True):
            row = self._row(asked_at, arrival, status)
            if row.allowed and not decision.allowed:
                ledger.add_refunded(name, replace(row, refund_done_at=row.answered_at + _REFUND_S))
            elif not (
                row.allowed and status.source in _BY_MEMBER and random.random() < load.refunds
            ):
                ledger.add(name, row)
            else:
                refunded = await caller.limiter.refund(DOMAIN, {name: key}, cost)
                if refunded.source in _BY_MEMBER:
                    row = replace(row, refund_done_at=hosts.now)
                ledger.add_refunded(name, row)
        verdict = "allowed" if decision.allowed else "denied"
        self._note(load, arrival, f"{verdict} {decision.remaining}", decision)

    async def _peek(self, load: Load, arrival: Arrival) -> None:
        ledger, key = self.ledger, arrival.key
        caller = self._hosts.clients[arrival.client]
        asked_at = self._hosts.now
        number = ledger.ask(load.rule, key, asked_at)
        decision = await caller.limiter.peek(DOMAIN, {load.rule: key})
        ledger.answered(number)
        # A peek answers for a check of cost 1.
        row = self._row(asked_at, replace(arrival, cost=1), decision.statuses[0])
        ledger.add(load.rule, replace(row, is_uncounted=True))
        verdict = "allowed" if decision.allowed else "denied"
        self._note(load, arrival, f"peek {verdict} {decision.remaining}", decision)

    async def _charge(self, load: Load, arrival: Arrival) -> None:
        ledger, key = self.ledger, arrival.key
        caller = self._hosts.clients[arrival.client]
        asked_at = self._hosts.now
        number = ledger.ask(load.rule, key, asked_at)
        decision = await caller.limiter.charge(DOMAIN, {load.rule: key}, arrival.cost)
        ledger.answered(number)
        row = self._row(asked_at, arrival, decision.statuses[0])
        ledger.add(load.rule, replace(row, allowed=True, retry_after=None, is_charge=True))
        verdict = "within" if decision.allowed else "overdrawn"
        self._note(load, arrival, f"charged {verdict}", decision)

    def _row(self, asked_at: float, arrival: Arrival, status: Status) -> Answered:
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
            over_soft=status.over_soft,
            delay=status.delay,
            remaining=status.remaining,
        )

    def _note(self, load: Load, arrival: Arrival, what: str, decision: Decision) -> None:
        what = f"{load.rule}={arrival.key} {arrival.cost} {what} {decision.source.name}"
        self._hosts.note(f"client-{arrival.client}", what)


def rule_names(load: Load) -> list[str]:
    """Return the descriptor keys of a load's checks, in order."""
    return [load.rule, *(load.also.split(",") if load.also else [])]
