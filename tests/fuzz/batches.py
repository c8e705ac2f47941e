"""Fuzz target: compiled and plain operations on each key or request of a batch, which must agree.

Bytes encode lists of keys, requests and result rows, valid and invalid. The lists are arguments of
`hashring.pick`, of `group_by` and of the operations of `check_many`. Both forms must return or
raise the same.

`python -m tests.fuzz.batches --seconds 60 --seed 1`.
"""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from hashring import SHARDS, _compiled, shards
from ringfence.client.requests import _check_ops, check_ops_plain
from ringfence.limiter import Limit
from ringfence.rules import Rule, RuleSet
from ringfence.wire import OutcomeRow
from tests.fuzz.bytes_to_histories import Choices, main

__all__ = ["run"]

RULES = [
    Rule(number, "d", (("user", None),), Limit(5, 60), shadow=number == 1) for number in range(3)
]
KNOWN: dict[object, tuple[Rule, bytes]] = {
    f"user-{number}": (RULES[number % 3], b"key-%d" % number) for number in range(200)
}
RULE_SET = RuleSet()
FORMS = _check_ops, check_ops_plain
WRONG = (None, 5, "", [], {}, (), 1.5)
TABLES: tuple[Sequence[object], ...] = (
    range(SHARDS),
    [shard % 3 for shard in range(SHARDS)],
    bytes(shard % 7 for shard in range(SHARDS)),
    (None,) * SHARDS,
    [[]] * SHARDS,  # A list cannot be the key of a group.
    range(SHARDS // 2),
    (),
)
MARKS = (
    bytes([1]) * SHARDS,
    bytes(shard % 2 for shard in range(SHARDS)),
    bytearray(SHARDS),
    bytes([1]) * (SHARDS // 2),
    b"",
)


def run(data: bytes) -> int:
    """Compare the results for all lists that `data` encodes; return the number of their items."""
    read = Choices(data)
    items = 0
    while read:
        count = read.below(64)
        items += 1 + count
        match read.below(4):
            case 0:
                keys = _with_wrong([read.take(read.below(24)) for _ in range(count)], read)
                table, marked = TABLES[read.below(7)], MARKS[read.below(5)]
                _compare(_compiled.pick, shards.pick, keys, table)
                _compare(_compiled.group_by, shards.group_by, keys, table, marked)
            case 1:
                requests = _with_wrong([_request(read) for _ in range(count)], read)
                domain = ("d", "d", "e", None, [])[read.below(5)]
                head = read.take(8)
                forms = [_matches_of(form, head) for form in FORMS]
                texts = [{"place": _text(read)} for _ in range(read.below(4))]
                for each in (requests, texts):
                    _compare(*[form.find_all for form in forms], RULE_SET, domain, each)
            case _:  # Decisions are not compared by `==`, which reads whole rows.
                rules = [RULES[read.below(3)] for _ in range(count)]
                rows = _with_wrong([_row(read) for _ in range(count)], read)
                if read.below(20) == 1:
                    rows = []
                _compare(*map(_fields_of, FORMS), rules, rows)
    return items


def _matches_of(form: ModuleType, head: bytes) -> check_ops_plain.Matches:
    """Return matches that know the users, and compute the keys of all places."""

    class Known(form.Matches):  # type: ignore[misc, name-defined]
        def match(self, rules: RuleSet, domain: str, descriptors: object) -> None:
            return None

    known: check_ops_plain.Matches = Known()
    known.rules = RULE_SET
    known.known = {("d", "user"): KNOWN}
    known.of_any_value = {("d", "place"): (RULES[0], head)}
    return known


def _fields_of(form: ModuleType) -> Callable[..., object]:
    def fields(rules: list[Rule], rows: list[OutcomeRow]) -> object:
        made = form.decisions_of(rules, rows)
        return [(each._rule, each._row, each._data, each.allowed) for each in made]

    return fields


def _request(read: Choices) -> dict[object, object]:
    value = f"user-{read.below(202) if read.below(20) == 1 else read.below(200)}"
    match read.below(200):
        case 1:
            return {"place": value}
        case 2:
            return {"user": value, "place": value}
        case 3:
            return {"user": WRONG[read.below(len(WRONG))]}
        case _:
            return {"user": value}


def _text(read: Choices) -> str:
    """Return text of up to 299 bytes, with lone surrogates for bytes that are no text."""
    return read.take(read.below(300)).decode("utf-8", "surrogateescape")


def _row(read: Choices) -> object:
    row = (read.below(6), 9, read.below(9), 10**9, 2**62, 0, 0, 1)
    return (row, row[:1], [*row], ())[max(0, read.below(100) - 96)]


def _with_wrong(items: list[object], read: Choices) -> object:
    """Return the items, perhaps with an invalid item, or an object that is no list."""
    match read.below(20):
        case 1:
            return (None, 5)[read.below(2)]
        case 2 if items:
            items[read.below(len(items))] = WRONG[read.below(len(WRONG))]
    return items


def _compare(
    compiled: Callable[..., object], plain: Callable[..., object], *arguments: object
) -> None:
    found, expected = _result_of(compiled, *arguments), _result_of(plain, *arguments)
    assert found == expected, arguments
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert [*found] == [*expected]


def _result_of(function: Callable[..., object], *arguments: object) -> object:
    """Return the result, or the class of the error."""
    try:
        return function(*arguments)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        return type(error)


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.batches", "items", size=4000))
