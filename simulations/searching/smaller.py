"""Smaller variants of a scenario, for shrinking: fewer faults, hosts, loads, checks and units.

Each pass is a generator. It yields a candidate and receives whether the candidate still fails.
Later candidates are variants of the last accepted one.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias, TypeVar

import yaml
from msgspec.structs import replace

from simulations.scenarios.listed_loads import LISTED, format_checks, parse_checks
from simulations.scenarios.loads import Arrival
from simulations.scenarios.log_loads import load_arrivals
from simulations.scenarios.scenario import Args, Fault, Load, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.run import CLIENTS_PER_DATACENTER

__all__ = ["Pass", "event_count", "passes"]

Item = TypeVar("Item")
Pass: TypeAlias = Generator[Scenario, bool, None]
"""Generator that yields candidates and receives whether each one was accepted."""
_Rules: TypeAlias = dict[str, list[dict[str, object]]]
"""A rule file with its descriptors; other parts are strings."""
_Fewer: TypeAlias = Generator[Scenario, bool, Sequence[Item]]

_AT_THE_END = (
    *("convergence", "agreement", "lost_hits", "invented_hits", "slot_leak", "deadline"),
    *("statistics", "views", "lending", "replicas", "paused_owner", "key_rotation"),
    "commands",
)
"""Invariants about the end of a run, which hold only after enough seconds of calm."""
_SHORT_S = (0.3, 1.0, 3.0)
"""Durations of faults that are tried."""
_LEAST_SECONDS = 2.0
_CALMS_S = (5.0, 15.0)
_LIMITS = (1, 2, 3, 5)
"""Amounts of limits that are tried."""


def event_count(scenario: Scenario) -> int:
    """Return the number of events that a scenario injects: faults, checks and callers for slots."""
    seconds = scenario.seconds + scenario.calm_load
    checks = sum(
        len(parse_checks(str(load.args["checks"]))) * (2 if scenario.calm_load else 1)
        if load.shape == LISTED
        else round(load.per_second * seconds)
        for load in scenario.loads
    )
    callers = sum(round(holds.per_second * seconds) for holds in scenario.holds)
    return len(scenario.faults) + checks + callers


def passes(
    seed: int, properties: Iterable[str], places: Sequence[tuple[str, str]]
) -> tuple[Callable[[Scenario], Pass], ...]:
    """Return the passes of one shrinking, cheap and effective ones first.

    `properties` are the violated invariants, `places` are rule and key of the violations.
    """
    calms = () if set(properties) & set(_AT_THE_END) else _CALMS_S
    return (
        _fewer_faults,
        _simpler_world,
        lambda scenario: _without(scenario, scenario.loads, "loads"),
        lambda scenario: _without(scenario, scenario.holds, "holds"),
        _fewer_hosts,
        lambda scenario: _shorter_run(scenario, calms),
        lambda scenario: _listed(scenario, seed),
        lambda scenario: _only_keys(scenario, places),
        lambda scenario: _lower_limits(scenario, places),
        _fewer_checks,
        _shorter_faults,
        _fewer_targets,
        _fewer_callers,
    )


def _fewer(
    items: Sequence[Item], build: Callable[[Sequence[Item]], Scenario | None]
) -> _Fewer[Item]:
    """Remove parts of a list, large parts first, while the candidate is accepted."""
    size = len(items)
    while items and size:
        for start in range(0, len(items), size):
            rest = [*items[:start], *items[start + size :]]
            candidate = build(rest)
            if candidate is not None and (yield candidate):
                items = rest
                break
        else:
            size = 0 if size == 1 else max(1, min(size, len(items)) // 2)
    return items


def _each(candidates: Iterable[Scenario]) -> Pass:
    """Yield candidates until one is accepted."""
    for candidate in candidates:
        if (yield candidate):
            return


def _without(scenario: Scenario, items: Sequence[Load] | Sequence[object], field: str) -> Pass:
    yield from _fewer(items, lambda rest: replace(scenario, **{field: tuple(rest)}))


def _fewer_faults(scenario: Scenario) -> Pass:
    yield from _fewer(scenario.faults, lambda rest: replace(scenario, faults=tuple(rest)))


def _simpler_world(scenario: Scenario) -> Pass:
    changes: tuple[Callable[[Scenario], Scenario], ...] = (
        lambda s: replace(s, level="core"),
        lambda s: replace(s, network=replace(s.network, loss=0.0, repeats=0.0, resets=0.0)),
        lambda s: replace(s, network=replace(s.network, loss=0.0)),
        lambda s: replace(s, network=replace(s.network, repeats=0.0)),
        lambda s: replace(s, network=replace(s.network, resets=0.0)),
        lambda s: replace(s, network=replace(s.network, latency="lan")),
        lambda s: replace(s, zones=1),
        lambda s: replace(s, least_parts=1),
        lambda s: replace(s, bounded_refunds=False),
        lambda s: replace(s, calm_load=0.0),
        lambda s: replace(s, loads=tuple(replace(load, peeks=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, probes=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, costs=()) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, refunds=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, refund_after_s=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, aged_refunds=False) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, charges=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, reservations=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, settle_after_s=0.0) for load in s.loads)),
        lambda s: replace(s, loads=tuple(replace(load, cost_after=False) for load in s.loads)),
    )
    for change in changes:
        candidate = change(scenario)
        if candidate != scenario and (yield candidate):
            scenario = candidate


def _fewer_hosts(scenario: Scenario) -> Pass:
    for datacenters in range(1, scenario.datacenters):
        fewer = replace(scenario, datacenters=datacenters, loads=_folded(scenario, datacenters))
        if (yield fewer):
            scenario = fewer
            break
    for nodes in range(scenario.datacenters, scenario.nodes):
        if (yield replace(scenario, nodes=nodes)):
            return
        renamed = _renamed(scenario.faults, nodes)
        if renamed is not None and (yield replace(scenario, nodes=nodes, faults=renamed)):
            return


def _folded(scenario: Scenario, datacenters: int) -> tuple[Load, ...]:
    """Return the loads with listed checks only of the clients of fewer data centers."""
    clients = datacenters * CLIENTS_PER_DATACENTER
    return tuple(
        _with_checks(
            load,
            [
                replace(each, client=each.client % clients)
                for each in parse_checks(str(load.args["checks"]))
            ],
        )
        if load.shape == LISTED
        else load
        for load in scenario.loads
    )


def _renamed(faults: Sequence[Fault], nodes: int) -> tuple[Fault, ...] | None:
    """Return the faults with their hosts renamed to the first ones; None if that is impossible."""
    used = {
        name: None
        for fault in faults
        for argument in ("node", "from")
        for name in str(fault.args.get(argument, "")).split(",")
        if name
    }
    if len(used) > nodes or all(int(name[1:]) <= nodes for name in used):
        return None
    names = {name: f"n{number}" for number, name in enumerate(used, 1)}

    def rename(args: Args) -> Args:
        return {
            name: ",".join(names[each] for each in str(value).split(","))
            if name in ("node", "from")
            else value
            for name, value in args.items()
        }

    return tuple(replace(fault, args=rename(fault.args)) for fault in faults)


def _shorter_run(scenario: Scenario, calms: Sequence[float]) -> Pass:
    last = max([fault.until or fault.at for fault in scenario.faults], default=0.0)
    for load in scenario.loads:
        if load.shape == LISTED:
            last = max([last, *(each.at for each in parse_checks(str(load.args["checks"])))])
    least = max(_LEAST_SECONDS, float(int(last) + 2))
    for seconds in (least, (least + scenario.seconds) // 2):
        if seconds < scenario.seconds and (yield replace(scenario, seconds=seconds)):
            scenario = replace(scenario, seconds=seconds)
            break
    settled = 2 * max([load.settle_after_s for load in scenario.loads], default=0.0)
    for calm in calms:
        if settled <= calm < scenario.calm and (yield replace(scenario, calm=calm)):
            return


def _listed(scenario: Scenario, seed: int) -> Pass:
    """Replace each load by a list of its checks."""
    clients = scenario.datacenters * CLIENTS_PER_DATACENTER
    for number, load in enumerate(scenario.loads):
        if load.shape != LISTED:
            random = stream(seed, "load", number)
            checks = [*load_arrivals(load, scenario.seconds, clients, random)]
            candidate = _with_load(scenario, number, _with_checks(load, checks))
            if (yield candidate):
                scenario = candidate


def _with_load(scenario: Scenario, number: int, load: Load) -> Scenario:
    loads = [*scenario.loads]
    loads[number] = load
    return replace(scenario, loads=tuple(loads))


def _with_checks(load: Load, checks: Iterable[Arrival]) -> Load:
    usual = Load()
    return replace(
        load,
        shape=LISTED,
        per_second=usual.per_second,
        keys=usual.keys,
        cost=1,
        args={"checks": format_checks(checks)},
    )


def _checks(scenario: Scenario) -> list[tuple[int, Arrival]]:
    """Return the listed checks of all loads, in order of time, each with the number of its load."""
    found = [
        (number, check)
        for number, load in enumerate(scenario.loads)
        if load.shape == LISTED
        for check in parse_checks(str(load.args["checks"]))
    ]
    return sorted(found, key=lambda each: (each[1].at, each[0]))


def _with(scenario: Scenario, checks: Sequence[tuple[int, Arrival]]) -> Scenario:
    """Return the scenario with these listed checks; loads without checks are removed."""
    loads = [
        load
        if load.shape != LISTED
        else _with_checks(load, [check for at, check in checks if at == number])
        for number, load in enumerate(scenario.loads)
    ]
    return replace(
        scenario,
        loads=tuple(load for load in loads if load.shape != LISTED or load.args["checks"]),
    )


def _only_keys(scenario: Scenario, places: Sequence[tuple[str, str]]) -> Pass:
    """Keep only the checks of one key, or of all keys, that a violation names."""
    checks = _checks(scenario)
    for wanted in (places[:1], places):
        kept = [
            (number, check)
            for number, check in checks
            if any(
                key == check.key and rule in scenario.loads[number].names for rule, key in wanted
            )
        ]
        if kept and len(kept) < len(checks) and (yield _with(scenario, kept)):
            return


def _fewer_checks(scenario: Scenario) -> Pass:
    yield from _fewer(_checks(scenario), lambda rest: _with(scenario, rest))


def _lower_limits(scenario: Scenario, places: Sequence[tuple[str, str]]) -> Pass:
    """Remove unused rules, then lower the limits of the judged rules, with all checks or fewer."""
    rules = yaml.safe_load(scenario.rules)
    used = {name for load in scenario.loads for name in load.names}
    used |= {holds.rule for holds in scenario.holds}
    rows = [row for row in rules.get("descriptors", []) if row.get("key") in used]
    if rows and len(rows) < len(rules["descriptors"]):
        rules = {**rules, "descriptors": rows}
        if (yield _with_rules(scenario, rules)):
            scenario = _with_rules(scenario, rules)
    judged = {rule for rule, _ in places}
    for name in sorted(judged & used):
        checks = _checks(scenario)
        for amount in _LIMITS:
            before = _amount(rules, name)
            if before is None or amount >= before:
                break
            lower = _with_rules(scenario, _with_amount(rules, name, amount))
            if (yield lower):
                break
            thinned = _with(lower, checks[:: max(1, before // amount)])
            if checks and (yield thinned):
                break


def _with_rules(scenario: Scenario, rules: object) -> Scenario:
    return replace(scenario, rules=yaml.safe_dump(rules, sort_keys=False))


def _amount(rules: _Rules, name: str) -> int | None:
    """Return the limit of a descriptor; None if it has none."""
    for row in rules["descriptors"]:
        if row["key"] == name:
            limit = row.get("rate_limit")
            amount = limit.get("requests_per_unit") if isinstance(limit, dict) else None
            return amount if isinstance(amount, int) else None
    return None


def _with_amount(rules: _Rules, name: str, amount: int) -> _Rules:
    rows = [
        {**row, "rate_limit": {**limit, "requests_per_unit": amount}}
        if row["key"] == name and isinstance(limit := row.get("rate_limit"), dict)
        else row
        for row in rules["descriptors"]
    ]
    return {**rules, "descriptors": rows}


def _with_fault(scenario: Scenario, number: int, fault: Fault) -> Scenario:
    faults = [*scenario.faults]
    faults[number] = fault
    return replace(scenario, faults=tuple(faults))


def _shorter_faults(scenario: Scenario) -> Pass:
    for number, fault in enumerate(scenario.faults):
        if fault.until is None:
            continue
        length = fault.until - fault.at
        for seconds in (*_SHORT_S, max(_SHORT_S[0], length / 2)):
            until = round(fault.at + seconds, 2)
            shorter = _with_fault(scenario, number, replace(fault, until=until))
            if until < fault.until and (yield shorter):
                scenario = shorter
                break


def _fewer_targets(scenario: Scenario) -> Pass:
    for number, fault in enumerate(scenario.faults):
        names = str(fault.args.get("node", "")).split(",")
        for name in names if len(names) > 1 else ():
            candidate = _with_fault(
                scenario, number, replace(fault, args={**fault.args, "node": name})
            )
            if (yield candidate):
                scenario = candidate
                break


def _fewer_callers(scenario: Scenario) -> Pass:
    for number, holds in enumerate(scenario.holds):
        for rate in (holds.per_second / 8, holds.per_second / 4, holds.per_second / 2):
            slower = [*scenario.holds]
            slower[number] = replace(holds, per_second=rate)
            candidate = replace(scenario, holds=tuple(slower))
            if (yield candidate):
                scenario = candidate
                break
