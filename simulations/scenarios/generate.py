"""Swarm testing: generation of a whole scenario, with its faults, from a seed.

Two kinds of faults follow from the seed. Each further kind is included or excluded at random,
because a fault may hide a bug that a run without that fault reveals.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random

from msgspec.structs import replace

from ringfence.rules.loading.yaml_files import load_text
from simulations.judging.allowed_loss import hosts_of, members_of, overwhelmed
from simulations.judging.pairs import fault_names
from simulations.scenarios.generate_loads import (
    generate_holds,
    generate_loads,
    generate_overrides,
    with_aged_refunds,
    with_refunds,
    with_reservations,
)
from simulations.scenarios.generate_rules import generate_lent_rule, generate_rules
from simulations.scenarios.scenario import Args, Fault, Level, Network, Scenario
from simulations.scenarios.seeds import stream

__all__ = ["DRAWN", "generate_faults", "generate_scenario"]

DRAWN = "drawn"
"""Name of the scenario that is generated from each seed."""

_LOAD_S: dict[Level, float] = {"node": 25.0, "core": 15.0}
_CALM_S = 45.0
"""Seconds without faults; more than a healed split needs to converge."""
_CALM_LOAD_S = 10.0
"""Seconds of load after the calm."""
_DOWN = ("crash", "leave")
_RECOVERY_S = 8.0
"""Seconds after which a restarted node has recovered its shards."""
_PAIRS = tuple(combinations(fault_names(), 2))
"""Pairs of kinds of faults. Each run has one of them, so a few hundred seeds have nearly all."""
_CHANCES = (0.0, 0.0, 0.5)
"""Probabilities of each further kind of fault in a run: often none, otherwise half of them."""
_WITHOUT_OVERLAPS = 0.5
"""Share of runs without simultaneous failures in a data center, for which invariants are
strictest."""
_COINCIDENT = 0.5
"""Share of faults that begin in the data center of another fault, before members detect it."""
_DURATIONS_S = (0.3, 2.0, 8.0, 15.0)
_STALLS_S = (0.1, 0.2, 0.3, 0.6, 1.2, 2.0, 5.0)
"""Seconds for which a process is suspended, as by garbage collection, throttling or a debugger."""
_ONLY_STALLS = 0.1
"""Share of runs with stalls only, in which each check must count exactly once."""
_PROCESSES = (1, 1, 1, 2)
"""Numbers of members on each host."""
_OF_A_HOST = ("pause", "slow", "bursts", "spikes", "clog", "clock_step", "clock_drift")
"""Faults that affect all members of a host."""
_BOUNDED_REFUNDS = 0.5
"""Share of runs in which tokens lack the scope `refund`."""
_PARTS = (1, 1, 2, 3)
"""Minimum numbers of parts per transfer; in half of all runs every shard needs several."""


def generate_scenario(seed: int, level: Level) -> Scenario:
    """Generate a scenario; equal seeds give equal scenarios."""
    random = stream(seed, "drawn", level)
    together = _PAIRS[seed % len(_PAIRS)]
    datacenters = random.choice((2, 3) if "cut_datacenter" in together else (1, 1, 2, 3))
    nodes = max(random.randint(2, 6), 2 * datacenters)
    zones = random.choice((1, 1, 2))
    processes = stream(seed, "processes", level).choice(_PROCESSES) if datacenters < 3 else 1
    if processes > 1:  # Two or three hosts in one data center, otherwise two in each.
        zones = 2 if datacenters > 1 else random.choice((2, 3))
        nodes = datacenters * zones * processes
    network = Network(
        latency=random.choice(("lan", "near", "regions")),
        loss=random.choice((0.0, 0.0, 0.01)),
        repeats=random.choice((0.0, 0.0, 0.02)),
        resets=random.choice((0.0, 0.0, 0.0, 10.0)),
    )
    rules = generate_rules(stream(seed, "rules", level), datacenters)
    rules += generate_lent_rule(stream(seed, "lent rule", level))
    parsed, seconds = load_text(rules).rules.rules(), _LOAD_S[level]
    loads = generate_loads(parsed, seconds, stream(seed, "loads", level))
    loads += generate_overrides(parsed, seconds, stream(seed, "overrides", level))
    refunds = stream(seed, "bounded refunds", level)
    is_bounded = refunds.random() < _BOUNDED_REFUNDS
    if is_bounded:
        loads = with_refunds(loads, refunds)
    loads = with_aged_refunds(loads, stream(seed, "aged refunds", level))
    loads = with_reservations(loads, stream(seed, "reservations", level))
    scenario = Scenario(
        DRAWN,
        "generates hosts, network, load and faults from the seed",
        level=level,
        nodes=nodes,
        datacenters=datacenters,
        zones=zones,
        processes=processes,
        seconds=seconds,
        calm=_CALM_S,
        calm_load=_CALM_LOAD_S,
        rules=rules,
        loads=loads,
        holds=generate_holds(stream(seed, "holds", level)),
        network=network,
        bounded_refunds=is_bounded,
        least_parts=stream(seed, "parts", level).choice(_PARTS),
    )
    if stream(seed, "stalls", level).random() < _ONLY_STALLS:
        faults = generate_faults(scenario, random, ["stall"])
    else:
        faults = generate_faults(scenario, random, together, fault_names())
    if random.random() < _WITHOUT_OVERLAPS:
        faults = _without_overlaps(scenario, faults)
    return replace(scenario, faults=_without_total_loss(scenario, faults))


def generate_faults(
    scenario: Scenario, random: Random, together: Sequence[str], others: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """Generate faults with their times, targets and severity; all of them end before the load ends.

    Faults of the kinds `together` begin in one data center at nearly the same time. Some runs have
    many of the other kinds, and some have none, since many simultaneous faults weaken the
    invariants. The kinds are those of `fault_names`.
    """
    chance = random.choice(_CHANCES)
    seconds = scenario.seconds
    faults: list[Fault] = []
    more = [kind for kind in others if kind not in together and random.random() < chance]
    for kind in (*together, *more):
        for _ in range(random.choice((1, 1, 2))):
            begin = random.uniform(1.0, seconds * 0.6)
            names = [*members_of(scenario)]
            if faults and (kind in together[1:] or random.random() < _COINCIDENT):
                begin = faults[-1].at + random.uniform(0.0, 0.5)
                names = _same_datacenter(faults[-1], scenario)
            until = min(
                seconds, begin + random.choice(_STALLS_S if kind == "stall" else _DURATIONS_S)
            )
            args = _args(kind, names, scenario, random)
            verb = "cut" if kind in _CUTS else kind
            faults.append(Fault(round(begin, 2), verb, round(until, 2), args))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.verb)))


def _same_datacenter(fault: Fault, scenario: Scenario) -> list[str]:
    """Return the hosts in the data center of the first host that a fault affects."""
    places = members_of(scenario)
    datacenter, _ = places[hosts_of(fault, scenario)[0]]
    return [name for name, place in places.items() if place[0] == datacenter]


def _without_overlaps(scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Remove faults that hit a data center during its recovery from an earlier fault."""
    kept: list[Fault] = []
    for fault in faults:
        if not overwhelmed(replace(scenario, faults=(*kept, fault)), failures=1):
            kept.append(fault)
    return tuple(kept)


def _without_total_loss(scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Remove faults that would leave every data center without a member.

    All counts would then be lost by design.
    """
    kept: list[Fault] = []
    sizes = Counter(datacenter for datacenter, _ in members_of(scenario).values())
    for fault in faults:
        down = {
            name
            for other in [*kept, fault]
            if other.verb in _DOWN and other.at <= _end(fault) and fault.at <= _end(other)
            for name in hosts_of(other, scenario)
        }
        gone = Counter(members_of(scenario)[name][0] for name in sorted(down))
        if fault.verb not in _DOWN or any(gone[each] < size for each, size in sizes.items()):
            kept.append(fault)
    return tuple(kept)


def _end(fault: Fault) -> float:
    return (fault.at if fault.until is None else fault.until) + _RECOVERY_S


def _args(kind: str, names: Sequence[str], scenario: Scenario, random: Random) -> Args:
    """Draw the targets, from the named hosts, and the severity of a fault at random."""
    if kind in _EVERYWHERE:
        return _EVERYWHERE[kind](random)
    if kind in _CUTS:
        return _CUTS[kind](names, scenario, random)
    more = _crash if kind == "crash" else _OF_ONE.get(kind)
    args: Args = {"node": random.choice(names)}
    if more is not None:
        args |= more(random)
    if kind in _OF_A_HOST or (kind == "crash" and random.random() < 0.5):
        args["node"] = _on_same_host(str(args["node"]), scenario)
    return args


def _on_same_host(node: str, scenario: Scenario) -> str:
    """Return the names of all members on the host of a node."""
    if scenario.processes == 1:
        return node
    places = members_of(scenario)
    return ",".join(name for name, place in places.items() if place == places[node])


def _cut(names: Sequence[str], scenario: Scenario, random: Random) -> Args:
    """Draw the links that a cut affects: of one host, a random group, or two hosts."""
    kind = random.random()
    if kind < 0.3:
        return {"node": _on_same_host(random.choice(names), scenario)}
    if kind < 0.7:
        return {"node": ",".join(random.sample(list(names), random.randint(1, len(names) - 1)))}
    one, other = random.sample(list(names), 2)
    return {"node": one, "from": other}


def _cut_one_way(names: Sequence[str], scenario: Scenario, random: Random) -> Args:
    return {"node": _on_same_host(random.choice(names), scenario), "one_way": 1}


def _cut_datacenter(names: Sequence[str], scenario: Scenario, random: Random) -> Args:
    """Draw the data center of a host; a host, if there is only one data center."""
    if scenario.datacenters == 1:
        return _cut(names, scenario, random)
    datacenter, _ = members_of(scenario)[random.choice(names)]
    return {"datacenter": datacenter}


def _crash(random: Random) -> Args:
    how = random.choice(("", "", "", "moves", "seedless"))
    return {how: 1} if how else {}


def _share(least: float, most: float) -> Callable[[Random], Args]:
    return lambda random: {"share": round(random.uniform(least, most), 3)}


def _one_of(name: str, *values: float) -> Callable[[Random], Args]:
    return lambda random: {name: random.choice(values)}


_CUTS = {"cut": _cut, "cut_one_way": _cut_one_way, "cut_datacenter": _cut_datacenter}
_EVERYWHERE: dict[str, Callable[[Random], Args]] = {
    "rules": lambda random: {"part": random.choice((0.3, 0.5))},
    "loss": _share(0.02, 0.3),
    "repeats": _share(0.05, 0.5),
    "replay": _share(0.05, 0.3),
    "corrupt": _share(0.05, 0.3),
}
_OF_ONE: dict[str, Callable[[Random], Args]] = {
    "bursts": _share(0.3, 0.8),
    "slow": _one_of("extra_ms", 20, 100, 300),
    "spikes": _one_of("mean_ms", 5, 50, 200),
    "busy": _one_of("cost_ms", 1, 5, 20),
    "limits": _one_of("part", 0.5),
    "errors": _one_of("count", 1, 3, 30),
    "clock_step": _one_of("by_s", -3600, -10, -1, 0.2, 5, 3600),
    "clock_drift": _one_of("ppm", -500, -100, 100, 500),
}
