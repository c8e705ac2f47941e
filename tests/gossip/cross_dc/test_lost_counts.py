"""Requests for lost counts of this data center, and the number of missing units."""

from hypothesis import given
from hypothesis import strategies as st

from gossip.cross_dc.lost_counts import LostCounts

KEY = b"12345678k"


def test_each_data_center_is_asked_for_shards_that_started_empty() -> None:
    recall = LostCounts()
    recall.start([7])
    assert recall.to_request("us") == [7]
    recall.start([3])
    recall.on_answer("us", [7])

    assert recall.to_request("us") == [3]
    assert recall.to_request("ap") == [3, 7]  # This is the first request to it.


def test_a_shard_that_starts_empty_again_is_requested_again() -> None:
    recall = LostCounts()
    recall.start([7])
    recall.to_request("us")
    recall.on_answer("us", [7])
    recall.start([7])

    assert recall.to_request("us") == [7]


def test_shards_of_other_owners_are_not_requested() -> None:
    recall = LostCounts()
    recall.start([7])
    recall.to_request("us")
    recall.stop([7])

    assert recall.to_request("us") == recall.to_request("ap") == []


def test_a_new_owner_may_request_a_shard_without_answers() -> None:
    recall = LostCounts()
    recall.start([3])
    recall.start([7])
    recall.to_request("us")
    recall.to_request("ap")
    recall.on_answer("us", [3])

    assert recall.unanswered([3, 7, 8]) == [7]


def test_units_admitted_since_the_loss_are_added_to_the_reported_count() -> None:
    recall = LostCounts()

    assert recall.missing(KEY, [5, 3], [4, 10, 5, 20]) == [(4, 10), (5, 20)]
    assert recall.missing(b"87654321k", [4, 1, 5, 30], [5, 20, 4, 10]) == [(4, 10)]


def test_a_single_lost_unit_is_added() -> None:
    assert LostCounts().missing(KEY, [], [4, 1]) == [(4, 1)]


def test_only_the_largest_reported_count_is_used() -> None:
    recall = LostCounts()
    assert recall.missing(KEY, [5, 3], [5, 20]) == [(5, 20)]

    assert recall.missing(KEY, [5, 23], [5, 19]) == []
    assert recall.missing(KEY, [5, 23], [5, 25]) == [(5, 5)]


def test_a_report_of_units_admitted_since_the_loss_adds_nothing() -> None:
    assert LostCounts().missing(KEY, [5, 30], [5, 30]) == []


def test_expired_windows_are_forgotten() -> None:
    recall = LostCounts()
    recall.missing(KEY, [], [5, 20])
    recall.forget(lambda key, number: number < 6)

    assert recall.missing(KEY, [], [5, 20]) == [(5, 20)]


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=12),
)
def test_recovery_never_counts_more_than_was_admitted(
    reported_before: list[int], steps: list[tuple[int, int, bool]]
) -> None:
    """`reported_before` has the count that each data center received before the loss."""
    recall = LostCounts()
    lost, since, own = max(reported_before), 0, 0
    reported = list(reported_before)
    for which, admitted, is_report in steps:
        since += admitted
        own += admitted
        at = which % len(reported)
        if is_report:
            reported[at] = max(reported[at], own)
        else:
            own += sum(units for _, units in recall.missing(KEY, [1, own], [1, reported[at]]))

        assert since <= own <= lost + since


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(0, 9))
def test_when_all_have_answered_in_time_nothing_is_missing(reported: list[int], since: int) -> None:
    recall = LostCounts()
    own = since = min(since, min(reported) - 1)
    for count in sorted(reported):
        own += sum(units for _, units in recall.missing(KEY, [1, own], [1, count]))

    assert own >= max(reported)
    assert own == max(reported) + since or len(reported) > 1
