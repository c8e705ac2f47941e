"""Cluster clocks of members on hosts whose clocks differ."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.cluster_clock import ClusterClock

MS = 1_000_000
S = 1000 * MS


class Host:
    """Member on a host whose clock differs from the true time by `off` and drifts by `ppm`."""

    def __init__(self, off: int, ppm: int = 0) -> None:
        self.off = off
        self.ppm = ppm
        self.clock = ClusterClock()

    def host(self, true: int) -> int:
        return true + self.off + true * self.ppm // 1_000_000

    def time(self, true: int) -> int:
        return self.clock.read(self.host(true))


def run(
    hosts: list[Host],
    seconds: int,
    rtt: int = MS,
    seed: int = 1,
    *,
    begin: int = 1000,
    every: int = S // 2,
) -> None:
    """Let each host probe another one at regular intervals of `every` ns."""
    random = Random(seed)
    for step in range(seconds * S // every):
        true = begin * S + step * every
        for host in hosts:
            other = random.choice([each for each in hosts if each is not host])
            forth = random.randrange(rtt)
            sent, received, back = (
                host.time(true),
                other.time(true + forth),
                host.time(true + rtt),
            )
            name = str(hosts.index(other))
            host.clock.sample(name, received - (sent + back) // 2, rtt, host.host(true + rtt))


def spread(hosts: list[Host], true: int = 5000 * S) -> int:
    times = [host.time(true) for host in hosts]
    return max(times) - min(times)


def test_clocks_with_small_differences_converge() -> None:
    hosts = [Host(off * MS) for off in (0, 40, -60, 100, 20)]
    run(hosts, 120)

    assert spread(hosts, 1120 * S) < 5 * MS
    assert not any(host.clock.is_suspect for host in hosts)


@pytest.mark.parametrize("every", [S // 2, 30 * S])
def test_two_members_meet_without_overshooting(every: int) -> None:
    """Between two probes with a pause of 30 s, a clock can move by more than the difference."""
    hosts = [Host(0), Host(100 * MS)]
    differences = []
    for begin in range(1000, 1300, 30):
        run(hosts, 30, begin=begin, every=every)
        true = (begin + 30) * S
        differences.append(hosts[1].time(true) - hosts[0].time(true))

    assert differences[-1] < 5 * MS
    assert min(differences) > -MS


def test_drifting_clocks_stay_together() -> None:
    hosts = [Host(0, ppm) for ppm in (0, 200, -200)]
    run(hosts, 300)

    assert spread(hosts, 1300 * S) < 10 * MS


def test_a_clock_an_hour_ahead_is_suspect_and_has_no_influence() -> None:
    hosts = [Host(0), Host(5 * MS), Host(-5 * MS), Host(3600 * S)]
    run(hosts, 30)

    assert [host.clock.is_suspect for host in hosts] == [False, False, False, True]
    assert spread(hosts[:3], 1030 * S) < 20 * MS


def clock_of(*offsets: int, rtt: int = MS, now: int = 1000 * S) -> ClusterClock:
    """Return a new clock with one sample from each of several members."""
    clock = ClusterClock()
    add_samples(clock, *offsets, rtt=rtt, now=now)
    return clock


def add_samples(clock: ClusterClock, *offsets: int, rtt: int = MS, now: int = 1000 * S) -> None:
    for name, offset in enumerate(offsets):
        clock.sample(str(name), offset - clock.read(now) + now, rtt, now)


def test_a_new_clock_is_trusted() -> None:
    assert not ClusterClock().is_suspect


def test_a_clock_is_suspect_from_a_difference_of_a_second_until_one_of_half_a_second() -> None:
    clock = clock_of(-S, -S, -S)
    suspect = [clock.is_suspect]
    for offset in (-S - 1, -S // 2, -S // 2 + 1):
        add_samples(clock, offset, offset, offset)
        suspect.append(clock.is_suspect)

    assert suspect == [False, True, True, False]


def test_a_clock_more_than_ten_seconds_behind_jumps() -> None:
    near, far = (clock_of(behind, behind, behind) for behind in (10 * S, 10 * S + 1))

    assert near.read(1000 * S) == 1000 * S
    assert far.read(1000 * S) == 1010 * S + 1


def test_one_other_clock_makes_no_clock_suspect_or_jump() -> None:
    clock = clock_of(60 * S)

    assert not clock.is_suspect
    assert clock.read(1000 * S) == 1000 * S


def test_one_other_clock_ends_no_suspicion_and_moves_no_suspect_clock() -> None:
    clock = clock_of(-60 * S, -60 * S, -60 * S, now=1000 * S)
    add_samples(clock, -60 * S, now=1061 * S)
    clock.jump(1061 * S)
    assert clock.read(1061 * S) > 1060 * S

    add_samples(clock, 0, now=1061 * S)

    assert clock.is_suspect


def test_half_of_the_other_clocks_are_no_majority() -> None:
    assert not clock_of(0, -5 * S, -3 * S, -3 * S).is_suspect
    assert clock_of(0, -3 * S, -3 * S, -3 * S).is_suspect


def test_clocks_on_one_side_of_the_median_are_no_majority() -> None:
    assert not clock_of(-9500 * MS, -8 * S, -3 * S, -3 * S).is_suspect
    assert not clock_of(9500 * MS, 8 * S, 3 * S, 3 * S).is_suspect


def middle_of(numbers: list[int]) -> int:
    """Return the median, rounded down."""
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(numbers) % 2 else (ordered[half - 1] + ordered[half]) // 2


samples = st.tuples(st.integers(-400 * MS, 400 * MS), st.integers(0, 400 * MS))


@given(st.lists(samples, min_size=1, max_size=9))
def test_a_clock_approaches_the_median_of_all_clocks_unless_that_is_within_the_error(
    measured: list[tuple[int, int]],
) -> None:
    clock = ClusterClock()
    clock.read(1000 * S)
    for name, (offset, error) in enumerate(measured):
        clock.sample(str(name), offset, 2 * error + 1, 1000 * S)
    clock.read(1100 * S)

    away = middle_of([0, *[offset for offset, _ in measured]])
    is_measurable = abs(away) > middle_of([error for _, error in measured])
    assert clock.offset_ns == (round(away / 2) if is_measurable else 0)


@given(st.lists(st.integers(-400 * MS, 400 * MS), min_size=3, max_size=9))
def test_a_suspect_clock_jumps_to_the_median_of_the_other_clocks(offsets: list[int]) -> None:
    clock = clock_of(*[offset - 60 * S for offset in offsets])
    assert clock.is_suspect

    clock.jump(1000 * S)

    assert clock.offset_ns == middle_of(offsets) - 60 * S


def test_each_of_two_clocks_moves_by_a_quarter_of_their_difference() -> None:
    assert clock_of(100 * MS).read(1100 * S) == 1100 * S + 25 * MS


def test_a_suspect_clock_jumps_back_to_two_clocks_that_agree() -> None:
    clock = clock_of(-60 * S, -60 * S, -60 * S)
    clock.jump(1000 * S)
    assert clock.read(1000 * S) == 940 * S
    add_samples(clock, -120 * S, -120 * S, now=1000 * S)

    clock.jump(1000 * S)

    assert clock.read(1000 * S) == 880 * S


@pytest.mark.parametrize(("age", "counts"), [(60 * S, True), (60 * S + 1, False)])
def test_samples_count_for_a_minute(age: int, *, counts: bool) -> None:
    clock = ClusterClock()
    clock.sample("a", -60 * S, MS, 1000 * S)

    clock.sample("b", -60 * S, MS, 1000 * S + age)

    assert clock.is_suspect is counts


@pytest.mark.parametrize(("back", "counts"), [(0, True), (1, False), (3600 * S, False)])
def test_samples_from_before_the_hosts_clock_was_set_back_do_not_count(
    back: int, *, counts: bool
) -> None:
    """Otherwise samples of members that have ended would count for another hour."""
    clock = clock_of(0, 0, now=5000 * S)
    now = 5000 * S - back

    for name in ("a", "b"):
        clock.sample(name, 3600 * S + now - clock.read(now), MS, now)

    expected = 0 if counts else 3600 * S  # With the old samples, the new ones are no majority.
    assert clock.offset_ns == pytest.approx(expected, abs=MS)


def test_a_clock_uses_the_samples_of_the_last_1024_members() -> None:
    clock = ClusterClock()
    clock.sample("first", 100 * MS, MS, 1000 * S)
    for name in range(512):
        clock.sample(f"ahead {name}", 100 * MS, MS, 1000 * S)
        clock.sample(f"behind {name}", -100 * MS, MS, 1000 * S)

    assert clock.read(1001 * S) == 1001 * S  # The others are evenly ahead and behind.


def test_a_difference_within_the_measurement_error_moves_no_clock() -> None:
    def moved_by(error: int) -> int:
        return clock_of(2 * MS, 2 * MS, rtt=2 * error).read(1100 * S) - 1100 * S

    assert [moved_by(error) for error in (3 * MS, 2 * MS, 2 * MS - 1)] == [0, 0, MS]


def test_a_clock_far_behind_jumps_to_the_majority_and_is_trusted_again() -> None:
    hosts = [Host(0), Host(0), Host(0), Host(-3600 * S)]
    run(hosts, 30)

    assert spread(hosts, 1030 * S) < S
    assert not hosts[3].clock.is_suspect


def test_later_events_have_later_times_after_a_clock_was_set_back() -> None:
    clock = ClusterClock()

    times = [clock.read(now) for now in (1000, 10, 10, 11, 1001, 2000)]

    assert times == [1000, 1001, 1002, 1003, 1004, 2000]


def test_a_clock_that_is_set_back_an_hour_follows_the_others() -> None:
    """Without samples of other members, its time would stand still for that hour."""
    hosts = [Host(0), Host(0), Host(0), Host(0)]
    run(hosts, 30)
    hosts[3].off = -3600 * S
    run(hosts, 30, begin=1030)

    assert spread(hosts, 1060 * S) < S
    assert not any(host.clock.is_suspect for host in hosts)


def test_a_clock_does_not_jump_if_two_others_disagree() -> None:
    clock = ClusterClock()
    for name, off in (("a", 0), ("b", 0), ("c", 0)):
        clock.sample(name, off - 3600 * S, MS, 1000 * S)
    assert clock.is_suspect
    clock.jump(1000 * S)
    for name, off in (("a", 3600 * S), ("b", 0)):
        clock.sample(name, off, MS, 1001 * S)

    clock.jump(1001 * S)

    assert abs(clock.read(1001 * S) + 2599 * S) < S


@pytest.mark.parametrize("off", [3600 * S, 3 * S, -3 * S])
def test_jump_corrects_a_clock_that_is_far_ahead_or_behind(off: int) -> None:
    hosts = [Host(0), Host(5 * MS), Host(-5 * MS), Host(off)]
    run(hosts, 30)
    assert hosts[3].clock.is_suspect
    for host in hosts:
        host.clock.jump(host.host(1030 * S))  # Correct clocks do not jump.
    assert spread(hosts, 1030 * S) < 20 * MS

    run(hosts, 60, begin=1030)

    assert not any(host.clock.is_suspect for host in hosts)


def test_the_time_is_moved_by_at_most_five_milliseconds_a_second() -> None:
    clock = ClusterClock()
    clock.read(1000 * S)
    clock.sample("a", 900 * MS, MS, 1000 * S)

    assert clock.read(1001 * S) - 1001 * S == 5 * MS
    assert clock.read(1001 * S) - 1001 * S == 5 * MS


@given(
    st.lists(
        st.tuples(
            st.integers(-10 * S, 10 * S),
            st.sampled_from("abcd"),
            st.integers(-7200 * S, 7200 * S),
            st.integers(0, S),
        ),
        max_size=60,
    )
)
def test_the_time_never_goes_back_for_any_samples_and_host_clock(
    events: list[tuple[int, str, int, int]],
) -> None:
    clock = ClusterClock()
    now, last = 1000 * S, 0
    for passed, name, offset, rtt in events:
        now += passed
        clock.sample(name, offset, rtt, now)
        time = clock.read(now)
        assert time >= last
        last = time
