from math import log

import pytest

from gossip import Settings
from gossip.failure_detection.suspicion_timers import Suspicion

NS = 1_000_000_000
LAN = Settings.lan()


def raised(members, settings=LAN):
    return Suspicion.raised(0, settings.local_dc, settings, members)


@pytest.mark.parametrize(
    ("confirmations", "share"), [(0, 0.0), (1, log(2) / log(4)), (2, log(3) / log(4)), (3, 1.0)]
)
def test_each_confirmation_shortens_it_by_the_logarithmic_share(confirmations, share):
    suspicion = raised(10)
    for accuser in "abcd"[: confirmations + 1]:
        assert suspicion.confirm(accuser)

    assert suspicion.deadline == pytest.approx((9.0 - share * 7.5) * NS)


def test_an_accuser_counts_once_and_an_empty_name_never():
    suspicion = raised(10)

    assert suspicion.confirm("a")
    assert not suspicion.confirm("a")
    assert not suspicion.confirm("")


def test_more_confirmations_than_wanted_are_no_news():
    suspicion = raised(10)

    assert [suspicion.confirm(name) for name in "abcdef"] == [True] * 4 + [False] * 2


def test_without_possible_confirmation_the_minimum_timeout_doubles():
    assert raised(2).deadline == 3 * NS


def test_it_lasts_longer_in_larger_clusters():
    assert [raised(size, LAN).least / NS for size in (3, 100, 1000)] == [1.5, 3.0, 4.5]


def test_without_lifeguard_it_always_lasts_its_least_time():
    assert raised(100, LAN.without_lifeguard()).deadline == 3 * NS
