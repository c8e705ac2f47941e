"""Validation of single message fields: the right type, and a value within its bounds.

Encoder and decoder share them: `encode` refuses to write what `decode` refuses to read. An error
names the field as `Message.field`. It contains numbers, but no text or bytes of the sender.
"""

from operator import le
from typing import cast

from ringfence.wire.bounds import MAX_DEPTH, MAX_ITEMS, MAX_TEXT, MAX_U64
from ringfence.wire.errors import BadMessage, Cause
from ringfence.wire.messages.cluster_messages import Plain

__all__ = [
    "IntegerFields",
    "bad_field",
    "binary",
    "flag",
    "integer",
    "items",
    "plain",
    "real",
    "text",
]

_SIZED: dict[type, str] = {str: "a string", bytes: "bytes", list: "an array", dict: "a map"}
_NOT_SHOWN = object()
_ONLY_INTEGERS = {int}


def bad_field(field: str, expected: str, value: object = _NOT_SHOWN) -> BadMessage:
    """Create the error for an invalid `field`; it contains the wrong `value` if one is given."""
    got = "" if value is _NOT_SHOWN else f", got {_describe(value)}"
    return BadMessage(Cause.BAD_FIELD, f"{field} must be {expected}{got}")


def _describe(value: object) -> str:
    match value:
        case None:
            return "nil"
        case bool() | int() | float():
            return str(value)
        case str() | bytes() | list() | dict():
            return f"{_SIZED[type(value)]} of length {len(value)}"
        case _:
            return "another type"


def integer(value: object, field: str, least: int = 0, most: int = MAX_U64) -> int:
    """Return `value` if it is an integer from `least` to `most`; refuse booleans and other
    values."""
    if type(value) is int and least <= value <= most:
        return value
    raise bad_field(field, f"an integer from {least} to {most}", value)


class IntegerFields:
    """Bounds of several integer fields of one message, which are checked in one call."""

    def __init__(self, message: str, **bounds: tuple[int, int]) -> None:
        """`bounds` has the least and the greatest value of each field, in the order in which
        `checked` receives them."""
        self._names = [f"{message}.{name}" for name in bounds]
        self._least, self._most = zip(*bounds.values(), strict=True)

    def checked(self, *values: object) -> tuple[int, ...]:
        """Return the values if all are integers within their bounds; refuse booleans and other
        values."""
        numbers = cast(tuple[int, ...], values)
        if not (
            {*map(type, values)} == _ONLY_INTEGERS
            and all(map(le, self._least, numbers))
            and all(map(le, numbers, self._most))
        ):
            rows = zip(values, self._names, self._least, self._most, strict=True)
            for value, name, least, most in rows:
                integer(value, name, least, most)
        return numbers


def flag(value: object, field: str) -> bool:
    """Return `value` if it is a boolean; refuse other values."""
    if value is True or value is False:
        return value
    raise bad_field(field, "a boolean", value)


def text(value: object, field: str, most: int = MAX_TEXT) -> str:
    """Return `value` if it is a string of at most `most` characters; refuse other values."""
    if type(value) is str and len(value) <= most:
        return value
    raise bad_field(field, f"a string of at most {most} characters", value)


def binary(value: object, field: str, most: int) -> bytes:
    """Return `value` if it is a byte string of at most `most` bytes; refuse other values."""
    if type(value) is bytes and len(value) <= most:
        return value
    raise bad_field(field, f"at most {most} bytes", value)


def real(value: object, field: str, least: float, most: float) -> float:
    """Return `value` if it is a floating-point number from `least` to `most`; refuse other
    values."""
    if type(value) is float and least <= value <= most:  # False for NaN as well.
        return value
    raise bad_field(field, f"a floating-point number from {least} to {most}", value)


def items(value: object, field: str, most: int = MAX_ITEMS) -> list[object]:
    """Return `value` if it is an array of at most `most` items of any type; refuse other values."""
    if type(value) is list and len(value) <= most:
        return value
    raise bad_field(field, f"an array of at most {most} items", value)


def plain(value: object, field: str, depth: int = MAX_DEPTH) -> Plain:
    """Return `value` if it has only the types of `Plain`, nested at most `depth` deep; refuse other
    values."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value  # type: ignore[return-value]  # mypy does not read `in` as a narrowing
    if depth == 0:
        raise bad_field(field, f"nested at most {MAX_DEPTH} deep")
    if type(value) is list:
        return [plain(item, field, depth - 1) for item in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: plain(item, field, depth - 1) for name, item in value.items()}
    raise bad_field(field, "plain data: arrays, maps by string, strings, bytes, numbers", value)
