from dataclasses import replace
from math import log

import pytest

from gossip import Record, Settings, Status
from gossip.failure_detection.suspicion_timers import Suspicion, SuspicionTimers
from gossip.members.member_table import MemberTable
from gossip.timers import Due, Timers

NS = 1_000_000_000
LAN = Settings.lan()


def raised(members, settings=LAN):
    return Suspicion.raised(0, settings.local_dc, settings, members)


@pytest.mark.parametrize(
    ("confirmations", "share"), [(0, 0.0), (1, log(2) / log(4)), (2, log(3) / log(4)), (3, 1.0)]
)
def test_each_confirmation_shortens_a_suspicion_by_the_logarithmic_share(confirmations, share):
    suspicion = raised(10)
    for accuser in "abcd"[: confirmations + 1]:
        assert suspicion.confirm(accuser)

    assert suspicion.deadline == pytest.approx((9.0 - share * 7.5) * NS)


def test_each_accuser_is_counted_once_and_an_empty_name_never():
    suspicion = raised(10)

    assert suspicion.confirm("a")
    assert not suspicion.confirm("a")
    assert not suspicion.confirm("")


def test_confirmations_beyond_the_wanted_number_are_ignored():
    suspicion = raised(10)

    assert [suspicion.confirm(name) for name in "abcdef"] == [True] * 4 + [False] * 2


def test_without_possible_confirmation_the_minimum_timeout_doubles():
    assert raised(2).deadline == raised(1).deadline == 3 * NS


def test_a_suspicion_lasts_longer_in_larger_clusters():
    assert [raised(size, LAN).least / NS for size in (3, 100, 1000)] == [1.5, 3.0, 4.5]


def test_without_lifeguard_a_suspicion_has_the_minimum_timeout():
    assert raised(100, LAN.without_lifeguard()).deadline == 3 * NS


# -- timers ----------------------------------------------------------------------------------------

ME = Record("me", "h", 1, "dc1", "", 1.0, 1, 0, Status.ALIVE)


class Suspicions:
    """Suspicions of a member of a cluster with some members in each data center."""

    def __init__(self, local_dc=10, remote_dc=0):
        """The numbers include the local member `me`, and the suspects `n1` and `f1`."""
        self.table = MemberTable(ME)
        for number in range(1, local_dc):
            self.table.put(replace(ME, name=f"n{number}"))
        for number in range(1, remote_dc + 1):
            self.table.put(replace(ME, name=f"f{number}", datacenter="dc2"))
        self.clock = Timers()
        self.timers = SuspicionTimers(self.table, self.clock, LAN)

    def accusation(self, name="n1", accuser="n2", status=Status.SUSPECT):
        return replace(self.table.records[name], status=status, accuser=accuser)

    def deadline(self):
        """Return the time of the next death in seconds; None when no member is suspected."""
        at = self.clock.next_at()
        return None if at is None else at / NS


@pytest.mark.parametrize(
    ("name", "local_dc", "remote_dc", "seconds"),
    [
        ("n1", 2, 0, 3),  # No other member can confirm it.
        ("n1", 2, 50, 3),  # Members of other data centers do not confirm it.
        ("n1", 3, 0, 9),
        ("n1", 10, 90, 9),
        ("n1", 100, 0, 18),
        ("f1", 1, 1, 20),
        ("f1", 2, 1, 60),
        ("f1", 1, 2, 60),
        ("f1", 50, 50, 120),
    ],
)
def test_a_suspicion_lasts_by_the_members_that_may_confirm_it(name, local_dc, remote_dc, seconds):
    suspicions = Suspicions(local_dc, remote_dc)

    suspicions.timers.begin(suspicions.accusation(name), 7 * NS)

    assert suspicions.clock.next_at() == (7 + seconds) * NS
    assert suspicions.clock.pop((7 + seconds) * NS) == (Due.SUSPICION, name)


def test_each_new_accuser_brings_the_death_forward_to_the_present_at_most():
    suspicions = Suspicions()
    suspicions.timers.begin(suspicions.accusation(), 0)

    def confirm(accuser, seconds, status=Status.SUSPECT):
        record = suspicions.accusation(accuser=accuser, status=status)
        return suspicions.timers.confirm(record, seconds * NS)

    assert not confirm("n3", 1, Status.DEAD)
    assert not confirm("n2", 1)
    assert not confirm("", 1)
    assert suspicions.deadline() == 9
    assert confirm("n3", 1)
    assert suspicions.deadline() == pytest.approx(9 - 7.5 * log(2) / log(4))
    assert confirm("n4", 5)
    assert suspicions.deadline() == 5  # It would have been 3 s.
    assert confirm("n5", 6)
    assert suspicions.deadline() == 6
    assert not confirm("n6", 7)
    assert suspicions.deadline() == 6


def test_a_member_that_is_not_suspected_has_no_suspicion_to_confirm():
    suspicions = Suspicions()
    suspicions.timers.begin(suspicions.accusation(), 0)
    suspicions.timers.drop("n2")
    assert suspicions.deadline() == 9
    suspicions.timers.drop("n1")

    assert not suspicions.timers.confirm(suspicions.accusation(accuser="n3"), 1)
    assert suspicions.deadline() is None


def test_a_suspicion_without_an_accuser_needs_one_more_confirmation():
    """An exchange of member lists does not state who suspects a member."""
    suspicions = Suspicions()
    suspicions.timers.begin(suspicions.accusation(accuser=""), 0)

    assert suspicions.timers.confirm(suspicions.accusation(accuser="n2"), 1)
    assert suspicions.deadline() == 9


def test_after_a_pause_all_suspicions_begin_again_without_their_accusers():
    suspicions = Suspicions()
    for name in ("n1", "n3"):
        suspicions.timers.begin(suspicions.accusation(name), 0)
        for accuser in ("n4", "n5", "n6"):
            suspicions.timers.confirm(suspicions.accusation(name, accuser), 0)
    assert suspicions.deadline() == 1.5

    suspicions.timers.restart(5 * NS)

    assert suspicions.deadline() == 14
    for accuser in ("n2", "n4"):
        assert suspicions.timers.confirm(suspicions.accusation("n3", accuser), 5 * NS)
    assert suspicions.clock.pop(14 * NS) == (Due.SUSPICION, "n3")
    assert suspicions.clock.pop(14 * NS) == (Due.SUSPICION, "n1")


@pytest.mark.parametrize(
    ("by", "no_sooner", "deadline"), [(2, 0, 11), (2, 11, 11), (2, 12, 12), (0.5, 9, 9.5)]
)
def test_a_lag_postpones_all_suspicions_at_least_to_a_time(by, no_sooner, deadline):
    suspicions = Suspicions()
    for name in ("n1", "n3"):
        suspicions.timers.begin(suspicions.accusation(name), 0)

    suspicions.timers.postpone(round(by * NS), no_sooner=no_sooner * NS)

    at = round(deadline * NS)
    assert [suspicions.clock.pop(at - 1), suspicions.clock.pop(at), suspicions.clock.pop(at)] == [
        None,
        (Due.SUSPICION, "n1"),
        (Due.SUSPICION, "n3"),
    ]
