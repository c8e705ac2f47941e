"""Comparison of admitted and counted units after a crash."""

from collections import Counter

import pytest

from benchmarks.cluster.admissions import Admissions, Loss
from ringfence.wire import Source

CRASH = 10.0


def test_units_that_no_counter_contains_are_lost_and_the_last_answers_show_their_age() -> None:
    found = Admissions()
    for key, asked_at in (("a", 9.5), ("a", 9.93), ("b", 9.8), ("c", 9.95)):
        found.add(key, Source.OWNER, asked_at, asked_at + 0.01, is_allowed=True)
    found.crash(CRASH)
    found.add(
        "a", Source.OWNER, 10.1, 10.2, is_allowed=True
    )  # By another member, so it is not the lost one.

    counted = Counter({"a": 2, "b": 1, "c": 1})
    loss = found.compare(counted, lambda key: key != "c")

    assert loss == Loss(lost=1, may_lose=1, oldest_s=CRASH - 9.94, counted_twice=0)


def test_a_lost_unit_that_was_admitted_long_before_the_crash_has_the_longest_recorded_age() -> None:
    found = Admissions()
    found.add("a", Source.OWNER, 5.0, 5.0, is_allowed=True)
    found.add("b", Source.OWNER, 9.9, 9.9, is_allowed=True)
    found.crash(CRASH)

    loss = found.compare(Counter({"b": 2}), lambda key: True)

    assert (loss.lost, loss.oldest_s, loss.counted_twice) == (1, 1.0, 1)


@pytest.mark.parametrize("source", [Source.POLICY, Source.SHED, Source.LOCAL])
def test_a_check_that_no_node_decided_is_not_admitted_by_a_node(source: Source) -> None:
    found = Admissions()

    found.add("a", source, 9.9, 9.9, is_allowed=True)

    assert (found.undecided, found.by_key.total()) == (1, 0)
