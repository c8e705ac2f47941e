import pytest

from ringfence.client.requests import match_cache as module
from ringfence.client.requests.match_cache import MatchCache
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Descriptor, Rule, RuleSet, rule_id

MINUTE = 60_000_000_000


class Text(str):
    """Subclass of `str`, as in template libraries."""


def rules(amount=5, **flags):
    named = {}
    for key, algorithm in (("user", Algorithm.TOKEN_BUCKET), ("place", Algorithm.CONCURRENCY)):
        path = ((key, None),)
        limit = Limit(amount, 60, algorithm)
        named[key] = Rule(rule_id("d", path), "d", path, limit, **flags)
    path = (("free", None),)
    return RuleSet.of(*named.values(), Rule(rule_id("d", path), "d", path, None))


def rules_of_values():
    """Return rules whose keys must be cached, because one value has a rule of its own."""
    path = (("user", "root"),)
    return RuleSet.of(*rules().rules(), Rule(rule_id("d", path), "d", path, Limit(9, 60)))


def usual(known, *entries):
    match = known.match("d", [Descriptor(tuple(entries))])[0]
    return match.rule, match.key


def test_cached_matches_equal_the_matches_of_the_rules():
    known, found = rules_of_values(), MatchCache()

    first = found.find(known, "d", {"user": "ann"})

    assert first == usual(known, ("user", "ann"))
    assert found.find(known, "d", {"user": "ann"}) is first
    second = usual(known, ("user", "bob"))
    assert found.find_all(known, "d", [{"user": "ann"}, {"user": "bob"}]) == (
        [first[0], second[0]],
        [first[1], second[1]],
    )


def test_only_requests_of_one_plain_counter_are_cached():
    known, found = rules(), MatchCache()

    for descriptors in (
        {},
        {"place": "p"},
        {"free": "f"},
        {"user": 5},
        {"user": ["list"]},
        {5: "user"},
        [{"user": "ann"}, {"user": "bob"}],
        Descriptor((("user", "ann"),), cost=3),
        "user",
        None,
    ):
        for _ in range(2):
            assert found.find(known, "d", descriptors) is None
            assert found.find_all(known, "d", [{"user": "ann"}, descriptors]) is None


def test_unmatched_requests_are_cached_alone_but_not_in_batches():
    known, found = rules(), MatchCache()

    assert found.find(known, "d", {"nobody": "knows"}) == (None, b"")
    assert found.find(known, "elsewhere", {"user": "ann"}) == (None, b"")
    assert found.find(known, "d", {"nobody": 5}) is None
    assert found.find_all(known, "d", [{"user": "ann"}, {"nobody": "knows"}]) is None


def test_a_lone_descriptor_is_found_in_any_form():
    known, found = rules(), MatchCache()
    met = found.find(known, "d", {"user": "ann"})

    assert met is not None
    for form in (
        [{"user": "ann"}],
        Descriptor((("user", "ann"),)),
        [Descriptor((("user", "ann"),))],
    ):
        assert found.find(known, "d", form) == met


def test_limits_that_a_check_carries_are_not_cached():
    assert MatchCache().find(rules().as_carried(), "d", {"user": "ann"}) is None


def test_a_number_is_not_taken_for_text_with_the_same_digits():
    known, found = rules(), MatchCache()
    found.find(known, "d", {"user": "1"})

    assert found.find(known, "d", {"user": 1}) is None


def test_new_rules_clear_the_cached_matches():
    old, new, found = rules(5), rules(9), MatchCache()
    found.find(old, "d", {"user": "ann"})

    assert found.find(new, "d", {"user": "ann"})[0].limit.amount == 9
    assert found.find_all(old, "d", [{"user": "ann"}])[0][0].limit.amount == 5


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_RECENT", 5)
    known, found = rules_of_values(), MatchCache()

    for number in range(100):
        entry = {"user": f"user-{number}"}
        assert found.find(known, "d", entry) == usual(known, *entry.items())
        found.find(known, f"unknown-{number}", entry)
        places = [*found.known.values(), *found._older.values()]
        assert len(places) + sum(map(len, places)) <= 12


def test_a_key_that_is_found_again_stays_cached_beside_a_flood_of_others(monkeypatch):
    monkeypatch.setattr(module, "_MAX_RECENT", 5)
    known, found = rules_of_values(), MatchCache()
    first = found.find(known, "d", {"user": "ann"})

    for number in range(100):
        found.find(known, "d", {"user": f"user-{number}"})
        assert found.find(known, "d", {"user": "ann"}) is first

    for number in range(11):
        found.find(known, "d", {"user": f"other-{number}"})
    assert found.find(known, "d", {"user": "ann"}) is not first


@pytest.mark.parametrize("known", [rules(), rules_of_values()])
@pytest.mark.parametrize(
    "value",
    ["ann", "root", "", "ä", "\udc80", "x" * 118, "x" * 119, "x" * 120, "ü" * 60, "y" * 300],
)
def test_any_text_is_found_as_the_rules_match_it(known, value):
    found = MatchCache()
    for _ in range(2):
        assert found.find(known, "d", {"user": value}) == usual(known, ("user", value))
        requests = [{"user": "bob"}, {"user": value}]
        assert [*zip(*found.find_all(known, "d", requests), strict=True)] == [
            usual(known, *each.items()) for each in requests
        ]


def test_a_rule_beside_a_pattern_does_not_apply_to_all_values():
    path = (("user", "bot-*"),)
    known = RuleSet.of(*rules().rules(), Rule(rule_id("d", path), "d", path, Limit(9, 60)))

    for value in ("bot-1", "ann"):
        assert MatchCache().find(known, "d", {"user": value}) == usual(known, ("user", value))
    assert known.rules_of_any_value().keys() == {("d", "place"), ("d", "free")}
    assert rules().rules_of_any_value().keys() == {("d", "user"), ("d", "place"), ("d", "free")}


def test_computed_keys_are_not_cached():
    known, found = rules(), MatchCache()
    for value in ("user-1", "x" * 500, "\udc80", Text("ann")):
        assert found.find_all(known, "d", [{"user": "bob"}, {"user": value}]) is not None
        assert found.find(known, "d", {"user": value}) == usual(known, ("user", value))

    assert not any(found.known.values())


def test_cached_matches_of_many_requests_equal_the_first_ones():
    path = (("user", None), ("place", None))
    pair = Rule(rule_id("d", path), "d", path, Limit(5, 60))
    known, found = RuleSet.of(*rules().rules(), pair), MatchCache()
    for requests in (
        [{"user": "ann"}, {"user": "bob"}],
        [{"user": "ann", "place": "p"}, {"user": "bob", "place": "p"}],
        [{"user": "ann"}, {"user": "bob", "place": "p"}],
        [{"user": "ann", "place": "p"}, {"user": "bob"}],
    ):
        first = found.find_all(known, "d", requests)

        assert first == found.find_all(known, "d", requests)
        assert [*zip(*first, strict=True)] == [usual(known, *each.items()) for each in requests]
