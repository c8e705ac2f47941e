"""Operations of each check: the plain and the compiled form behave alike."""

import threading

import pytest

from ringfence.client.decision import Decision
from ringfence.client.requests import check_ops_plain
from ringfence.limiter import Limit
from ringfence.peering.clock import SystemClock
from ringfence.rules import Rule, RuleSet
from ringfence.rules.keys import bounded, with_length

RULE = Rule(1, "d", (("user", None),), Limit(5, 60))
OTHER = Rule(2, "d", (("user", "root"),), Limit(9, 60))
SHADOW = Rule(3, "d", (("user", "new"),), Limit(9, 60), shadow=True)
RULES = RuleSet.of(RULE, OTHER)
ELSEWHERE = (OTHER, b"found by the rules")
"""Result of the general matching in these tests."""


def twins():
    """Return the plain form, and the compiled form if it was built."""
    try:
        from ringfence.client.requests import _check_ops
    except ImportError:
        return [check_ops_plain]
    return [check_ops_plain, _check_ops]


pytestmark = pytest.mark.parametrize("form", twins())


def matches_of(form, general=ELSEWHERE):
    """Return matches with two users, all places, and a request of two entries."""

    class Known(form.Matches):
        def match(self, rules, domain, descriptors):
            return general

    known = Known()
    known.rules = RULES
    known.known = {
        ("d", "user"): {"ann": (RULE, b"ann's key"), "root": (OTHER, b"root's key")},
        ("d",): {(("user", "ann"), ("place", "here")): (RULE, b"both")},
    }
    known.of_any_value = {("d", "place"): (RULE, b"rule-id!")}
    return known


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        ({"user": "ann"}, (RULE, b"ann's key")),
        ({"user": "root"}, (OTHER, b"root's key")),
        ({"place": "x"}, (RULE, b"rule-id!\x01x")),
        ({"user": "ann", "place": "here"}, (RULE, b"both")),
        ({"place": "here", "user": "ann"}, ELSEWHERE),
        ({}, ELSEWHERE),
        ({"user": "nobody"}, ELSEWHERE),
        ({"user": 5}, ELSEWHERE),
        ({"user": ["ann"]}, ELSEWHERE),
        ({"place": 5}, ELSEWHERE),
        ({5: "ann"}, ELSEWHERE),
        ({"other": "ann"}, ELSEWHERE),
        ({"user": "ann", "place": ["here"]}, ELSEWHERE),
        ([{"user": "ann"}], ELSEWHERE),
        ("user", ELSEWHERE),
        (None, ELSEWHERE),
    ],
)
def test_known_requests_are_found_and_others_are_matched_by_the_rules(form, request_, found):
    matches = matches_of(form)

    assert matches.find(RULES, "d", request_) == found
    assert matches.find(RULES, "e", request_) == ELSEWHERE
    assert matches.find(RULES, ["d"], request_) == ELSEWHERE
    assert matches.find(RuleSet(), "d", request_) == ELSEWHERE
    assert matches.find_all(RULES, "d", [{"user": "ann"}, request_]) == (
        [RULE, found[0]],
        [b"ann's key", found[1]],
    )


@pytest.mark.parametrize("general", [None, (None, b"")])
def test_a_batch_with_an_unmatched_request_is_left_to_the_general_matching(form, general):
    matches = matches_of(form, general)

    assert matches.find(RULES, "d", {"user": "nobody"}) == general
    assert matches.find_all(RULES, "d", ({"user": "ann"}, {"user": "nobody"})) is None
    assert matches.find_all(RULES, "d", ({"user": "ann"},)) == ([RULE], [b"ann's key"])
    assert matches.find_all(RULES, "d", []) == ([], [])


class Text(str):
    """Subclass of `str`."""


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
def test_a_key_ends_with_the_length_and_bytes_of_its_value(form, value, end):
    found = ELSEWHERE if end is None else (RULE, b"rule-id!" + end)

    assert matches_of(form).find(RULES, "d", {"place": value}) == found


@pytest.mark.parametrize("value", ["x" * 120, "ü" * 60, "x" * 300, "\udc80" * 50])
def test_a_key_that_would_be_too_long_ends_with_a_digest(form, value):
    key = bounded(b"rule-id!" + with_length(value))

    assert matches_of(form).find(RULES, "d", {"place": value}) == (RULE, key)
    assert len(key) < 50


def test_a_list_that_changes_during_the_call_is_read_as_it_was(form):
    requests = []

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            requests.clear()
            return str.__eq__(self, other)

    for name, key in (("place", b"rule-id!\x03ann"), ("user", b"ann's key")):
        requests += [{Name(name): "ann"} for _ in range(100)]
        assert matches_of(form).find_all(RULES, "d", requests) == ([RULE] * 100, [key] * 100)


class Engine:
    """Fake engine with a clock and a lock, which allows all checks except those of one key."""

    def __init__(self):
        self.asked = []
        self.lock = threading.Lock()

    def now(self):
        assert self.lock.locked()
        return 17

    def decide_lone(self, key, cost, now, source):
        assert self.lock.locked()
        if key == b"root's key":
            raise ZeroDivisionError
        self.asked.append((key, cost, now))
        return (0, 5, 5 - cost, 0, 10**9, 0, 0, source)


def checks_of(form, engine, clock=None, general=None):
    matches = matches_of(form, general)
    return form.LocalChecks(matches, RULES, engine.lock, clock or engine, engine.decide_lone)


def test_a_check_of_one_counter_is_decided_at_once(form):
    engine = Engine()
    checks = checks_of(form, engine)

    made = checks.check("d", {"user": "ann"}, 2), checks.decide(OTHER, b"key", 3)

    assert made == (
        Decision(RULE, (0, 5, 3, 0, 10**9, 0, 0, 0)),
        Decision(OTHER, (0, 5, 2, 0, 10**9, 0, 0, 0)),
    )
    assert [str(each.source) for each in made] == ["owner"] * 2
    assert engine.asked == [(b"ann's key", 2, 17), (b"key", 3, 17)]


@pytest.mark.parametrize("cost", [-1, 1.0, True, None, "1", 2**53, 2**70])
def test_an_invalid_cost_is_left_to_the_general_path(form, cost):
    engine = Engine()

    assert checks_of(form, engine).check("d", {"user": "ann"}, cost) is None
    assert engine.asked == []


@pytest.mark.parametrize("general", [None, (None, b"")])
def test_a_request_without_a_counter_is_left_to_the_general_path(form, general):
    engine = Engine()

    assert checks_of(form, engine, general=general).check("d", {"user": "nobody"}, 1) is None
    assert engine.asked == []


def test_the_lock_is_free_after_an_error(form):
    engine = Engine()

    with pytest.raises(ZeroDivisionError):
        checks_of(form, engine).check("d", {"user": "root"}, 1)
    assert not engine.lock.locked()


def test_the_system_clock_is_read_for_each_check(form):
    engine, clock = Engine(), SystemClock()
    checks = checks_of(form, engine, clock)

    before = clock.now()
    for _ in range(3):
        checks.check("d", {"user": "ann"}, 1)
    times = [now for _, _, now in engine.asked]

    assert before <= times[0] <= times[1] <= times[2] <= clock.now()


def test_each_row_becomes_a_decision_by_its_rule(form):
    allowed, denied = (0, 5, 3, 0, 10**9, 0, 0, 0), (2, 9, 0, 10**9, 10**9, 0, 0, 0)

    made = form.decisions_of([RULE, OTHER], [allowed, denied])

    assert made == [Decision(RULE, allowed), Decision(OTHER, denied)]
    assert [each.rule for each in made] == [RULE, OTHER]
    assert [each.allowed for each in made] == [True, False]
    assert [each.remaining for each in made] == [3, 0]
    assert form.decisions_of([], []) == []


def test_as_many_rules_as_rows_are_needed(form):
    with pytest.raises(ValueError, match="1"):
        form.decisions_of([RULE, OTHER], [(0, 5, 3, 0, 10**9, 0, 0, 0)])


@pytest.mark.parametrize(
    ("row", "error"), [((), IndexError), ([], IndexError), (None, TypeError), (5, TypeError)]
)
def test_a_row_without_a_code_is_an_error(form, row, error):
    with pytest.raises(error):
        form.decisions_of([RULE], [row])
    with pytest.raises(error):
        form.decision_of(RULE, row)


@pytest.mark.parametrize("code", range(6))
@pytest.mark.parametrize("rule", [RULE, SHADOW])
def test_compiled_and_plain_decisions_of_a_row_are_equal(form, rule, code):
    row = (code, 9, 3, 10**9, 10**9, 5, 0, 1)

    [made] = form.decisions_of([rule], [row])

    assert made.allowed is Decision(rule, row).allowed
    assert made == form.decision_of(rule, row) == Decision(rule, row)
