"""Conversion of msgspec's validation errors to plain words: kinds of values instead of Python
types.
"""

import re
from collections.abc import Iterable, Mapping
from enum import EnumMeta

import msgspec

from ringfence.rules.periods import suggest

__all__ = ["choices_of", "describe_error"]

_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]+)`(?:, got `(?P<got>[^`]+)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_ENUM = re.compile(r"Invalid enum value '(?P<value>.*)'")
_INDEX = re.compile(r"\[\d+\]$")
_PLACE = re.compile(r" - at `(?P<place>[^`]*)`$")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def choices_of(kind: type[msgspec.Struct]) -> dict[str, list[str]]:
    """Return the permitted words of each enum field of a msgspec struct, by field name."""
    fields = msgspec.structs.fields(kind)
    return {field.name: list(field.type) for field in fields if isinstance(field.type, EnumMeta)}


def describe_error(
    error: msgspec.ValidationError,
    *,
    fields: Iterable[str] = (),
    choices: Mapping[str, Iterable[str]] | None = None,
    place: str = "the value",
    value: str | None = None,
) -> str:
    """Describe a validation error, as in `max_keys must be a whole number, got text`.

    `fields` are the known names of a table. `choices` are the allowed words by field; the items of
    a list share the words of the list's field. `place` is the field to name when the error contains
    none, and `value` is the text of its value.
    """
    text = str(error)
    found = _PLACE.search(text)
    at = found["place"].removeprefix("$").removeprefix(".") if found else ""
    what = _PLACE.sub("", text)
    if match := _EXPECTED.match(what):
        got = repr(value) if value is not None else _kinds(match["got"] or "").removeprefix("a ")
        return f"{at or place} must be {_kinds(match['wanted'])}" + (f", got {got}" if got else "")
    if match := _ENUM.match(what):
        known = list((choices or {}).get(_INDEX.sub("", at or place), ()))
        hint = suggest(match["value"], known)  # Without a similar word it repeats the list.
        return f"{at or place} must be one of {', '.join(known)}, got {match['value']!r}" + (
            f"; {hint}" if hint.startswith("did") else ""
        )
    if match := _UNKNOWN.match(what):
        where = f" in {at}" if at else ""
        return f"unknown setting {match['name']!r}{where}; {suggest(match['name'], fields)}"
    if match := _MISSING.match(what):
        return f"{at or place} must have {match['name']!r}"
    return f"{at}: {what}" if at else what


def _kinds(types: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in types.split(" | "))
