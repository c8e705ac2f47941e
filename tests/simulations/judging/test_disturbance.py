from math import inf

from simulations.judging.disturbance import QUIET_S, Disturbances

FIRST, SECOND = 1, 1 << 8


def sampled(*samples):
    disturbances = Disturbances(interval_s=0.1)
    for at, disturbed in samples:
        disturbances.add("dc1", at, disturbed)
    return disturbances


def test_spans_of_a_shard_are_one_sample_longer():
    found = sampled((0.0, 0), (5.0, SECOND), (6.0, 0), (9.0, FIRST | SECOND))

    assert found.spans("dc1", 0) == [(8.9, inf)]
    assert found.spans("dc1", 1) == [(4.9, 6.1), (8.9, inf)]
    assert found.spans("dc1", 2) == []
    assert found.is_disturbed("dc1", 1, 6.05, 6.5)
    assert not found.is_disturbed("dc1", 1, 6.2, 8.8)


def test_a_data_center_without_samples_is_never_undisturbed():
    assert Disturbances().is_disturbed("dc1", 7, 1.0, 2.0)
    assert Disturbances().settled_after("dc1", 1.0) == inf


def test_a_data_center_has_settled_when_it_stays_undisturbed():
    found = sampled((0.0, 0), (5.0, FIRST), (6.0, 0), (6.0 + QUIET_S / 2, FIRST), (9.0, 0))

    assert found.settled_after("dc1", 1.0) == 1.1
    assert found.settled_after("dc1", 4.5) == 9.1
    assert found.settled_after("dc1", 20.0) == 20.1
    assert sampled((0.0, 0), (5.0, FIRST)).settled_after("dc1", 5.5) == inf
