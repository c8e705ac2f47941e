"""Comparison of admitted and counted units after a crash."""

from collections import Counter

import pytest

from benchmarks.members.admissions import Admissions, Loss
from ringfence.wire import Source

CRASH = 10.0


def test_units_missing_in_the_counters_are_lost_and_the_latest_answers_give_their_age() -> None:
    admissions = Admissions()
    for key, asked_at in (("a", 9.5), ("a", 9.93), ("b", 9.8), ("c", 9.95)):
        admissions.add(key, Source.OWNER, asked_at, asked_at + 0.01, is_allowed=True)
    admissions.crash(CRASH)
    admissions.add(
        "a", Source.OWNER, 10.1, 10.2, is_allowed=True
    )  # Another member admitted this unit, so it is not lost.

    counted = Counter({"a": 2, "b": 1, "c": 1})
    loss = admissions.compare(counted, lambda key: key != "c")

    assert loss == Loss(lost=1, may_lose=1, oldest_s=CRASH - 9.94, counted_twice=0)


def test_the_age_of_a_unit_lost_long_before_the_crash_is_the_longest_recorded_age() -> None:
    admissions = Admissions()
    admissions.add("a", Source.OWNER, 5.0, 5.0, is_allowed=True)
    admissions.add("b", Source.OWNER, 9.9, 9.9, is_allowed=True)
    admissions.crash(CRASH)

    loss = admissions.compare(Counter({"b": 2}), lambda key: True)

    assert (loss.lost, loss.oldest_s, loss.counted_twice) == (1, 1.0, 1)


@pytest.mark.parametrize("source", [Source.POLICY, Source.SHED, Source.LOCAL])
def test_a_check_that_no_node_decided_is_counted_as_undecided(source: Source) -> None:
    admissions = Admissions()

    admissions.add("a", source, 9.9, 9.9, is_allowed=True)

    assert (admissions.undecided, admissions.by_key.total()) == (1, 0)
