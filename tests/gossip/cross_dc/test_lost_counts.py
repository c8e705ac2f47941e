"""Which counts of its own a data center asks the others for, and how many units are missing."""

from hypothesis import given
from hypothesis import strategies as st

from gossip.cross_dc.lost_counts import LostCounts

KEY = b"12345678k"


def test_every_data_center_is_asked_for_what_was_begun_from_nothing() -> None:
    recall = LostCounts()
    recall.start([7])
    assert recall.to_request("us") == [7]
    recall.start([3])
    recall.on_answer("us", [7])

    assert recall.to_request("us") == [3]
    assert recall.to_request("ap") == [3, 7]  # It was not known until now.


def test_what_is_begun_anew_is_asked_for_again() -> None:
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


def test_units_admitted_since_are_added_to_the_remembered_ones() -> None:
    recall = LostCounts()

    assert recall.missing(KEY, [5, 3], [4, 10, 5, 20]) == [(4, 10), (5, 20)]
    assert recall.missing(b"87654321k", [4, 1, 5, 30], [5, 20, 4, 10]) == [(4, 10)]


def test_a_single_lost_unit_is_added() -> None:
    assert LostCounts().missing(KEY, [], [4, 1]) == [(4, 1)]


def test_of_several_memories_only_the_largest_counts() -> None:
    recall = LostCounts()
    assert recall.missing(KEY, [5, 3], [5, 20]) == [(5, 20)]

    assert recall.missing(KEY, [5, 23], [5, 19]) == []
    assert recall.missing(KEY, [5, 23], [5, 25]) == [(5, 5)]


def test_a_memory_of_what_was_admitted_since_adds_nothing() -> None:
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
    heard_before: list[int], steps: list[tuple[int, int, bool]]
) -> None:
    """`heard_before` is what each data center remembers of the life that is over."""
    recall = LostCounts()
    lost, since, own = max(heard_before), 0, 0
    memories = list(heard_before)
    for which, admitted, tells in steps:
        since += admitted
        own += admitted
        at = which % len(memories)
        if tells:
            memories[at] = max(memories[at], own)
        else:
            own += sum(units for _, units in recall.missing(KEY, [1, own], [1, memories[at]]))

        assert since <= own <= lost + since


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(0, 9))
def test_when_all_have_answered_in_time_nothing_is_missing(memories: list[int], since: int) -> None:
    recall = LostCounts()
    own = since = min(since, min(memories) - 1)
    for count in sorted(memories):
        own += sum(units for _, units in recall.missing(KEY, [1, own], [1, count]))

    assert own >= max(memories)
    assert own == max(memories) + since or len(memories) > 1
