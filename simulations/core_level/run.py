"""One run at core level, from a scenario and a seed to its outcome.

The same order of things as at node level, on one heap: the load begins on a cluster that stands,
faults come and go, everything is well for a while, then counters are read and judged.
"""

import gc
from collections.abc import Iterator
from math import inf
from random import Random
from time import perf_counter

from ringfence.rules import Descriptor, Rule
from ringfence.wire import Batch, Op, Results, Source
from simulations.core_level.watch import detection_bound
from simulations.core_level.world import CoreWorld, drive
from simulations.judging.checking import check
from simulations.judging.coverage import marks_of
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.judging.slots import HeldSlot, HoldLedger
from simulations.node_level.observer import Observer
from simulations.node_level.run import DOMAIN, Progress, rules_of
from simulations.reporting.events import Events
from simulations.reporting.figures import figures_of
from simulations.reporting.outcome import Outcome, Violation
from simulations.scenarios.faults import apply
from simulations.scenarios.loads import Arrival, arrivals
from simulations.scenarios.log_loads import arrivals_of
from simulations.scenarios.scenario import CHARGED, Fault, Holds, Load, Scenario
from simulations.scenarios.seeds import stream

__all__ = ["simulate_cores"]

_NS = 1_000_000_000
_CLIENTS_PER_DATACENTER = 2
_MOST_READ = 300
_PRINTS = 40
"""How often progress is told."""


def simulate_cores(
    scenario: Scenario, seed: int, command: str, progress: Progress = lambda part: None
) -> Outcome:
    """Run a scenario with cores alone. Raises `ValueError` for faults or loads that are none."""
    for fault in scenario.faults:
        check(fault)
    outcome = Outcome(scenario, seed, command, faults=scenario.faults)
    began = perf_counter()
    was_enabled = gc.isenabled()
    gc.disable()  # Most of what there is lives to the end, and is large.
    try:
        _Run(scenario, seed, outcome, progress).run()
    finally:
        if was_enabled:
            gc.enable()
    outcome.real_s = perf_counter() - began
    return outcome


class _Run:
    def __init__(self, scenario: Scenario, seed: int, outcome: Outcome, progress: Progress) -> None:
        self._scenario = scenario
        self._seed = seed
        self._outcome = outcome
        self._progress = progress
        self._events = Events()
        self._ledger = Ledger()
        self._held = HoldLedger()
        self._holding = 0
        """Callers that want or hold a slot."""
        self._asked = 0
        self._known_faults = () if scenario.is_blind else scenario.faults
        self._world = CoreWorld(scenario, seed, self._events, self._known_faults)
        self._agenda = self._world.agenda
        self._observer = Observer(self._world, self._ledger)

    def run(self) -> None:
        world, scenario = self._world, self._scenario
        world.found()
        for datacenter in world.datacenters:
            for _ in range(_CLIENTS_PER_DATACENTER):
                world.connect(datacenter)
        self._look()
        for number, load in enumerate(scenario.loads):
            random = stream(self._seed, "load", number)
            coming = arrivals_of(load, scenario.seconds, len(world.clients), random)
            self._plan(load, coming, stream(self._seed, "charged", number))
        for number, holds in enumerate(scenario.holds):
            random = stream(self._seed, "holds", number)
            load = Load(per_second=holds.per_second, keys=holds.keys)
            for arrival in arrivals(load, scenario.seconds, len(world.clients), random):
                held_s = random.uniform(0.0, holds.longest_s)
                self._agenda.at(round(arrival.at * _NS), self._hold, holds, arrival, held_s)
        for fault in scenario.faults:
            self._agenda.at(round(fault.at * _NS), self._fault, fault, False)
        end = scenario.seconds + scenario.calm
        for step in range(1, _PRINTS + 1):
            self._agenda.run(round(end * step / _PRINTS * _NS))
            self._progress(step / (_PRINTS + 1))
        self._close(self._read())

    # -- what happens --------------------------------------------------------------------------

    def _look(self) -> None:
        self._observer.look()
        self._world.watch.look()
        self._agenda.at(self._agenda.now + _NS, self._look)

    def _plan(self, load: Load, coming: Iterator[Arrival], charged: Random) -> None:
        """Put the next arrival on the heap, and with it the one after."""
        arrival = next(coming, None)
        if arrival is not None:
            at = round(arrival.at * _NS)
            self._agenda.at(at, self._arrive, load, coming, arrival, charged)

    def _arrive(
        self, load: Load, coming: Iterator[Arrival], arrival: Arrival, charged: Random
    ) -> None:
        is_charge = charged.random() < load.charges
        cost = charged.choice(CHARGED) if is_charge else arrival.cost
        self._plan(load, coming, charged)
        world = self._world
        found = world.rules.match(DOMAIN, [Descriptor(((load.rule, arrival.key),))])[0]
        if found is None:
            raise ValueError(f"no rule for {load.rule}")
        asked = world.now
        self._asked += 1
        client = world.clients[arrival.client]

        def done(verdicts: Results) -> None:
            outcome, source = verdicts.outcomes.row(0), Source(verdicts.sources[0])
            answer = Answered(
                asked,
                world.now,
                client.datacenter,
                arrival.key,
                cost,
                is_charge or outcome.is_admitted,
                source,
                None if is_charge else outcome.retry_after_ns / _NS or None,
                is_charge=is_charge,
            )
            self._ledger.add(load.rule, answer)
            verdict = "allowed" if outcome.is_admitted else "denied"
            what = f"{load.rule}={arrival.key} {cost} {verdict}{' charge' * is_charge}"
            world.note(client.name, f"{what} {outcome.remaining} {source.name}")

        op = Op.CHARGE if is_charge else Op.CHECK
        client.check(Batch(op, [found.key], [cost]), done)

    def _hold(self, holds: Holds, arrival: Arrival, seconds: float) -> None:
        """Have a client wait for a slot, hold it and release it."""
        world = self._world
        found = world.rules.match(DOMAIN, [Descriptor(((holds.rule, arrival.key),))])[0]
        assert found is not None
        asked, client = world.now, world.clients[arrival.client]
        self._holding += 1

        def done(told: float, until: float) -> None:
            self._holding -= 1
            is_held, where = told < inf, client.datacenter
            told = told if is_held else until
            held = HeldSlot(
                *(asked, told, where, arrival.key, holds.max_wait, is_held, until, world.now)
            )
            self._held.add(holds.rule, held)
            world.note(client.name, f"{holds.rule}={arrival.key} held {is_held} {until:.6f}")

        client.hold(found.key, holds.max_wait, seconds, done)

    def _fault(self, fault: Fault, is_end: bool) -> None:
        self._world.note("fault", f"{'ends' if is_end else 'begins'}: {fault}")
        drive(apply(self._world, fault, is_end=is_end))
        if fault.until is not None and not is_end:
            self._agenda.at(round(fault.until * _NS), self._fault, fault, True)

    # -- what has come of it -------------------------------------------------------------------

    def _read(self) -> Final:
        """Read what is counted where, as one who sees everything."""
        final = Final(problems=self._world.watch.problems(), bugs=self._world.network.problems)
        asked = {load.rule: self._ledger.keys(load.rule) for load in self._scenario.loads}
        asked |= {rule: self._held.keys(rule) for rule in self._held.rules()}
        for rule, keys in asked.items():
            for key in keys[:_MOST_READ]:
                match = self._world.rules.match(DOMAIN, [Descriptor(((rule, key),))])[0]
                if match is not None:
                    for datacenter, used in self._used(match.key):
                        final.used[datacenter, rule, key] = used
        return final

    def _used(self, key: bytes) -> Iterator[tuple[str, int]]:
        for datacenter in self._world.datacenters:
            for node in self._world.nodes():
                if node.counts(key) and node.membership.me.datacenter == datacenter:
                    yield datacenter, node.engine.used(key, node.clock.now())
                    break

    def _close(self, final: Final) -> None:
        outcome, world, watch = self._outcome, self._world, self._world.watch
        counters = world.counters()
        rules: dict[str, Rule] = rules_of(world.rules.rules(), self._scenario.loads)
        late_s = self._observer.stalest_ms / 1000
        judge = Invariants(rules, self._scenario, late_s)
        judged = judge.violations(self._ledger, final, world.now)
        held = {rule.path[-1][0]: rule for rule in world.rules.rules()}
        judged += judge.slot_violations(self._held, held, final, world.now)
        if self._holding:
            text = f"{self._holding} callers still wait for a slot or hold one"
            judged.append(Violation("deadline", world.now, text))
        outcome.violations = [*watch.violations, *judged]
        silent = self._asked - len(self._ledger.answers)
        if silent:
            text = f"{silent} checks were never answered"
            outcome.violations.append(Violation("deadline", world.now, text))
        outcome.virtual_s = world.now
        outcome.event_hash = self._events.digest
        outcome.marks = marks_of(counters)
        outcome.series = self._observer.series(rules, judge)
        outcome.figures = figures_of(self._ledger, judge) | {
            "staleness_worst_ms": self._observer.stalest_ms,
            "events": self._events.count,
            "deaths": counters["gossip_deaths"],
            "false_deaths": counters["false_deaths"],
            "detection_worst_s": max(watch.detections, default=0.0),
            "detection_bound_s": detection_bound(len(world.in_datacenter("dc1"))),
            "converged_at_s": watch.converged_at,
            "datagrams_per_node_s": world.network.datagrams / len(world.names()) / world.now,
            "pending_most": watch.most_pending,
            "heap_events": self._agenda.count,
        }
