"""The free-form `metadata` of a rule: whatever a protobuf Struct can hold, and nothing else."""

from math import isfinite

from ringfence.rules.loading.source import Cursor, Item, Kind, Scalar, Table
from ringfence.rules.serialize import MAX_METADATA_DEPTH

__all__ = ["read_metadata"]

_LARGEST = 2**53
"""A Struct's numbers are doubles: whole numbers beyond this lose digits."""


def read_metadata(spot: Cursor, item: Item) -> dict[str, object]:
    """Read a map of text, numbers, flags, nothing, lists and maps; report the rest."""
    table = spot.table(item, "metadata")
    return {} if table is None else _map(spot, table, 1)


def _map(spot: Cursor, table: Table, depth: int) -> dict[str, object]:
    names = [key.text for key, _ in table.pairs if isinstance(key, Scalar)]
    fields = spot.fields(table, names, {}, keep_null=True)
    return {name: _value(spot.below(name), held, depth) for name, held in fields.items()}


def _value(spot: Cursor, item: Item, depth: int) -> object:
    if isinstance(item, Scalar):
        return None if item.kind is Kind.NULL else _scalar(spot, item)
    if depth >= MAX_METADATA_DEPTH:
        spot.error(item.line, f"nested more than {MAX_METADATA_DEPTH} deep", "flatten it")
        return None
    if isinstance(item, Table):
        return _map(spot, item, depth + 1)
    return [_value(spot, held, depth + 1) for held in item.items]


def _scalar(spot: Cursor, item: Scalar) -> bool | int | float | str | None:
    if item.kind is Kind.FLAG:
        return item.flag
    if item.kind is Kind.TEXT:
        return item.text
    number: int | float | None = None
    if item.kind is Kind.WHOLE:
        number = item.whole
    elif item.kind is Kind.FLOAT:
        number = _decimal(item.text)
    if (
        number is None
        or not isfinite(number)
        or (item.kind is Kind.WHOLE and abs(number) > _LARGEST)
    ):
        mend = f"quote it: '{item.text[:40]}'"
        spot.error(item.line, f"{item.text[:40]} does not survive as {item.kind}", mend)
    return number


def _decimal(text: str) -> float:
    """Read a number with a point; infinite when it is written in a way only YAML knows."""
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return float("inf")
