"""Case files: a seed and a complete scenario as YAML, which `ringfence simulate case` runs.

A file contains only the values that differ from their defaults. Fields of the scenario need no code
here.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import yaml
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from ringfence.errors import ConfigError
from ringfence.rules.loading.problems import Problem
from ringfence.rules.loading.values import Item, Listing, Scalar, Table
from ringfence.rules.loading.yaml_composer import InvalidYaml, compose, parse_plain
from simulations.scenarios.bounds import SEED
from simulations.scenarios.scenario import Level, Scenario
from simulations.text_files import read_text
from simulations.world.validation import InvalidScenario, Place, validated

__all__ = ["Case", "format_case", "parse_case", "read_case", "write_case"]

_INTRODUCTION = "# A run of Ringfence's simulator. Repeat it with: ringfence simulate case FILE\n"
_REMEDY = "correct it, or write a new case file with the option --save"
_STEP = re.compile(r"\.?([a-z_]+)|\[(\d+)\]")
"""Part of a path in an error of msgspec, such as `$.scenario.loads[0].keys`."""
_NAME = "`key` in "
"""Words before the path if a name of a mapping is wrong."""
_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "int": "an integer",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "null": "empty",
}
"""Types in errors of msgspec, as words of YAML."""


class Case(Struct, frozen=True):
    """A scenario with the seed of its run."""

    seed: int
    scenario: Scenario
    violates: tuple[str, ...] = ()
    """Invariants that this run violated when the file was written."""


class _Dumper(yaml.SafeDumper):
    """Dumper that writes texts with several lines as blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)


def format_case(case: Case) -> str:
    """Format a case as the text of a case file."""
    text = yaml.dump(_plain(case), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return _INTRODUCTION + text


def parse_case(text: str, name: str = "case file") -> Case:
    """Parse the text of a case file. Raises `ConfigError` if it is invalid.

    Errors contain `name`, the name of the file.
    """
    try:
        found = parse_plain(text)
    except InvalidYaml as error:
        raise ConfigError(str(Problem(name, error.line, "", error.what, error.fix))) from error
    try:
        return _checked(found)
    except InvalidScenario as error:
        line = 0 if found is None else _line(compose(text), error.place)
        problem = Problem(name, line, "", error.what, error.fix)
        raise ConfigError(str(problem)) from error


def _checked(found: object) -> Case:
    """Convert plain values to a case. Raises `InvalidScenario` for the first wrong value."""
    try:
        case = msgspec.convert(found, Case)
    except msgspec.ValidationError as error:
        raise _invalid_type(found, str(error)) from error
    _check_names(found, msgspec.to_builtins(case), ())
    if not SEED.allow(case.seed):
        raise InvalidScenario(("seed",), f"seed must be {SEED}, got {case.seed}")
    try:
        validated(case.scenario)
    except InvalidScenario as error:
        place = "scenario", *error.place
        raise InvalidScenario(place, error.what, error.fix) from error
    return case


def _invalid_type(found: Any, message: str) -> InvalidScenario:
    """Return the error for plain values of a wrong type, from the message of msgspec."""
    what, _, at = message.partition(" - at ")
    place = tuple(name or int(number) for name, number in _STEP.findall(at.rpartition("$")[2]))
    where = ".".join(map(str, place)) or "case file"
    if at.startswith(_NAME):
        where = f"each name in {where}"
    if missing := re.fullmatch("Object missing required field `(.*)`", what):
        for step in place:
            found = found[step]
        given = ", ".join(map(str, found)) or "nothing"
        return InvalidScenario(place, f"{where} must contain {missing[1]}, got {given}", _REMEDY)
    if wrong := re.fullmatch("Expected `(.*?)`(?:, got `(.*)`)?", what):
        expected, got = (
            " or ".join(_TYPES.get(each, each) for each in (names or "another type").split(" | "))
            for names in wrong.groups()
        )
        return InvalidScenario(place, f"{where} must be {expected}, got {got}", _REMEDY)
    if wrong := re.fullmatch("Invalid enum value (.*)", what):
        levels = " or ".join(get_args(Level))
        return InvalidScenario(place, f"{where} must be {levels}, got {wrong[1]}", _REMEDY)
    return InvalidScenario(place, f"{where} must be valid: {what}", _REMEDY)


def _line(item: Item, place: Place) -> int:
    """Return the line of the value at a place, or of the last part of the place that exists."""
    line = item.line
    for step in place:
        if isinstance(item, Table):
            found = [pair for pair in item.pairs if _is_named(pair[0], step)]
            if not found:
                return line
            line, item = found[-1][0].line, found[-1][1]
        elif isinstance(item, Listing) and isinstance(step, int):
            item = item.items[step]
            line = item.line
    return line


def _is_named(key: Item, step: str | int) -> bool:
    return isinstance(key, Scalar) and key.text == step


def read_case(path: Path) -> Case:
    """Read a case file. Raises `ConfigError` if the file cannot be read or is invalid."""
    return parse_case(read_text(path, "case file"), str(path))


def write_case(case: Case, path: Path) -> None:
    """Write a case file. Raises `ConfigError` if that is impossible."""
    try:
        path.write_text(format_case(case), encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"cannot write the case file {path}: {error.strerror}") from error


def _plain(value: object) -> object:
    """Return a value as lists and dictionaries, without fields that have their defaults."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if not isinstance(value, Struct):
        return value
    found: dict[str, object] = {}
    for field in fields(value):
        default = field.default
        if field.default_factory is not NODEFAULT:
            default = field.default_factory()
        now = getattr(value, field.name)
        if default is NODEFAULT or now != default:
            found[field.name] = _plain(now)
    return found


def _check_names(given: object, parsed: object, place: Place) -> None:
    """Raise `InvalidScenario` for a name in the file that is not a field."""
    if isinstance(given, dict) and isinstance(parsed, dict):
        for name, each in given.items():
            if name not in parsed:
                where = ".".join(map(str, place)) or "case file"
                known = ", ".join(map(str, parsed))
                what = f"field of {where} must be one of {known}, got {name!r}"
                raise InvalidScenario((*place, str(name)), what, _REMEDY)
            _check_names(each, parsed[name], (*place, name))
    elif isinstance(given, list) and isinstance(parsed, list | tuple):
        known_items = cast("list[object]", [*parsed])
        for at, (each, other) in enumerate(zip(given, known_items, strict=True)):
            _check_names(each, other, (*place, at))
