import pytest

from gossip import Settings
from gossip.failure_detection.flap_damping import FlapDamping

NS = 1_000_000_000


def accuse(damping, *seconds):
    return [damping.on_accusation(f"n{at % 2}", second * NS) for at, second in enumerate(seconds)]


def test_three_accusations_in_five_minutes_damp_a_member():
    damping = FlapDamping(Settings.lan())

    assert accuse(damping, 0, 100, 299) == [False, False, True]
    assert damping.ends_at == 359 * NS


def test_accusations_far_apart_do_not_damp_a_member():
    damping = FlapDamping(Settings.lan())

    assert not any(accuse(damping, *range(0, 3000, 151)))


@pytest.mark.parametrize(("times", "minutes"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10)])
def test_each_damping_lasts_twice_as_long_up_to_ten_minutes(times, minutes):
    damping = FlapDamping(Settings.lan())
    start = 0
    for _ in range(times):
        start = (damping.ends_at or 0) // NS
        damping.end()
        accuse(damping, start, start, start)

    assert damping.ends_at == (start + 60 * minutes) * NS


def test_after_a_long_time_without_accusations_damping_is_short_again():
    damping = FlapDamping(Settings.lan())
    accuse(damping, 0, 0, 0)
    damping.end()
    accuse(damping, 700, 700, 700)

    assert damping.ends_at == 760 * NS


def test_a_single_accuser_causes_no_damping():
    """consul#5567: the member that accused all others was the faulty member."""
    damping = FlapDamping(Settings.lan())

    assert not any(damping.on_accusation("sick", second * NS) for second in range(20))
    assert damping.on_accusation("other", 20 * NS)


def test_an_accusation_during_damping_extends_it():
    damping = FlapDamping(Settings.lan())
    accuse(damping, 0, 0, 0, 30)

    assert damping.ends_at == 90 * NS
