from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.scenarios.latency import PRESETS, delay_s, draw_delay_s

DATACENTERS = ("dc1", "dc2", "dc3", "dc4", "dc5")
FAR_APART = [preset for preset in PRESETS if preset != "zero"]

places = st.tuples(st.sampled_from(DATACENTERS), st.sampled_from(["", "a", "b"]))


@given(st.sampled_from(PRESETS), places, places)
def test_delays_are_symmetric(preset, a, b):
    assert delay_s(preset, a, b) == delay_s(preset, b, a)


@given(st.sampled_from(FAR_APART), places, places)
def test_every_path_has_a_delay(preset, a, b):
    assert delay_s(preset, a, b) > 0


@given(places, places)
def test_the_zero_preset_has_no_delay(a, b):
    assert delay_s("zero", a, b) == 0


@given(st.sampled_from(FAR_APART), places, places, places)
def test_a_relay_is_not_much_faster_than_the_direct_path(preset, a, b, c):
    """Real routes are not straight, so a relay may be a little faster, but never much."""
    assert delay_s(preset, a, c) <= 1.1 * (delay_s(preset, a, b) + delay_s(preset, b, c))


@pytest.mark.parametrize("preset", FAR_APART)
def test_zones_are_nearer_than_data_centers(preset):
    same = delay_s(preset, ("dc1", "a"), ("dc1", "a"))
    zone = delay_s(preset, ("dc1", "a"), ("dc1", "b"))
    other = delay_s(preset, ("dc1", "a"), ("dc2", "a"))

    assert (same, zone) == (0.0001, 0.0003)
    assert other > zone


@pytest.mark.parametrize(("preset", "seconds"), [("lan", 0.040), ("near", 0.005)])
def test_all_data_centers_of_a_flat_preset_are_equally_far_apart(preset, seconds):
    delays = {delay_s(preset, (a, ""), (b, "")) for a, b in permutations((*DATACENTERS, "x"), 2)}

    assert delays == {seconds}


def test_delays_between_regions_are_half_of_their_round_trip():
    assert delay_s("regions", ("dc1", ""), ("dc2", "")) == 0.034
    assert delay_s("regions", ("dc5", ""), ("dc3", "")) == 0.162

    pairs = permutations(DATACENTERS, 2)
    assert all(0.02 < delay_s("regions", (a, ""), (b, "")) < 0.2 for a, b in pairs)


def test_an_unknown_preset_is_rejected_with_the_known_names():
    with pytest.raises(ValueError, match="must be one of lan, near, regions, zero, got 'moon'"):
        delay_s("moon", ("dc1", ""), ("dc1", ""))


@pytest.mark.parametrize("pair", [("dc1", "dc6"), ("dc6", "dc1")])
def test_an_unknown_region_is_rejected_with_the_known_names(pair):
    with pytest.raises(
        ValueError, match=r"must be one of dc1 \(us-east\), .*dc5 \(sa-east\), got 'dc6'"
    ):
        delay_s("regions", (pair[0], ""), (pair[1], ""))


@given(st.floats(0, 10), st.integers())
def test_a_random_delay_is_at_least_its_base_and_repeatable(base, seed):
    drawn = draw_delay_s(base, Random(seed))

    assert drawn >= base
    assert drawn == draw_delay_s(base, Random(seed))


def test_most_draws_are_near_the_base_and_few_are_far_above():
    random = Random(4)
    draws = sorted(draw_delay_s(1.0, random) for _ in range(10_000))

    assert draws[5_000] == pytest.approx(1.05, abs=0.01)
    assert draws[9_900] == pytest.approx(1.5, abs=0.1)
    assert draws[-1] > 2
