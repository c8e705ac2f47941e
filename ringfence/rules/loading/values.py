"""Values of a rule file in their written form, each with its line.

The YAML composer and the mapping reader produce these values; the readers of keys consume them.
"""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

__all__ = ["MAX_DEPTH", "Item", "Kind", "Listing", "Scalar", "Table", "is_unicode"]

MAX_DEPTH = 100
"""Maximum nesting of maps and lists; each level of descriptors uses two."""


class Kind(StrEnum):
    """Type of a scalar by YAML's rules; the enum value is its name in messages."""

    TEXT = "text"
    WHOLE = "a whole number"
    FLOAT = "a number with a point"
    FLAG = "true or false"
    NULL = "nothing"
    OTHER = "a date"
    MERGE = "a merge key"
    """`<<` in a place where it is not the key of a map."""


class Scalar(Struct, frozen=True):
    """Single value of a rule file, in its written form."""

    kind: Kind
    text: str
    line: int

    @property
    def flag(self) -> bool:
        """Value of a rule file's scalar as a boolean."""
        return self.text.lower() in ("true", "yes", "on")

    @property
    def whole(self) -> int | None:
        """Value of the scalar as a decimal whole number with at most 20 digits; None otherwise."""
        digits = self.text.replace("_", "").removeprefix("+")
        bare = digits.removeprefix("-")
        is_plain = bare.isdecimal() and len(bare) <= 20 and (bare[0] != "0" or bare == "0")
        return int(digits) if is_plain else None


class Listing(Struct, frozen=True):
    """List of values in a rule file."""

    items: "tuple[Item, ...]"
    line: int


class Table(Struct, frozen=True):
    """Map in a rule file: pairs in file order; keys may still be invalid or repeated."""

    pairs: "tuple[tuple[Item, Item], ...]"
    line: int


Item: TypeAlias = Scalar | Listing | Table


def is_unicode(text: str) -> bool:
    """Whether a text contains no lone surrogates, which cannot be sent or printed."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)
