"""What is wrong with a value that a person wrote, in words for people instead of for programmers.

Reads msgspec's messages, which name Python types and JSON paths; what it cannot read it passes on.
"""

import re

import msgspec

__all__ = ["in_plain_words"]

_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]+)`(?:, got `(?P<got>[^`]+)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_ENUM = re.compile(r"Invalid enum value (?P<value>'.*')")
_PLACE = re.compile(r" - at `(?P<place>[^`]*)`$")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def in_plain_words(error: msgspec.ValidationError, known: str = "") -> str:
    """Say where and what, as in `max_keys: expected a whole number, got text`.

    `known` lists the words that may stand in place of an unknown one.
    """
    text = str(error)
    found = _PLACE.search(text)
    place = found["place"].removeprefix("$").removeprefix(".") if found else ""
    what = _PLACE.sub("", text)
    if told := _EXPECTED.match(what):
        what = f"expected {_kinds(told['wanted'])}"
        if told["got"]:
            what += f", got {_kinds(told['got']).removeprefix('a ')}"
    elif told := _MISSING.match(what):
        what = f"{told['name']} is missing"
    elif told := _UNKNOWN.match(what):
        what = f"there is no {told['name']!r} here"
    elif told := _ENUM.match(what):
        what = f"{told['value']} is not known; known are {known}"
    return f"{place}: {what}" if place else what


def _kinds(types: str) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in types.split(" | "))
