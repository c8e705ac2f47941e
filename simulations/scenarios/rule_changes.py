"""Changes to a scenario that someone asks for in words, and the words that ask for them again.

`nodes=5`, `loss=0.1`, `per_second=500`; faults as `cut@8-25 node=n1,n2`. Pure: text in, scenario
out.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from ringfence.errors import ConfigError
from simulations.judging.checking import check
from simulations.scenarios.faults import VERBS
from simulations.scenarios.generate import DRAWN
from simulations.scenarios.latency import PRESETS, delay_s
from simulations.scenarios.scenario import Args, Fault, Scenario

__all__ = ["NAMES", "checked", "command_of", "fault_of", "with_set", "words_of"]

_FAULT = re.compile(r"(?P<verb>\w+)@(?P<at>[\d.]+)(?:-(?P<until>[\d.]+))?")
_MOST = {"nodes": 5000, "datacenters": 30, "zones": 30, "least_parts": 100, "keys": 1_000_000}
NAMES = (
    *("nodes", "datacenters", "zones", "seconds", "calm"),
    *("per_second", "keys", "cost"),
    *("latency", "loss", "repeats", "resets"),
    "least_parts",
)
"""What can be set."""


def with_set(scenario: Scenario, words: Iterable[str]) -> Scenario:
    """Apply `NAME=VALUE` words; raises `ConfigError` for what makes no sense.

    `per_second`, `keys` and `cost` are set for every load of the scenario.
    """
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in NAMES:
            raise ConfigError(f"--set {word!r}: write NAME=VALUE, where NAME is {_listed(NAMES)}")
        match name:
            case "nodes" | "datacenters" | "zones" | "least_parts":
                count = _count(word, value, _MOST[name])
                scenario = replace(scenario, **{name: count})  # type: ignore[arg-type]
            case "seconds" | "calm":
                seconds = _number(word, value, 1.0, 86_400.0)
                scenario = replace(scenario, **{name: seconds})  # type: ignore[arg-type]
            case "latency":
                if value not in PRESETS:
                    raise ConfigError(f"--set {word!r}: latency is {_listed(PRESETS)}")
                scenario = replace(scenario, network=replace(scenario.network, latency=value))
            case "loss" | "repeats" | "resets":
                share = _number(word, value, 0.0, 0.9)
                network = replace(scenario.network, **{name: share})  # type: ignore[arg-type]
                scenario = replace(scenario, network=network)
            case _:
                scenario = _with_loads(scenario, name, word, value)
    return scenario


def _with_loads(scenario: Scenario, name: str, word: str, value: str) -> Scenario:
    if name == "per_second":
        rate = _number(word, value, 0.0, 100_000.0)
        return replace(
            scenario, loads=tuple(replace(load, per_second=rate) for load in scenario.loads)
        )
    count = _count(word, value, _MOST.get(name, 1_000_000))
    changed = tuple(replace(load, **{name: count}) for load in scenario.loads)  # type: ignore[arg-type]
    return replace(scenario, loads=changed)


def fault_of(text: str) -> Fault:
    """Read `VERB@AT-UNTIL NAME=VALUE ...`; raises `ConfigError`."""
    first, *words = text.split() or [""]
    found = _FAULT.fullmatch(first)
    if found is None:
        raise ConfigError(
            f"fault {text!r}: write VERB@AT or VERB@AT-UNTIL with seconds, then NAME=VALUE words, "
            f"as in 'cut@8-25 node=n1,n2'; verbs are {_listed(VERBS)}"
        )
    args: Args = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"fault {text!r}: {word!r} is not NAME=VALUE")
        args[name] = _plain(value)
    until = found["until"]
    try:
        fault = Fault(float(found["at"]), found["verb"], float(until) if until else None, args)
        check(fault)
    except ValueError as error:
        raise ConfigError(f"fault {text!r}: {error}") from None
    return fault


def words_of(fault: Fault) -> str:
    """The text that `fault_of` reads as this fault."""
    until = "" if fault.until is None else f"-{_written(fault.until)}"
    args = "".join(f" {name}={value}" for name, value in fault.args.items())
    return f"{fault.verb}@{_written(fault.at)}{until}{args}"


def checked(scenario: Scenario) -> Scenario:
    """The same scenario; raises `ConfigError` for one whose parts do not fit together."""
    if scenario.nodes < scenario.datacenters:
        raise ConfigError(
            f"{scenario.nodes} nodes cannot stand in {scenario.datacenters} data centers: give "
            "each at least one"
        )
    for fault in scenario.faults:
        for name, letters, count in (
            ("node", "n", scenario.nodes),
            ("from", "n", scenario.nodes),
            ("datacenter", "dc", scenario.datacenters),
            ("zone", "z", scenario.zones),
        ):
            known = {f"{letters}{number + 1}" for number in range(count)}
            asked = str(fault.args.get(name, "")).split(",") if name in fault.args else []
            unknown = [each for each in asked if each not in known]
            if unknown:
                raise ConfigError(
                    f"fault '{words_of(fault)}' is about {unknown[0]}, but there "
                    f"{f'are {letters}1 to {letters}{count}' if count > 1 else f'is {letters}1'}: "
                    "take more of them, or other faults with --fault"
                )
    try:
        delay_s(scenario.network.latency, ("dc1", "z1"), (f"dc{scenario.datacenters}", "z1"))
    except ValueError as error:
        raise ConfigError(f"{scenario.datacenters} data centers: {error}") from None
    return scenario


def command_of(scenario: Scenario, original: Scenario, seed: int) -> str:
    """The command that runs `scenario`, which came of `original` by changes, again."""
    words = ["ringfence", "simulate", scenario.name, "--seed", str(seed)]
    if scenario.level != original.level or scenario.name == DRAWN:
        words += ["--level", scenario.level]
    for name in ("nodes", "datacenters"):
        if getattr(scenario, name) != getattr(original, name):
            words += [f"--{name}", str(getattr(scenario, name))]
    for name in ("zones", "seconds", "calm", "least_parts"):
        if getattr(scenario, name) != getattr(original, name):
            words += ["--set", f"{name}={_written(getattr(scenario, name))}"]
    for name in ("latency", "loss", "repeats", "resets"):
        if getattr(scenario.network, name) != getattr(original.network, name):
            words += ["--set", f"{name}={getattr(scenario.network, name)}"]
    for name in ("per_second", "keys", "cost"):
        now = [getattr(load, name) for load in scenario.loads]
        if now != [getattr(load, name) for load in original.loads]:
            words += ["--set", f"{name}={_written(now[0])}"]
    if scenario.faults != original.faults:
        words += [part for fault in scenario.faults for part in ("--fault", words_of(fault))]
        words += ["--no-faults"] * (not scenario.faults)
    return shlex.join(words)


def _written(number: float) -> str:
    """All its digits and no exponent, which neither times nor counts may have."""
    return format(Decimal(repr(number)), "f").removesuffix(".0")


def _plain(text: str) -> str | float | int:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _number(word: str, value: str, least: float, most: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise ConfigError(f"--set {word!r}: give a number from {least:g} to {most:g}")
    return number


def _count(word: str, value: str, most: int) -> int:
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= most):
        raise ConfigError(f"--set {word!r}: give a whole number from 1 to {most}")
    return int(value)


def _listed(names: Sequence[str] | Iterable[str]) -> str:
    return ", ".join(names)
