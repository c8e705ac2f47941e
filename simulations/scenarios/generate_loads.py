"""Generation of the loads of a run from a seed, matched to the limits of its rules.

Rates and numbers of keys are chosen so that most limits are exceeded, some of them many times.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ringfence.limiter import Limit
from ringfence.rules import Rule
from simulations.scenarios.scenario import Holds, Load

__all__ = ["generate_holds", "generate_loads"]

_SHAPES = ("poisson", "poisson", "zipf", "hot", "bursts", "attack")
_RATES = (5, 10, 20)
"""Checks per second of one load."""
_DEMANDS = (0.5, 1.5, 4.0)
"""Units that are requested of each key in one period, as a multiple of its limit."""
_MOST_KEYS = 40
_COSTS = ((1,), (1,), (1,), (1, 1, 2, 5), (3,))
"""Costs of the checks of a load, which are drawn uniformly."""
_SOME = 0.3
"""Probability that a load has peeks, refunds or groups; for each of them separately."""
_NO_CHARGES = 0.5
"""Share of runs without charges."""


def generate_loads(rules: Sequence[Rule], seconds: float, random: Random) -> tuple[Load, ...]:
    """Generate one load for each drawn rule, and for the rules that all runs have."""
    names = [rule.path[-1][0] for rule in rules]
    loads = [Load(rule="exact", per_second=random.choice((10, 25)), keys=random.choice((5, 30)))]
    if "everywhere" in names:
        loads.append(Load(rule="everywhere", per_second=random.choice((10, 30)), keys=3))
        if random.random() < 0.5:
            loads.append(Load("zipf", 15, 5, "world"))
    for rule in rules:
        if rule.path[-1][0].startswith("r") and rule.limit is not None:
            loads.append(_load(rule, rule.limit, seconds, random))
    return _with_charges([_with_extras(load, random) for load in loads], random)


def generate_holds(random: Random) -> tuple[Holds, ...]:
    """Generate callers that wait for slots of a concurrency limit, in half of all runs; otherwise
    none."""
    if random.random() < 0.5:
        return ()
    return (Holds(random.choice((2, 4, 6)), random.choice((1, 2)), max_wait=random.choice((3, 8))),)


def _load(rule: Rule, limit: Limit, seconds: float, random: Random) -> Load:
    """Return a load that requests a multiple of the limit of each key in each period."""
    rate, costs = random.choice(_RATES), random.choice(_COSTS)
    if rule.scope == "split":
        costs = (1,)  # A cost above the part of a data center is denied for ever.
    units = rate * min(seconds, limit.period_ns / 1e9) * sum(costs) / len(costs)
    keys = round(units / (random.choice(_DEMANDS) * max(1, limit.ceiling)))
    return Load(
        random.choice(_SHAPES), rate, max(2, min(_MOST_KEYS, keys)), rule.path[-1][0], costs=costs
    )


def _with_extras(load: Load, random: Random) -> Load:
    """Return the load; some of its checks are now peeks, refunded, or in a group."""
    if random.random() < _SOME:
        load = replace(load, peeks=0.1)
    if random.random() < _SOME:
        load = replace(load, refunds=random.choice((0.05, 0.3)))
    return load


def _with_charges(loads: Sequence[Load], random: Random) -> tuple[Load, ...]:
    """Return the loads; in half of all runs, some checks become charges, which no limit
    restricts."""
    if random.random() < _NO_CHARGES:
        return tuple(loads)
    parts = [random.choice((0.0, 0.05, 0.2)) for _ in loads]
    return tuple(replace(load, charges=part) for load, part in zip(loads, parts, strict=True))
