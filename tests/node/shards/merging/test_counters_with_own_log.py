"""Counters that arrive with units which the receiver has also in its own log."""

import pytest

from ringfence.limiter import Algorithm, Limit
from tests.node.shards.ownership.ownership_host import DAY, Host


@pytest.mark.parametrize(("before", "by_other", "after"), [(1, 0, 0), (1, 2, 3), (4, 1, 0)])
def test_a_replica_of_a_member_that_started_from_this_nodes_counters_adds_nothing(
    before: int, by_other: int, after: int
) -> None:
    other, blind, owner = Host("a"), Host("b"), Host("d")
    blind.cover("d")
    blind.spend(before)
    blind.copy_to(other)
    other.cover("b")
    other.spend(by_other)
    other.copy_to(owner)
    blind.spend(after)

    blind.continue_from(blind.ask(owner))
    assert (blind.used, blind.covered_owner) == (before + after, "a")
    other.pull(blind)

    assert other.used == before + by_other + after


@pytest.mark.parametrize(("by_first", "by_second"), [(0, 0), (4, 0), (0, 5), (4, 5)])
def test_each_unit_of_two_members_that_have_each_others_log_counts_once(
    by_first: int, by_second: int
) -> None:
    first, second, owner = Host("b"), Host("c"), Host("d")
    first.cover("d")
    second.cover("b")
    second.spend(2)
    second.copy_to(owner)
    first.spend(1)
    first.copy_to(second)
    assert second.used == 3
    first.continue_from(first.ask(owner))
    assert (first.used, first.covered_owner) == (3, "c")
    first.spend(by_first)
    second.spend(by_second)

    second.pull(first)

    assert second.used == 3 + by_first + by_second


@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm.FIXED_WINDOW,
        Algorithm.SLIDING_WINDOW,
        Algorithm.SLIDING_WINDOW_LOG,
        Algorithm.TOKEN_BUCKET,
    ],
)
@pytest.mark.parametrize("after", [0, 2])
def test_units_of_a_log_that_have_expired_are_not_those_that_return(
    algorithm: Algorithm, after: int
) -> None:
    limit = Limit.of_ns(1000, DAY, algorithm)
    first, second, owner = hosts = [Host(name, limit) for name in "bcd"]
    first.cover("d")
    second.cover("b")
    second.spend(5)
    for host in hosts:
        host.now += 3 * DAY
    second.spend(3)
    second.copy_to(owner)
    first.spend(1)
    first.copy_to(second)
    first.continue_from(first.ask(owner))
    assert (first.used, first.covered_owner) == (4, "c")
    second.spend(after)

    second.pull(first)

    assert second.used == 4 + after


@pytest.mark.parametrize(("by_third", "by_owner"), [(0, 0), (2, 0), (0, 3), (2, 3)])
def test_a_replica_of_counters_whose_log_has_arrived_before_is_counted_once(
    by_third: int, by_owner: int
) -> None:
    again, blind, third, owner = Host("a"), Host("b"), Host("c"), Host("d")
    blind.cover("d")
    blind.spend(1)
    blind.copy_to(third)
    third.cover("b")
    third.copy_to(owner)
    again.cover("d")
    again.pull(blind)
    assert again.used == 1
    owner.cover("a")
    owner.spend(by_owner)
    third.spend(by_third)

    again.pull(owner)
    assert again.used == 1 + by_owner
    again.pull(third)

    assert again.used == 1 + by_owner + by_third
