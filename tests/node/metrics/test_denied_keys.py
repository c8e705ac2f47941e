"""The lists of several nodes as one."""

from node.metrics.denied_keys import joined, values_of
from ringfence.rules import Rule
from ringfence.rules.keys import encode_key
from ringfence.wire import Throttled

RULE = Rule(7, "api", (("path", "/x"), ("client", None)), None)


def listed(
    *rows: tuple[bytes, int, int], denied: int = 0, **rules: tuple[int, int, int]
) -> Throttled:
    results = [number for row in rules.values() for number in row]
    columns = [[row[at] for row in rows] for at in range(3)]
    return Throttled(1, denied, *columns, [*rules], results, 9)  # type: ignore[arg-type]


def test_a_key_that_several_nodes_list_is_one_with_all_its_denials() -> None:
    lists = {
        "b": listed((b"owners--1", 2766, 0), (b"owners--2", 9, 1), denied=2780),
        "a": listed((b"owners--2", 322, 4), (b"owners--1", 2, 0), denied=324),
    }

    found = joined(lists)

    assert found.denied == 3104
    assert [(row.key, row.denied, row.error, row.nodes) for row in found.keys] == [
        (b"owners--1", 2768, 0, {"a": 2, "b": 2766}),
        (b"owners--2", 331, 5, {"a": 322, "b": 9}),
    ]


def test_results_of_a_rule_are_added() -> None:
    lists = {"a": listed(one=(1, 2, 3), two=(0, 50, 0)), "b": listed(one=(10, 49, 30))}

    assert joined(lists).rules == [("one", (11, 51, 33)), ("two", (0, 50, 0))]


def test_rules_are_ordered_by_denials_then_by_all_results_then_by_name() -> None:
    rules = {
        "most": (0, 9, 0),
        "checked": (7, 3, 0),
        "shadowed": (1, 3, 5),
        "a": (0, 3, 1),
        "b": (1, 3, 0),
        "unused": (90, 0, 90),
    }

    found = joined({"a": listed(**dict(reversed(rules.items())))})

    assert [name for name, _ in found.rules] == [*rules]


def test_keys_are_ordered_by_denials_then_by_their_error() -> None:
    rows = [(b"more----1", 9, 9), (b"exact---1", 5, 0), (b"exact---2", 5, 0), (b"vague---1", 5, 1)]

    found = joined({"a": listed(*reversed(rows))})

    assert [row.key for row in found.keys] == [key for key, _, _ in rows]


def test_values_that_a_rule_does_not_name_have_empty_names() -> None:
    key = encode_key(RULE.id, ["203.0.113.7", "extra", "more"])

    assert values_of(RULE, key) == [["client", "203.0.113.7"], ["", "extra"], ["", "more"]]
    assert values_of(None, key) == [["", "203.0.113.7"], ["", "extra"], ["", "more"]]


def test_a_key_of_a_known_rule_is_shown_by_names() -> None:
    key = encode_key(RULE.id, ["203.0.113.7"])

    assert values_of(RULE, key) == [["client", "203.0.113.7"]]
    assert values_of(None, key) == [["", "203.0.113.7"]]
    assert values_of(RULE, encode_key(RULE.id, ["x" * 200])) is None
