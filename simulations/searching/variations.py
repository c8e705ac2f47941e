"""Variations of a scenario for a guided search: one fault or one load changes."""

from collections.abc import Callable
from math import inf
from random import Random

from msgspec.structs import replace

from simulations.judging.pairs import fault_names
from simulations.scenarios.faults.arguments import MAX_STALL_S
from simulations.scenarios.generate import generate_faults
from simulations.scenarios.scenario import Fault, Scenario

__all__ = ["vary"]

_SHAPES = ("poisson", "zipf", "hot", "bursts", "attack")
_FACTORS = (0.5, 0.8, 1.25, 2.0)
_SHIFTS_S = (-4.0, -1.0, -0.2, 0.2, 1.0, 4.0)
_MAX_FAULTS = 12
_MAX_RATE = 60.0


def vary(scenario: Scenario, random: Random) -> Scenario:
    """Return a scenario with one change.

    It changes the time, duration, target or kind of a fault, or the rate, keys or shape of a load.
    Or it adds or removes a fault.
    """
    changes: list[Callable[[Scenario, Random], Scenario]] = []
    if scenario.loads:
        changes.append(_change_load)
    if len(scenario.faults) < _MAX_FAULTS:
        changes += [_add_fault] * 2
    if scenario.faults:
        changes += [_move_fault, _move_fault, _stretch_fault, _replace_fault, _drop_fault]
    return random.choice(changes)(scenario, random) if changes else scenario


def _move_fault(scenario: Scenario, random: Random) -> Scenario:
    """Begin one fault earlier or later, often at the time of another one."""
    at = random.randrange(len(scenario.faults))
    fault = scenario.faults[at]
    length = 0.0 if fault.until is None else fault.until - fault.at
    if len(scenario.faults) > 1 and random.random() < 0.5:
        begin = random.choice(scenario.faults).at + random.uniform(0.0, 0.5)
    else:
        begin = fault.at + random.choice(_SHIFTS_S)
    begin = min(max(0.5, begin), scenario.seconds - length)
    until = None if fault.until is None else begin + length
    return _with_fault(scenario, at, replace(fault, at=begin, until=until))


def _stretch_fault(scenario: Scenario, random: Random) -> Scenario:
    at = random.randrange(len(scenario.faults))
    fault = scenario.faults[at]
    if fault.until is None:
        return _move_fault(scenario, random)
    until = fault.at + (fault.until - fault.at) * random.choice(_FACTORS)
    return _with_fault(scenario, at, replace(fault, until=until))


def _replace_fault(scenario: Scenario, random: Random) -> Scenario:
    """Give one fault a new target, or a new kind with a new target, at its time."""
    at = random.randrange(len(scenario.faults))
    fault = scenario.faults[at]
    new = _new_fault(scenario, random, fault.verb if random.random() < 0.5 else None)
    return _with_fault(scenario, at, replace(new, at=fault.at, until=fault.until or new.until))


def _add_fault(scenario: Scenario, random: Random) -> Scenario:
    faults = (*scenario.faults, _new_fault(scenario, random, None))
    return replace(scenario, faults=_in_order(scenario, faults))


def _drop_fault(scenario: Scenario, random: Random) -> Scenario:
    at = random.randrange(len(scenario.faults))
    return replace(scenario, faults=(*scenario.faults[:at], *scenario.faults[at + 1 :]))


def _change_load(scenario: Scenario, random: Random) -> Scenario:
    at = random.randrange(len(scenario.loads))
    load = scenario.loads[at]
    match random.randrange(3):
        case 0:
            rate = min(_MAX_RATE, load.per_second * random.choice(_FACTORS))
            load = replace(load, per_second=round(rate, 1))
        case 1:
            load = replace(load, keys=max(2, round(load.keys * random.choice(_FACTORS))))
        case _:
            load = replace(load, shape=random.choice(_SHAPES), args={})
    return replace(scenario, loads=(*scenario.loads[:at], load, *scenario.loads[at + 1 :]))


def _new_fault(scenario: Scenario, random: Random, verb: str | None) -> Fault:
    return generate_faults(scenario, random, (verb or random.choice(fault_names()),))[0]


def _with_fault(scenario: Scenario, at: int, fault: Fault) -> Scenario:
    faults = (*scenario.faults[:at], fault, *scenario.faults[at + 1 :])
    return replace(scenario, faults=_in_order(scenario, faults))


def _in_order(scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults in order of time; all end before the load ends."""
    rounded = [
        replace(fault, at=round(fault.at, 2), until=_end_of(fault, scenario)) for fault in faults
    ]
    return tuple(sorted(rounded, key=lambda fault: (fault.at, fault.verb)))


def _end_of(fault: Fault, scenario: Scenario) -> float | None:
    if fault.until is None:
        return None
    longest = MAX_STALL_S if fault.verb == "stall" else inf
    return round(min(fault.until, scenario.seconds, round(fault.at, 2) + longest), 2)
