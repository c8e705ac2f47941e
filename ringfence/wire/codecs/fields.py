"""One field of a message: is it of the right type and within its bounds?

Shared by both directions: what `decode` refuses to read, `encode` refuses to write. A field is
named as `Message.field`, which is all that an error tells about it: its value is a stranger's.
"""

from ringfence.wire.bounds import MAX_DEPTH, MAX_ITEMS, MAX_TEXT, MAX_U64
from ringfence.wire.errors import BadMessage, Cause
from ringfence.wire.messages.cluster_messages import Plain

__all__ = ["bad_field", "binary", "flag", "integer", "items", "plain", "real", "text"]


def bad_field(field: str, expected: str) -> BadMessage:
    """Say what `field` must be."""
    return BadMessage(Cause.BAD_FIELD, f"{field} must be {expected}")


def integer(value: object, field: str, least: int = 0, most: int = MAX_U64) -> int:
    """Take an integer from `least` to `most`; True and False are none."""
    if type(value) is int and least <= value <= most:
        return value
    raise bad_field(field, f"an integer from {least} to {most}")


def flag(value: object, field: str) -> bool:
    """Take True or False."""
    if value is True or value is False:
        return value
    raise bad_field(field, "a boolean")


def text(value: object, field: str, most: int = MAX_TEXT) -> str:
    """Take a string of at most `most` characters."""
    if type(value) is str and len(value) <= most:
        return value
    raise bad_field(field, f"a string of at most {most} characters")


def binary(value: object, field: str, most: int) -> bytes:
    """Take at most `most` bytes."""
    if type(value) is bytes and len(value) <= most:
        return value
    raise bad_field(field, f"at most {most} bytes")


def real(value: object, field: str, least: float, most: float) -> float:
    """Take a floating-point number from `least` to `most`."""
    if type(value) is float and least <= value <= most:  # False for NaN as well.
        return value
    raise bad_field(field, f"a floating-point number from {least} to {most}")


def items(value: object, field: str, most: int = MAX_ITEMS) -> list[object]:
    """Take an array of at most `most` items, whatever they are."""
    if type(value) is list and len(value) <= most:
        return value
    raise bad_field(field, f"an array of at most {most} items")


def plain(value: object, field: str, depth: int = MAX_DEPTH) -> Plain:
    """Take data without behaviour: only the types of `Plain`, nested at most `depth` deep."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value  # type: ignore[return-value]  # mypy does not read `in` as a narrowing
    if depth == 0:
        raise bad_field(field, f"nested at most {MAX_DEPTH} deep")
    if type(value) is list:
        return [plain(item, field, depth - 1) for item in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: plain(item, field, depth - 1) for name, item in value.items()}
    raise bad_field(field, "plain data: arrays, maps by string, strings, bytes, numbers")
