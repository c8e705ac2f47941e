import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Record, Status

records = st.builds(
    Record,
    name=st.just("a"),
    host=st.sampled_from(["h1", "h2"]),
    port=st.integers(1, 2),
    datacenter=st.sampled_from(["dc1", "dc2"]),
    zone=st.just(""),
    weight=st.sampled_from([1.0, 2.0]),
    generation=st.integers(1, 2),
    incarnation=st.integers(0, 2),
    status=st.sampled_from(Status),
    forward_only=st.booleans(),
)


def newer(one, other):
    return one if one.replaces(other) else other


@given(records, records)
def test_merging_is_commutative(one, other):
    assert newer(one, other) == newer(other, one)


@given(records, records, records)
def test_merging_is_associative(one, other, third):
    assert newer(newer(one, other), third) == newer(one, newer(other, third))


@given(records, records)
def test_merging_is_idempotent_and_never_falls_back(one, other):
    merged = newer(one, other)

    assert newer(merged, one) == newer(merged, other) == newer(merged, merged) == merged
    assert merged.rank >= one.rank


@given(records, records)
def test_a_higher_generation_always_replaces(one, other):
    restarted = replace(one, generation=other.generation + 1)

    assert restarted.replaces(other)
    assert not other.replaces(restarted)


def test_with_equal_incarnation_the_worse_status_wins(record):
    words = [record(status=status) for status in Status]

    assert all(worse.replaces(better) for better, worse in itertools.pairwise(words))


def test_another_accuser_does_not_supersede_a_record(record):
    by_b, by_c = (record(status=Status.SUSPECT, accuser=name) for name in "bc")

    assert not by_b.replaces(by_c)
    assert not by_c.replaces(by_b)


@pytest.mark.parametrize("status", Status)
def test_leaving_members_receive_checks_and_joining_members_receive_counters(record, status):
    is_routed = status in (Status.ALIVE, Status.LEAVING, Status.SUSPECT)
    is_placed = status in (Status.JOINING, Status.ALIVE, Status.SUSPECT)

    assert record(status=status).is_routed == is_routed
    assert record(status=status).is_placed == is_placed
    assert not record(status=status, forward_only=True).is_routed
    assert not record(status=status, forward_only=True).is_placed
