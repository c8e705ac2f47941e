"""Swarm testing: a whole scenario, faults and all, drawn from a seed.

Each kind of fault is in or not by chance, so that runs differ in what they lack, too: what one
fault hides, another run without it shows.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from simulations.judging.allowed_loss import members_of, overwhelmed
from simulations.scenarios.catalog import RULES
from simulations.scenarios.faults import VERBS
from simulations.scenarios.scenario import Args, Fault, Holds, Level, Load, Network, Scenario
from simulations.scenarios.seeds import stream

__all__ = ["DRAWN", "drawn", "drawn_faults"]

DRAWN = "drawn"
"""The name of the scenario that each seed has a world of its own for."""

_SECONDS: dict[Level, float] = {"node": 25.0, "core": 15.0}
_CALM: dict[Level, float] = {"node": 70.0, "core": 45.0}
"""Seconds that a healed split may take to be known to all, and then some."""
_DOWN = ("crash", "leave")
_BACK = 8.0
"""Seconds after which a node that was started again has what is its own."""
_CHANCES = (0.1, 0.25, 0.5)
"""How likely each kind of fault is in a run: from one or two of all to a half."""
_ONE_AT_A_TIME = 0.5
"""How many runs have no two failures at once in one data center, for which most is promised."""
_TOGETHER = 0.2
"""How many faults come with another one: while a change is news, the next is the hardest."""
_LENGTHS = (0.3, 2.0, 8.0, 15.0)
_STALLS = (0.1, 0.2, 0.3, 0.6, 1.2, 2.0, 5.0)
"""Seconds for which a process is stopped: garbage collection, throttling, a debugger."""
_ONLY_STALLS = 0.1
"""How many runs have stalls and nothing else, so that each check must be counted exactly once."""
_NO_CHARGES = 0.5
"""How many runs have no charges at all."""
_PARTS = (1, 1, 2, 3)
"""Parts that a transfer has at least: in half of all runs every shard moves in several."""


def drawn(seed: int, level: Level) -> Scenario:
    """Draw a scenario; equal seeds give equal ones."""
    random = stream(seed, "drawn", level)
    datacenters = random.choice((1, 1, 2, 3))
    nodes = max(random.randint(2, 6), 2 * datacenters)
    scenario = Scenario(
        DRAWN,
        "everything is drawn from the seed: hosts, network, load and faults",
        level=level,
        nodes=nodes,
        datacenters=datacenters,
        zones=random.choice((1, 1, 2)),
        seconds=_SECONDS[level],
        calm=_CALM[level],
        rules=RULES,
        loads=_charging(_loads(random, datacenters), stream(seed, "charges", level)),
        holds=_holds(stream(seed, "holds", level)),
        network=Network(
            latency=random.choice(("lan", "near", "regions")),
            loss=random.choice((0.0, 0.0, 0.01)),
            repeats=random.choice((0.0, 0.0, 0.02)),
            resets=random.choice((0.0, 0.0, 0.0, 10.0)),
        ),
        least_parts=stream(seed, "parts", level).choice(_PARTS),
    )
    verbs = tuple(VERBS)
    if stream(seed, "stalls", level).random() < _ONLY_STALLS:
        verbs = ("stall",)
    faults = drawn_faults(scenario, random, verbs)
    if random.random() < _ONE_AT_A_TIME:
        faults = _one_at_a_time(scenario, faults)
    return replace(scenario, faults=_survived(scenario, faults))


def drawn_faults(scenario: Scenario, random: Random, verbs: Sequence[str]) -> tuple[Fault, ...]:
    """Draw when what goes wrong, with whom and how badly; all of it is over when the load is.

    Some runs have many faults, and some few: where much goes wrong at once, little is promised.
    """
    chance = random.choice(_CHANCES)
    seconds = scenario.seconds
    names = [f"n{number + 1}" for number in range(scenario.nodes)]
    faults: list[Fault] = []
    kinds = [verb for verb in verbs if random.random() < chance] or [random.choice(verbs)]
    for verb in kinds:
        for _ in range(random.choice((1, 1, 2))):
            begin = random.uniform(1.0, seconds * 0.6)
            if faults and random.random() < _TOGETHER:
                begin = faults[-1].at + random.uniform(0.0, 0.5)
            until = min(seconds, begin + random.choice(_STALLS if verb == "stall" else _LENGTHS))
            args = _args(verb, names, scenario, random)
            faults.append(Fault(round(begin, 2), verb, round(until, 2), args))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.verb)))


def _one_at_a_time(scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Leave those out that would hit a data center which has not got over another one."""
    kept: list[Fault] = []
    for fault in faults:
        if not overwhelmed(replace(scenario, faults=(*kept, fault)), failures=1):
            kept.append(fault)
    return tuple(kept)


def _survived(scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Leave those out that would empty every data center: then counts are gone, by design."""
    kept: list[Fault] = []
    sizes = Counter(datacenter for datacenter, _ in members_of(scenario).values())
    for fault in faults:
        down = {
            str(other.args["node"])
            for other in [*kept, fault]
            if other.verb in _DOWN and other.at <= _end(fault) and fault.at <= _end(other)
        }
        gone = Counter(members_of(scenario)[name][0] for name in sorted(down))
        if fault.verb not in _DOWN or any(gone[each] < size for each, size in sizes.items()):
            kept.append(fault)
    return tuple(kept)


def _end(fault: Fault) -> float:
    return (fault.at if fault.until is None else fault.until) + _BACK


def _loads(random: Random, datacenters: int) -> tuple[Load, ...]:
    shape = random.choice(("poisson", "zipf", "hot", "bursts", "edge", "attack"))
    loads = [
        Load(shape, random.choice((10, 30, 60)), random.choice((3, 20, 60)), "client"),
        Load(rule="exact", per_second=random.choice((10, 25)), keys=random.choice((5, 30))),
    ]
    if datacenters > 1:
        loads.append(Load(rule="everywhere", per_second=random.choice((10, 30)), keys=3))
        if random.random() < 0.5:
            loads.append(Load("zipf", 15, 5, "world"))
    if random.random() < 0.3:
        loads.append(Load("zipf", 15, 5, random.choice(("window", "bucket"))))
    return tuple(loads)


def _charging(loads: Sequence[Load], random: Random) -> tuple[Load, ...]:
    """Have charges among what half of the loads ask, in half of all runs."""
    if random.random() < _NO_CHARGES:
        return tuple(loads)
    parts = [random.choice((0.0, 0.05, 0.2)) for _ in loads]
    return tuple(replace(load, charges=part) for load, part in zip(loads, parts, strict=True))


def _holds(random: Random) -> tuple[Holds, ...]:
    """Have callers wait for slots in half of all runs."""
    if random.random() < 0.5:
        return ()
    return (Holds(random.choice((2, 4, 6)), random.choice((1, 2)), max_wait=random.choice((3, 8))),)


def _args(verb: str, names: Sequence[str], scenario: Scenario, random: Random) -> Args:
    """Whom a fault of this kind is about, and how hard it is."""
    if verb in _EVERYWHERE:
        return _EVERYWHERE[verb](random)
    if verb == "cut":
        return _cut(names, scenario, random)
    more = _crash if verb == "crash" else _OF_ONE.get(verb)
    args: Args = {"node": random.choice(names)}
    if more is not None:
        args |= more(random)
    return args


def _cut(names: Sequence[str], scenario: Scenario, random: Random) -> Args:
    """One host, a data center, any split, or two that alone do not see each other."""
    kind = random.random()
    if scenario.datacenters > 1 and kind < 0.4:
        return {"datacenter": f"dc{random.randint(1, scenario.datacenters)}"}
    if kind < 0.6:
        return {"node": random.choice(names), "one_way": int(random.random() < 0.5)}
    if kind < 0.8:
        return {"node": ",".join(random.sample(list(names), random.randint(1, len(names) - 1)))}
    one, other = random.sample(list(names), 2)
    return {"node": one, "from": other}


def _crash(random: Random) -> Args:
    how = random.choice(("", "", "", "moves", "seedless"))
    return {how: 1} if how else {}


def _share(least: float, most: float) -> Callable[[Random], Args]:
    return lambda random: {"share": round(random.uniform(least, most), 3)}


def _one_of(name: str, *values: float) -> Callable[[Random], Args]:
    return lambda random: {name: random.choice(values)}


_EVERYWHERE: dict[str, Callable[[Random], Args]] = {
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
