"""Case files: a seed and a complete scenario as YAML, which `ringfence simulate case` runs.

A file contains only the values that differ from their defaults. Fields of the scenario need no code
here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec
import yaml
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from ringfence.errors import ConfigError
from ringfence.rules.loading.problems import Problem
from ringfence.rules.loading.yaml_composer import InvalidYaml, parse_plain
from simulations.scenarios.scenario import Scenario

__all__ = ["Case", "format_case", "parse_case", "read_case", "write_case"]

_INTRODUCTION = "# A run of Ringfence's simulator. Repeat it with: ringfence simulate case FILE\n"
_REMEDY = "correct it, or write a new case file with the option --save"


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
        case = msgspec.convert(found, Case)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: case file must be valid: {error}; {_REMEDY}") from error
    unknown = _unknown(found, msgspec.to_builtins(case), "")
    if unknown is not None:
        raise ConfigError(
            f"{name}: case file must contain only fields of a scenario, got {unknown}; {_REMEDY}"
        )
    return case


def read_case(path: Path) -> Case:
    """Read a case file. Raises `ConfigError` if the file cannot be read or is invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the case file {path}: {error}") from error
    return parse_case(text, str(path))


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


def _unknown(given: object, parsed: object, path: str) -> str | None:
    """Return the path of a name in the file that is not a field; None if there is none."""
    if isinstance(given, dict) and isinstance(parsed, dict):
        pairs = [(str(name), each, parsed.get(name, NODEFAULT)) for name, each in given.items()]
    elif isinstance(given, list) and isinstance(parsed, list | tuple):
        known = cast("list[object]", [*parsed])
        pairs = [(str(at), *both) for at, both in enumerate(zip(given, known, strict=True))]
    else:
        return None
    for name, each, other in pairs:
        place = f"{path}.{name}".removeprefix(".")
        if other is NODEFAULT:
            return place
        found = _unknown(each, other, place)
        if found is not None:
            return found
    return None
