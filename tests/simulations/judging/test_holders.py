from math import inf

import pytest

from simulations.judging.excuses import Holders

HOSTS = ("n1", "n2", "n3")


def sampled(*samples):
    holders = Holders(interval_s=0.1)
    for at, host, held in samples:
        holders.add(host, at, bytes([0, held]) if held is not None else b"")
    return holders


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (1.0, 2.0, (-0.5, 4.9)),
        (4.8, 4.95, None),  # The next sample shows two holders.
        (5.0, 5.5, None),
        (6.0, 6.5, (6.0, 7.9)),
        (7.5, 8.5, None),  # The holder has no process.
        (9.0, 99.0, (9.0, inf)),
    ],
)
def test_the_tenure_of_a_holder_ends_before_any_change(begin, end, expected):
    holders = sampled(
        (-0.5, "n1", 1),
        (-0.5, "n2", 0),
        (5.0, "n2", 1),
        (6.0, "n1", 0),
        (8.0, "n2", None),
        (9.0, "n3", 1),
    )

    assert holders.tenure(HOSTS, 1, begin, end) == expected
    assert holders.tenure(HOSTS, 0, begin, end) is None


def test_a_tenure_ends_when_the_holder_finds_counters():
    holders = sampled((1.0, "n1", 4), (2.0, "n1", 3))

    assert holders.tenure(HOSTS, 1, 1.5, 1.6) == (1.0, 1.9)
    assert holders.tenure(HOSTS, 1, 1.85, 1.95) is None
    assert holders.tenure(HOSTS, 1, 2.5, 2.6) == (2.0, inf)


def test_a_run_without_samples_has_no_known_holder():
    assert Holders().tenure(HOSTS, 1, 1.0, 2.0) is None
