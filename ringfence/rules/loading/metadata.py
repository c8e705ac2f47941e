"""Reader of the free-form `metadata` of a rule: any value that a protobuf Struct can hold."""

from math import isfinite

from ringfence.rules.loading.cursor import Cursor
from ringfence.rules.loading.values import Item, Kind, Scalar, Table
from ringfence.rules.serialize import MAX_METADATA_DEPTH

__all__ = ["read_metadata"]

_LARGEST = 2**53
"""Numbers of a Struct are doubles: larger whole numbers lose digits."""


def read_metadata(cursor: Cursor, item: Item) -> dict[str, object]:
    """Read metadata: texts, numbers, flags, nulls, lists and maps; report other values."""
    table = cursor.table(item, "metadata")
    return {} if table is None else _map(cursor, table, 1)


def _map(cursor: Cursor, table: Table, depth: int) -> dict[str, object]:
    names = [key.text for key, _ in table.pairs if isinstance(key, Scalar)]
    fields = cursor.fields(table, names, {}, keep_null=True)
    return {name: _value(cursor.below(name), each, depth) for name, each in fields.items()}


def _value(cursor: Cursor, item: Item, depth: int) -> object:
    if isinstance(item, Scalar):
        return None if item.kind is Kind.NULL else _scalar(cursor, item)
    if depth >= MAX_METADATA_DEPTH:
        cursor.error(item.line, f"nested more than {MAX_METADATA_DEPTH} deep", "flatten it")
        return None
    if isinstance(item, Table):
        return _map(cursor, item, depth + 1)
    return [_value(cursor, each, depth + 1) for each in item.items]


def _scalar(cursor: Cursor, item: Scalar) -> bool | int | float | str | None:
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
        fix = f"quote it: '{item.text[:40]}'"
        cursor.error(item.line, f"{item.text[:40]} cannot be kept exactly as {item.kind}", fix)
    return number


def _decimal(text: str) -> float:
    """Parse a number with a decimal point; return infinity for notations that only YAML permits."""
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return float("inf")
