"""Generation of the loads of a run from a seed, matched to the limits of its rules.

Rates and numbers of keys are chosen so that most limits are exceeded, some of them many times.
"""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from ringfence.limiter import Limit
from ringfence.rules import Rule, parse_limit
from simulations.scenarios.scenario import Holds, Load

__all__ = [
    "generate_holds",
    "generate_loads",
    "generate_overrides",
    "with_aged_refunds",
    "with_refunds",
    "with_reservations",
]

_SHAPES = ("poisson", "poisson", "zipf", "hot", "bursts", "attack")
_RATES = (3, 6, 12)
"""Checks per second of one load."""
_DEMANDS = (0.5, 1.5, 4.0)
"""Units that are requested of each key in one period, as a multiple of its limit."""
_MOST_KEYS = 40
_CARRIED_OPTIONS = (
    *("", "first_hit", "first_hit", "first_hit", "first_hit", "sliding_window_log", "slots 5"),
    *("soft 50%", "fixed_window", "token_bucket", "burst 4", "queue burst 4"),
    "calendar timezone Europe/Zurich",
)
"""Options of limits that requests contain."""
_PROBED = 0.5
"""Share of loads whose denied checks may be repeated around their retry time."""
_COSTS = ((), (), (), (1, 1, 2, 5), (3,))
"""Costs of the checks of a load, which are drawn uniformly."""
_LARGE = 0.15
"""Share of runs with many keys."""
_MOST_GROUPS = 3
"""Most requests per second with several limits of their own."""
_BATCH = 20
"""Most checks in one call."""
_SOME = 0.3
"""Probability that a load has peeks, refunds or groups, and that a run has limits in requests; for
each of them separately."""
_AGED = 0.5
"""Share of loads with refunds whose refunds state the age of their charge."""
_RESERVED = 0.5
"""Share of runs with reservations, and of the loads in these runs that have some."""
_NO_CHARGES = 0.5
"""Share of runs without charges."""


def generate_loads(rules: Sequence[Rule], seconds: float, random: Random) -> tuple[Load, ...]:
    """Generate one load for each drawn rule, and for the rules that all runs have."""
    names = [rule.path[-1][0] for rule in rules]
    loads = [_exact(random)]
    if "everywhere" in names:
        loads.append(Load(rule="everywhere", per_second=random.choice((5, 15)), keys=3))
        if random.random() < 0.5:
            loads.append(Load("zipf", 8, 5, "world"))
    for rule in rules:
        if rule.path[-1][0].startswith("r") and rule.limit is not None:
            loads.append(_load(rule.path[-1][0], rule.limit, seconds, random))
    for name, overrides in (("adhoc", False), ("override", True)):
        if random.random() < _SOME:
            limit = _carried_limit(random)
            load = _load(name, parse_limit(limit), seconds, random)
            loads.append(replace(load, limit=limit, overrides=overrides))
    drawn = _drawn(rules)
    return _with_charges([_with_extras(load, drawn, random) for load in loads], random)


def generate_overrides(rules: Sequence[Rule], seconds: float, random: Random) -> tuple[Load, ...]:
    """Generate a load whose requests contain several limits, in some runs; otherwise none.

    Each limit has a counter of its own, and most of these counters have different owners.
    """
    if random.random() >= _SOME:
        return ()
    first, *others = [_carried_limit(random) for _ in range(random.choice((2, 2, 3)))]
    also = [f"override{number}" for number in range(2, len(others) + 2)]
    if random.random() < _SOME:
        also.append(random.choice(_drawn(rules)))
    load = replace(
        _load("override1", parse_limit(first), seconds, random),
        costs=(),
        limit=first,
        overrides=True,
        also=",".join(also),
        also_limits=tuple(others),
        refunds=random.choice((0.0, 0.0, 0.1)),
        probes=random.choice((0.0, 0.2)),
    )
    return (replace(load, per_second=min(load.per_second, _MOST_GROUPS)),)


def with_refunds(loads: Sequence[Load], random: Random) -> tuple[Load, ...]:
    """Return the loads; about half of those without refunds now have some."""
    return tuple(
        [replace(load, refunds=load.refunds or random.choice((0.0, 0.1))) for load in loads]
    )


def with_aged_refunds(loads: Sequence[Load], random: Random) -> tuple[Load, ...]:
    """Return the loads; half of those with refunds now state the ages, also of later refunds."""
    return tuple(
        [
            replace(load, aged_refunds=True, refund_after_s=random.choice((0.0, 0.5)))
            if load.refunds and random.random() < _AGED
            else load
            for load in loads
        ]
    )


def with_reservations(loads: Sequence[Load], random: Random) -> tuple[Load, ...]:
    """Return the loads; in half of all runs, half of those without batches now reserve units."""
    if random.random() >= _RESERVED:
        return tuple(loads)
    return tuple(
        [
            replace(
                load,
                reservations=random.choice((0.1, 0.4)),
                settle_after_s=random.choice((0.0, 0.5, 3.0)),
                cost_after=random.choice((False, True)) and not load.limit,
            )
            if load.batch == 1 and random.random() < _RESERVED
            else load
            for load in loads
        ]
    )


def _drawn(rules: Sequence[Rule]) -> list[str]:
    """Return the names of the rules that not all runs have."""
    names = [rule.path[-1][0] for rule in rules]
    return [name for name in names if name.startswith("r")]


def _exact(random: Random) -> Load:
    """Return a load of checks that all stay counted; in some runs, it fills shards with keys."""
    if random.random() < _LARGE:
        return Load(rule="exact", per_second=2, keys=1000, batch=50)
    return Load(rule="exact", per_second=random.choice((5, 12)), keys=random.choice((5, 30)))


def generate_holds(random: Random) -> tuple[Holds, ...]:
    """Generate callers that wait for slots of a concurrency limit, in half of all runs; otherwise
    none."""
    if random.random() < 0.5:
        return ()
    return (Holds(random.choice((2, 4, 6)), random.choice((1, 2)), max_wait=random.choice((3, 8))),)


def _load(name: str, limit: Limit, seconds: float, random: Random) -> Load:
    """Return a load that requests a multiple of the limit of each key in each period."""
    rate, costs = random.choice(_RATES), random.choice(_COSTS)
    cost = sum(costs) / len(costs) if costs else 1
    units = rate * min(seconds, limit.period_ns / 1e9) * cost
    keys = round(units / (random.choice(_DEMANDS) * max(1, limit.ceiling)))
    return Load(random.choice(_SHAPES), rate, max(2, min(_MOST_KEYS, keys)), name, costs=costs)


def _carried_limit(random: Random) -> str:
    """Draw the text of a limit that requests contain."""
    options = random.choice(_CARRIED_OPTIONS)
    period = "day" if "calendar" in options else random.choice(("2s", "5s", "10s", "day"))
    return f"{random.choice((2, 5, 9))}/{period} {options}".rstrip()


def _with_extras(load: Load, drawn: Sequence[str], random: Random) -> Load:
    """Return the load; some of its checks are now peeks, refunded, in a group or a batch, or
    repeated.

    A group has one further descriptor, of a rule in `drawn`.
    """
    if random.random() < _SOME:
        load = replace(load, peeks=0.1)
    if random.random() < _SOME:
        load = replace(load, refunds=random.choice((0.05, 0.3)))
    others = [name for name in drawn if name != load.rule]
    is_adhoc = load.limit and not load.overrides
    if random.random() < _SOME and others and not is_adhoc and not load.costs:
        load = replace(load, also=random.choice(others))
    if random.random() < _PROBED:
        load = replace(load, probes=0.2)
    is_plain = not (load.also or load.costs or load.limit) and load.shape != "attack"
    if random.random() < _SOME and is_plain and load.batch == 1:
        size = min(_BATCH, load.keys)
        load = replace(load, batch=size, per_second=max(1.0, 2 * load.per_second / size))
    return load


def _with_charges(loads: Sequence[Load], random: Random) -> tuple[Load, ...]:
    """Return the loads; in half of all runs, some checks become charges, which no limit
    restricts."""
    if random.random() < _NO_CHARGES:
        return tuple(loads)
    parts = [random.choice((0.0, 0.05, 0.2)) for _ in loads]
    return tuple(replace(load, charges=part) for load, part in zip(loads, parts, strict=True))
