"""Text form of changes to a scenario: parsing and formatting.

Settings are written as `nodes=5`, `loss=0.1` or `per_second=500`, faults as `cut@8-25 node=n1,n2`.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from decimal import Decimal
from difflib import get_close_matches

from msgspec.structs import replace

from ringfence.errors import ConfigError
from simulations.scenarios.bounds import BOUNDS, Bounds
from simulations.scenarios.faults.arguments import check
from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.generate import DRAWN
from simulations.scenarios.latency import PRESETS
from simulations.scenarios.scenario import Args, Fault, Load, Network, Scenario

__all__ = ["NAMES", "replay_command", "parse_fault", "apply_settings", "format_fault"]

_FAULT = re.compile(r"(?P<verb>\w+)@(?P<at>[\d.]+)(?:-(?P<until>[\d.]+))?")
NAMES = (
    *("nodes", "datacenters", "zones", "seconds", "calm"),
    *("per_second", "keys", "cost"),
    *("latency", "loss", "repeats", "resets"),
    "least_parts",
)
"""Names that `--set` accepts."""


def apply_settings(scenario: Scenario, words: Iterable[str]) -> Scenario:
    """Apply `NAME=VALUE` settings to a scenario.

    `per_second`, `keys` and `cost` apply to every load. Raises `ConfigError` for an invalid
    setting.
    """
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(
                f"--set must be NAME=VALUE, got {word!r}; NAME is {_join_names(NAMES)}"
            )
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {_join_names(NAMES)}"
            raise ConfigError(f"name in --set must be known, got {word!r}; {hint}")
        match name:
            case "nodes" | "datacenters" | "zones" | "least_parts":
                count = _count(word, value, BOUNDS[Scenario][name])
                scenario = replace(scenario, **{name: count})
            case "seconds" | "calm":
                seconds = _number(word, value, BOUNDS[Scenario][name])
                scenario = replace(scenario, **{name: seconds})
            case "latency":
                if value not in PRESETS:
                    raise ConfigError(f"latency must be {_join_names(PRESETS)}, got --set {word!r}")
                scenario = replace(scenario, network=replace(scenario.network, latency=value))
            case "loss" | "repeats" | "resets":
                share = _number(word, value, BOUNDS[Network][name])
                network = replace(scenario.network, **{name: share})
                scenario = replace(scenario, network=network)
            case _:
                scenario = _with_loads(scenario, name, word, value)
    return scenario


def _with_loads(scenario: Scenario, name: str, word: str, value: str) -> Scenario:
    if name == "per_second":
        rate = _number(word, value, BOUNDS[Load][name])
        return replace(
            scenario, loads=tuple(replace(load, per_second=rate) for load in scenario.loads)
        )
    count = _count(word, value, BOUNDS[Load][name])
    changed = tuple(replace(load, **{name: count}) for load in scenario.loads)
    return replace(scenario, loads=changed)


def parse_fault(text: str) -> Fault:
    """Parse a fault from the text `VERB@AT-UNTIL NAME=VALUE ...`. Raises `ConfigError` if it is
    invalid."""
    first, *words = text.split() or [""]
    found = _FAULT.fullmatch(first)
    if found is None:
        raise ConfigError(
            f"fault must be VERB@AT or VERB@AT-UNTIL in seconds, then NAME=VALUE words, such as "
            f"'cut@8-25 node=n1,n2', got {text!r}; verbs are {_join_names(VERBS)}"
        )
    args: Args = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"fault {text!r}: argument must be NAME=VALUE, got {word!r}")
        if name in args:
            raise ConfigError(
                f"fault {text!r}: argument {name} must be given once, got it twice; write several "
                "hosts as node=n1,n2"
            )
        args[name] = _parse_value(value)
    until = found["until"]
    try:
        fault = Fault(float(found["at"]), found["verb"], float(until) if until else None, args)
        check(fault)
    except ValueError as error:
        raise ConfigError(f"fault {text!r}: {error}") from None
    return fault


def format_fault(fault: Fault) -> str:
    """Format a fault as a text that `parse_fault` accepts."""
    until = "" if fault.until is None else f"-{_format_number(fault.until)}"
    args = "".join(f" {name}={value}" for name, value in fault.args.items())
    return f"{fault.verb}@{_format_number(fault.at)}{until}{args}"


def replay_command(scenario: Scenario, original: Scenario, seed: int) -> str:
    """Return the command line that repeats a run of `scenario`, which is a changed `original`."""
    words = ["ringfence", "simulate", scenario.name, "--seed", str(seed)]
    if scenario.level != original.level or scenario.name == DRAWN:
        words += ["--level", scenario.level]
    for name in ("nodes", "datacenters"):
        if getattr(scenario, name) != getattr(original, name):
            words += [f"--{name}", str(getattr(scenario, name))]
    for name in ("zones", "seconds", "calm", "least_parts"):
        if getattr(scenario, name) != getattr(original, name):
            words += ["--set", f"{name}={_format_number(getattr(scenario, name))}"]
    for name in ("latency", "loss", "repeats", "resets"):
        if getattr(scenario.network, name) != getattr(original.network, name):
            words += ["--set", f"{name}={getattr(scenario.network, name)}"]
    for name in ("per_second", "keys", "cost"):
        now = [getattr(load, name) for load in scenario.loads]
        if now != [getattr(load, name) for load in original.loads]:
            words += ["--set", f"{name}={_format_number(now[0])}"]
    if scenario.faults != original.faults:
        words += [part for fault in scenario.faults for part in ("--fault", format_fault(fault))]
        words += ["--no-faults"] * (not scenario.faults)
    return shlex.join(words)


def _format_number(number: float) -> str:
    """Format a number with all digits and without an exponent."""
    return format(Decimal(repr(number)), "f").removesuffix(".0")


def _parse_value(text: str) -> str | float | int:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _number(word: str, value: str, bounds: Bounds) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not bounds.allow(number):
        raise ConfigError(f"value must be {bounds}, got --set {word!r}")
    return number


def _count(word: str, value: str, bounds: Bounds) -> int:
    if not (value.isascii() and value.isdigit() and bounds.allow(int(value))):
        raise ConfigError(f"value must be {bounds}, got --set {word!r}")
    return int(value)


def _join_names(names: Sequence[str] | Iterable[str]) -> str:
    return ", ".join(names)
