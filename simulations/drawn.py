"""Scenarios that a seed draws: what swarm testing runs by the thousand."""

from collections import Counter
from dataclasses import replace
from random import Random

from simulations.faults import drawn
from simulations.scenario import Fault, Load, Network, Scenario
from simulations.scenarios import RULES
from simulations.seeds import stream

__all__ = ["drawn_core"]

_SECONDS = 15.0
_CALM = 45.0
"""Seconds after the last fault: a word to those held dead every 30, and a suspicion after it."""
_DOWN = ("crash", "leave")
_BACK = 8.0
"""Seconds after which a node that was started again has what is its own."""
_LOADS = (
    Load(rule="client", per_second=25, keys=12),
    Load(rule="exact", per_second=25, keys=30),
    Load(rule="window", per_second=15, keys=3),
    Load("bursts", 20, 6, "exact", args={"on_s": 0.5, "off_s": 1.5}),
    Load("hot", 20, 20, "client", args={"share": 0.8}),
)
_WORLDWIDE = (
    Load(rule="everywhere", per_second=30, keys=3),
    Load(rule="world", per_second=20, keys=2),
)


def drawn_core(seed: int) -> Scenario:
    """Draw a small cluster, its loads and its faults; equal seeds give equal scenarios."""
    random = stream(seed, "scenario")
    nodes = random.randint(3, 8)
    datacenters = random.choice([count for count in (1, 1, 2, 3) if 2 * count <= nodes])
    loads = random.sample(_LOADS, 2)
    if datacenters > 1:
        loads.append(random.choice(_WORLDWIDE))
    scenario = Scenario(
        name=f"core-{seed}",
        about="a small cluster with faults drawn from the seed",
        level="core",
        nodes=nodes,
        datacenters=datacenters,
        zones=random.choice((1, 1, 2)),
        seconds=_SECONDS,
        calm=_CALM,
        rules=RULES,
        loads=tuple(loads),
        network=_network(random),
    )
    return replace(scenario, faults=_survived(scenario, drawn(scenario, random, _SECONDS)))


def _network(random: Random) -> Network:
    return Network(
        latency=random.choice(("lan", "near", "regions")),
        loss=random.choice((0.0, 0.0, 0.01)),
        repeats=random.choice((0.0, 0.0, 0.05)),
    )


def _survived(scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Leave those out that would empty a data center: then its counts are gone, by design."""
    kept: list[Fault] = []
    for fault in faults:
        down = {
            other.args["node"]
            for other in [*kept, fault]
            if other.verb in _DOWN and other.at <= _end(fault) and fault.at <= _end(other)
        }
        datacenters = Counter(_datacenter(str(name), scenario) for name in down)
        sizes = Counter(number % scenario.datacenters for number in range(scenario.nodes))
        if fault.verb not in _DOWN or all(datacenters[dc] < sizes[dc] for dc in sizes):
            kept.append(fault)
    return tuple(kept)


def _end(fault: Fault) -> float:
    return (fault.at if fault.until is None else fault.until) + _BACK


def _datacenter(name: str, scenario: Scenario) -> int:
    return (int(name[1:]) - 1) % scenario.datacenters
