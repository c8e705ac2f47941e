import pytest

from ringfence.client.decision import Decision
from ringfence.client.requests import batch_ops_plain
from ringfence.limiter import Limit
from ringfence.rules import Rule
from ringfence.rules.keys import bounded, with_length

RULE = Rule(1, "d", (("user", None),), Limit(5, 60))
OTHER = Rule(2, "d", (("user", "root"),), Limit(9, 60))
SHADOW = Rule(3, "d", (("user", "new"),), Limit(9, 60), shadow=True)
KNOWN = {"ann": (RULE, b"ann's key"), "root": (OTHER, b"root's key")}


def twins():
    """The plain functions, and the compiled ones where they were built."""
    try:
        from ringfence.client.requests import _batch_ops
    except ImportError:
        return [batch_ops_plain]
    return [batch_ops_plain, _batch_ops]


pytestmark = pytest.mark.parametrize("rows", twins())


def test_requests_of_one_entry_are_found_by_its_value(rows):
    requests = [{"user": "root"}, {"user": "ann"}, {"user": "ann"}]

    assert rows.find_lone(KNOWN, "user", requests) == (
        [OTHER, RULE, RULE],
        [b"root's key", b"ann's key", b"ann's key"],
    )
    assert rows.find_lone(KNOWN, "user", tuple(requests[:1])) == ([OTHER], [b"root's key"])
    assert rows.find_lone(KNOWN, "user", []) == ([], [])


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"user": "nobody"},
        {"user": 5},
        {"place": "ann"},
        {"user": "ann", "place": "here"},
        [{"user": "ann"}],
        "user",
        None,
    ],
)
def test_one_request_of_another_kind_or_not_known_leaves_all_to_others(rows, other):
    assert rows.find_lone(KNOWN, "user", [{"user": "ann"}, other]) is None


def test_a_value_that_cannot_be_looked_up_is_an_error(rows):
    with pytest.raises(TypeError):
        rows.find_lone(KNOWN, "user", [{"user": ["ann"]}])


class Text(str):
    """Text of a type of its own."""


@pytest.mark.parametrize(
    ("value", "end"),
    [
        ("ann", b"\x03ann"),
        (Text("ann"), b"\x03ann"),
        ("", b"\0"),
        ("ä", b"\x02\xc3\xa4"),
        ("\udc80", b"\x03\xed\xb2\x80"),
        ("x" * 119, b"\x77" + b"x" * 119),
        (b"ann", None),
        (5, None),
        (None, None),
    ],
)
def test_a_key_ends_with_the_length_and_bytes_of_its_value(rows, value, end):
    key = None if end is None else b"rule-id!" + end

    assert rows.key_of_value(b"rule-id!", value) == key
    keys = rows.keys_of_values(b"rule-id!", "user", [{"user": "bob"}, {"user": value}])
    assert keys == (None if key is None else [b"rule-id!\x03bob", key])


@pytest.mark.parametrize("value", ["x" * 120, "ü" * 60, "x" * 300, "\udc80" * 50])
def test_a_key_that_would_be_too_long_ends_with_a_digest(rows, value):
    key = bounded(b"rule-id!" + with_length(value))

    assert rows.key_of_value(b"rule-id!", value) == key
    assert len(key) < 50


def test_a_list_that_changes_meanwhile_is_read_as_it_was(rows):
    requests = []

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            requests.clear()
            return str.__eq__(self, other)

    requests += [{Name("user"): "ann"} for _ in range(100)]
    assert rows.keys_of_values(b"rule-id!", "user", requests) == [b"rule-id!\x03ann"] * 100
    requests += [{Name("user"): "ann"} for _ in range(100)]
    found = rows.find_lone(KNOWN, "user", requests)
    assert found == ([RULE] * 100, [b"ann's key"] * 100)


@pytest.mark.parametrize(
    "other", [{}, {"place": "ann"}, {"user": "ann", "place": "here"}, [{"user": "ann"}], "user"]
)
def test_keys_are_computed_only_for_requests_of_one_entry(rows, other):
    assert rows.keys_of_values(b"rule-id!", "user", [{"user": "ann"}, other]) is None
    assert rows.keys_of_values(b"rule-id!", "user", ()) == []


def test_each_row_becomes_a_decision_by_its_rule(rows):
    allowed, denied = (0, 5, 3, 0, 10**9, 0, 0, 0), (2, 9, 0, 10**9, 10**9, 0, 0, 0)

    made = rows.decisions([RULE, OTHER], [allowed, denied])

    assert made == [Decision(RULE, allowed), Decision(OTHER, denied)]
    assert [each.rule for each in made] == [RULE, OTHER]
    assert [each.allowed for each in made] == [True, False]
    assert [each.remaining for each in made] == [3, 0]
    assert rows.decisions([], []) == []


def test_as_many_rules_as_rows_are_needed(rows):
    with pytest.raises(ValueError, match="1"):
        rows.decisions([RULE, OTHER], [(0, 5, 3, 0, 10**9, 0, 0, 0)])


@pytest.mark.parametrize(
    ("row", "error"), [((), IndexError), ([], IndexError), (None, TypeError), (5, TypeError)]
)
def test_a_row_without_a_code_is_an_error(rows, row, error):
    with pytest.raises(error):
        rows.decisions([RULE], [row])


@pytest.mark.parametrize("code", range(6))
@pytest.mark.parametrize("rule", [RULE, SHADOW])
def test_compiled_and_plain_decisions_of_a_row_are_equal(rows, rule, code):
    row = (code, 9, 3, 10**9, 10**9, 5, 0, 1)

    [made] = rows.decisions([rule], [row])

    assert made.allowed is Decision(rule, row).allowed
    assert made == Decision(rule, row)
