from hypothesis import given
from hypothesis import strategies as st

from gossip.failure_detection.prober import LocalHealth


@given(st.lists(st.integers(-3, 3)))
def test_the_score_stays_between_0_and_its_maximum(changes):
    health = LocalHealth(8, is_used=True)
    for by in changes:
        health.change(by)
        assert 0 <= health.score <= 8


def test_durations_are_multiplied_by_the_score_plus_one():
    health = LocalHealth(8, is_used=True)
    health.change(2)

    assert health.scaled(500) == 1500


def test_a_disabled_score_scales_no_duration():
    health = LocalHealth(8, is_used=False)
    health.change(5)

    assert health.scaled(500) == 500
