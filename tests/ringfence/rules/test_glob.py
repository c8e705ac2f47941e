import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.rules.glob import Glob, is_pattern

patterns = st.text(alphabet="ab*", min_size=1, max_size=7).filter(is_pattern)
values = st.text(alphabet="abc", max_size=9)


@given(pattern=patterns, value=values)
def test_a_pattern_matches_what_its_regular_expression_matches(pattern, value):
    expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))

    assert Glob(pattern).matches(value) == bool(re.fullmatch(expression, value, re.DOTALL))


@given(broad=patterns, narrow=patterns, value=values)
def test_a_pattern_matches_every_value_of_a_pattern_that_it_covers(broad, narrow, value):
    if Glob(broad).covers(Glob(narrow)) and Glob(narrow).matches(value):
        assert Glob(broad).matches(value)


@given(broad=patterns, narrow=patterns)
def test_a_pattern_misses_a_value_of_a_pattern_that_it_does_not_cover(broad, narrow):
    if not Glob(broad).covers(Glob(narrow)):
        uncovered = narrow.replace("*", "zz")
        assert Glob(narrow).matches(uncovered)
        assert not Glob(broad).matches(uncovered)


@pytest.mark.parametrize(
    ("broad", "narrow", "covers"),
    [
        ("*", "foo*bar", True),
        ("foo*", "foo*bar", True),
        ("foo*", "foo*", True),
        ("foo**", "foo*", True),
        ("foo*bar", "foo*", False),
        ("a*b*c", "a*c", False),
        ("*\x00*", "*", False),
    ],
)
def test_a_pattern_covers_only_narrower_patterns(broad, narrow, covers):
    assert Glob(broad).covers(Glob(narrow)) == covers


def test_both_ends_are_anchored_and_may_not_overlap():
    assert not Glob("ab*ba").matches("aba")
    assert Glob("ab*ba").matches("abba")
    assert Glob("a*").matches("a\nb")


def test_matching_many_stars_against_a_long_value_is_fast():
    assert not Glob("*a" * 200 + "*b").matches("a" * 100_000)
