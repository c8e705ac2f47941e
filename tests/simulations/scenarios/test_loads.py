from collections import Counter
from itertools import islice, pairwise
from math import sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.scenarios.loads import SHAPES, arrivals, replayed
from simulations.scenarios.scenario import Load

EXTREMES = {
    "poisson": [{}],
    "bursts": [{"on_s": 0.1, "off_s": 3}, {"on_s": 7, "off_s": 0}, {"on_s": 100, "off_s": 1}],
    "flash": [{"at": 0, "for_s": 2, "factor": 50}, {"at": 3, "for_s": 100}, {"at": 1000}],
    "hot": [{"share": 0.9}, {"share": 1}, {"share": 0, "exponent": 0}],
    "zipf": [{"exponent": 0}, {"exponent": 3}, {}],
    "attack": [{"share": 0.99}, {"share": 0}, {"share": 1}],
    "diurnal": [{"period_s": 3}, {"period_s": 1000, "depth": 1}, {"depth": 0}],
    "edge": [{"period_s": 1}, {"period_s": 2.5, "offset_s": 77.7}, {"period_s": 100}],
}
"""Arguments at and near the limits of each shape."""


@st.composite
def loads(draw, **changes):
    shape = draw(st.sampled_from(SHAPES))
    fields = {
        "per_second": draw(st.floats(1, 200)),
        "keys": draw(st.integers(1, 50)),
        "args": draw(st.sampled_from([{}, *EXTREMES[shape]])),
    }
    return Load(shape, **(fields | changes))


def drawn(load, seconds=10.0, *, clients=4, seed=1):
    return list(arrivals(load, seconds, clients, Random(seed)))


def within(came, start, end):
    return sum(start <= arrival.at < end for arrival in came)


def shares(came):
    return {key: times / len(came) for key, times in Counter(a.key for a in came).items()}


def test_every_shape_is_tried_at_its_extremes():
    assert set(EXTREMES) == set(SHAPES)


@given(loads(), st.floats(0.5, 10), st.integers(1, 5), st.integers())
def test_arrivals_are_ordered_within_the_duration_and_from_known_clients(
    load, seconds, clients, seed
):
    came = drawn(load, seconds, clients=clients, seed=seed)

    assert all(before.at <= after.at for before, after in pairwise(came))
    assert all(0 <= arrival.at < seconds for arrival in came)
    assert all(arrival.client in range(clients) for arrival in came)


@given(loads(cost=3))
def test_arrivals_have_the_keys_and_cost_of_the_load(load):
    known = {f"k{rank}" for rank in range(load.keys)}
    came = drawn(load)

    assert {arrival.cost for arrival in came} <= {3}
    assert load.shape == "attack" or {arrival.key for arrival in came} <= known


@given(loads(), st.integers())
def test_equal_seeds_have_equal_arrivals(load, seed):
    assert drawn(load, seed=seed) == drawn(load, seed=seed)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_seeds_have_other_arrivals(shape):
    load = Load(shape)

    assert drawn(load, seed=1) != drawn(load, seed=2)


# The examples are fixed: with random examples, five sigma would sometimes be exceeded.
@settings(derandomize=True, deadline=None)
@given(loads(per_second=300), st.floats(5, 30), st.integers())
def test_the_mean_rate_is_that_of_the_load(load, seconds, seed):
    expected = load.per_second * seconds

    assert abs(len(drawn(load, seconds, seed=seed)) - expected) <= 5 * sqrt(expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_arrivals_are_generated_lazily(shape):
    endless = arrivals(Load(shape, per_second=1e9), 3600, 3, Random(1))

    assert len(list(islice(endless, 5))) == 5


@pytest.mark.parametrize("shape", SHAPES)
def test_clients_get_equal_parts(shape):
    came = drawn(Load(shape, per_second=1000))

    parts = Counter(arrival.client for arrival in came)
    assert all(parts[client] / len(came) == pytest.approx(0.25, abs=0.03) for client in range(4))


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 10.0), (100.0, 0.0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_rate_or_no_time_means_no_arrivals(shape, rate, seconds):
    assert drawn(Load(shape, per_second=rate), seconds) == []


def test_keys_of_a_poisson_load_are_uniformly_distributed():
    parts = shares(drawn(Load(keys=10, per_second=2000)))

    assert len(parts) == 10
    assert all(part == pytest.approx(0.1, abs=0.015) for part in parts.values())


@pytest.mark.parametrize("exponent", [0.8, 1.1, 2.0])
def test_a_zipf_key_is_less_frequent_at_a_higher_rank(exponent):
    load = Load("zipf", keys=64, per_second=2000, args={"exponent": exponent})
    parts = shares(drawn(load, 30))

    ranked = [parts[f"k{rank - 1}"] for rank in (1, 2, 4, 8, 16)]
    assert ranked == sorted(ranked, reverse=True)
    assert parts["k0"] / parts["k3"] == pytest.approx(4**exponent, rel=0.2)


def test_a_hot_key_gets_its_share_and_zipf_has_the_rest():
    parts = shares(drawn(Load("hot", per_second=2000, args={"share": 0.7})))

    assert parts["k0"] == pytest.approx(0.7, abs=0.02)
    assert parts["k1"] > parts["k2"] > parts["k5"] > parts["k20"]


def test_a_hot_key_that_is_the_only_one_gets_all():
    assert shares(drawn(Load("hot", keys=1, args={"share": 0.1}))) == {"k0": 1.0}


@settings(max_examples=20)
@given(st.integers())
def test_an_attacker_never_sends_a_key_twice(seed):
    load = Load("attack", keys=10, per_second=500, args={"share": 0.6})
    came = drawn(load, seed=seed)

    sprayed = Counter(arrival.key for arrival in came if not arrival.key.startswith("k"))
    assert set(sprayed.values()) == {1}
    assert len(sprayed) / len(came) == pytest.approx(0.6, abs=0.06)


def test_there_is_no_load_between_bursts():
    load = Load("bursts", per_second=200, args={"on_s": 1, "off_s": 3})
    came = drawn(load, 8)

    assert {int(arrival.at) for arrival in came} == {0, 4}
    assert within(came, 0, 1) == pytest.approx(800, rel=0.2)


def test_a_flash_crowd_multiplies_the_rate_while_it_lasts():
    load = Load("flash", per_second=500, args={"at": 10, "for_s": 5, "factor": 8})
    came = drawn(load, 30)

    calm = (within(came, 0, 10) + within(came, 15, 30)) / 25
    assert within(came, 10, 15) / 5 / calm == pytest.approx(8, rel=0.1)


def test_a_diurnal_load_has_a_peak_and_a_trough_in_each_period():
    load = Load("diurnal", per_second=500, args={"period_s": 10, "depth": 0.8})
    came = drawn(load, 20)

    for start in (0, 10):
        peak, trough = (within(came, start + at, start + at + 1) for at in (2, 7))
        assert (peak, trough) == (pytest.approx(900, rel=0.2), pytest.approx(100, rel=0.5))


@pytest.mark.parametrize("offset", [0, 0.05, 1.3, 7.95])
def test_an_edge_load_sends_only_around_window_edges(offset):
    load = Load("edge", args={"period_s": 2, "offset_s": offset})
    came = drawn(load, 10)

    ahead = [(arrival.at - offset + 1) % 2 - 1 for arrival in came]
    assert -0.1 - 1e-9 <= min(ahead) < -0.05 < 0.05 < max(ahead) <= 0.1 + 1e-9
    assert len({round((arrival.at - offset) / 2) for arrival in came}) >= 5


def test_an_edge_load_without_an_edge_in_its_duration_is_rejected():
    with pytest.raises(ValueError, match="'edge' must have arrivals within 1 s"):
        arrivals(Load("edge", args={"period_s": 60, "offset_s": 30}), 1, 1, Random(1))


def test_an_unknown_shape_is_rejected_with_the_known_names():
    with pytest.raises(
        ValueError, match=r"must be one of poisson, bursts, flash, hot, zipf, .*got 'square'"
    ):
        arrivals(Load("square"), 1, 1, Random(1))


def test_a_log_is_sent_to_replayed():
    with pytest.raises(ValueError, match="`replayed`"):
        arrivals(Load("log"), 1, 1, Random(1))


@pytest.mark.parametrize(
    ("shape", "known"), [("bursts", "on_s, off_s"), ("zipf", "exponent"), ("poisson", "none")]
)
def test_an_unknown_argument_is_rejected_with_the_known_names(shape, known):
    with pytest.raises(ValueError, match=f"{shape!r} must be one of {known}, got 'wings'"):
        arrivals(Load(shape, args={"wings": 2}), 1, 1, Random(1))


@pytest.mark.parametrize(
    ("shape", "args"),
    [
        ("hot", {"share": 1.5}),
        ("hot", {"share": "half"}),
        ("zipf", {"exponent": float("nan")}),
        ("bursts", {"on_s": 0}),
        ("bursts", {"off_s": float("inf")}),
        ("flash", {"factor": 0.5}),
        ("edge", {"period_s": -1}),
    ],
)
def test_an_argument_out_of_range_is_rejected_with_the_range(shape, args):
    (name,) = args
    with pytest.raises(
        ValueError, match=f"{name} of load shape .* must be a number from .* to .*, got"
    ):
        arrivals(Load(shape, args=args), 1, 1, Random(1))


@pytest.mark.parametrize(
    ("load", "seconds", "clients"),
    [
        (Load(keys=0), 1, 1),
        (Load(), 1, 0),
        (Load(per_second=-1), 1, 1),
        (Load(per_second=float("nan")), 1, 1),
        (Load(), -1, 1),
        (Load(), float("inf"), 1),
    ],
)
def test_an_invalid_load_is_rejected(load, seconds, clients):
    with pytest.raises(ValueError, match="load"):
        arrivals(load, seconds, clients, Random(1))


entries = st.lists(st.tuples(st.floats(0, 2e9), st.sampled_from("abcdef")), max_size=30)


@given(entries, st.floats(0.1, 100), st.integers(1, 5))
def test_a_replay_keeps_order_and_one_client_per_address(entries, seconds, clients):
    came = list(replayed(entries, seconds, clients))

    assert [arrival.key for arrival in came] == [address for _, address in entries]
    assert all(before.at <= after.at for before, after in pairwise(came))
    assert all(0 <= arrival.at < seconds for arrival in came)
    assert all(arrival.client in range(clients) for arrival in came)
    homes = {(arrival.key, arrival.client) for arrival in came}
    assert len(homes) == len({key for key, _ in homes})


def test_a_replay_keeps_the_proportions_of_the_log():
    came = replayed([(1000.0, "a"), (1010.0, "b"), (1030.0, "a"), (1060.0, "c")], 8.0, 1)

    assert [(arrival.at, arrival.key) for arrival in came] == [
        (0.0, "a"),
        (1.0, "b"),
        (3.0, "a"),
        (6.0, "c"),
    ]


def test_a_late_log_entry_gets_the_time_of_the_previous_entry():
    came = replayed([(5.0, "a"), (3.0, "b"), (15.0, "c"), (14.0, "d")], 4.0, 1)

    assert [arrival.at for arrival in came] == [0.0, 0.0, 3.0, 3.0]


def test_the_client_of_an_address_is_the_same_in_every_process():
    came = list(replayed([(0.0, "192.0.2.1"), (1.0, "192.0.2.2"), (2.0, "2001:db8::1")], 1.0, 10))

    assert [arrival.client for arrival in came] == [3, 1, 6]


def test_many_addresses_spread_over_all_clients():
    log = [(float(number), f"192.0.2.{number}") for number in range(250)]

    assert {arrival.client for arrival in replayed(log, 1.0, 8)} == set(range(8))


def test_a_replay_needs_a_client():
    with pytest.raises(ValueError, match="client"):
        replayed([], 1.0, 0)
