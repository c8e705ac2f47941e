"""Clock of the cluster as one node uses it."""

from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import MockClock

from gossip.cluster_clock import ClusterClock
from node.membership.clock import ClusterTime, ProbeStamps

S = 1_000_000_000


def clock_at(now: int) -> tuple[SimpleNamespace, ClusterTime]:
    """Return the clock of a host and the cluster's clock on it."""
    host = SimpleNamespace(time=now)
    host.now = lambda: host.time
    return host, ClusterTime(cast(Any, host), ClusterClock())


def sample(clock: ClusterTime, *offsets: int) -> None:
    """Measure other members' clocks; the offsets are from the clock of the host."""
    for name, offset in enumerate(offsets):
        now = clock.host.now()
        ProbeStamps(clock).sample(str(name), offset + now - clock.now(), 2, now)


async def is_signalled(clock: ClusterTime) -> bool:
    with trio.move_on_after(1) as scope:
        await clock.became_suspect.wait()
    return not scope.cancelled_caught


async def test_a_clock_reports_once_that_it_became_suspect(autojump_clock: MockClock) -> None:
    _, clock = clock_at(1000 * S)
    reported = []
    for offset in (0, -60 * S, -60 * S, 0, -60 * S):
        sample(clock, *[offset] * 3)
        reported.append(await is_signalled(clock))

    assert reported == [False, True, False, False, True]


def test_probes_read_the_time_that_members_count_by() -> None:
    host, clock = clock_at(1000 * S)
    sample(clock, 20 * S, 20 * S, 20 * S)  # A clock that is far behind jumps.

    assert clock.now() == ProbeStamps(clock).read(0) == 1020 * S
    host.time -= 10 * S
    assert clock.now() > 1020 * S


def test_only_a_suspect_clock_jumps_to_the_time_of_the_others() -> None:
    _, clock = clock_at(1000 * S)
    sample(clock, *[-S // 2] * 3)
    clock.jump()
    assert clock.now() == 1000 * S

    sample(clock, *[-60 * S] * 3)
    clock.jump()

    assert clock.now() == 940 * S
