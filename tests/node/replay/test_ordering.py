from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from node.replay.log_formats import Entry
from node.replay.logs import sorted_by_time
from node.replay.ordering import in_order


def entry(time_ns: int, client: str = "x") -> Entry:
    return Entry(time_ns, client, "GET", "/", "200")


@given(
    st.lists(st.integers(0, 30), max_size=60).map(sorted),
    st.integers(1, 8),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_lines_are_sorted_if_none_is_farther_out_of_order_than_the_buffer_holds(
    times: list[int], max_held: int, size: int, random: Random
) -> None:
    log: list[int] = []
    for start in range(0, len(times), max_held):
        log += random.sample(block := times[start : start + max_held], len(block))
    entries = [entry(time, str(index)) for index, time in enumerate(log)]
    batches = [entries[start : start + size] for start in range(0, len(entries), size)]

    ordered = [each for batch in in_order(batches, max_held) for each in batch]

    assert ordered == sorted_by_time(entries)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 8), st.integers(1, 20))
def test_the_order_does_not_depend_on_the_sizes_of_the_batches(
    times: list[int], max_held: int, size: int
) -> None:
    entries = [entry(time, str(index)) for index, time in enumerate(times)]
    batches = [entries[start : start + size] for start in range(0, len(entries), size)]

    assert [*in_order(batches, max_held)] == [*in_order([entries], max_held)]


@given(st.lists(st.lists(st.integers(0, 1000), max_size=9)), st.integers(1, 9))
def test_no_line_is_lost_and_the_buffer_is_bounded(times: list[list[int]], max_held: int) -> None:
    lines_read = 0

    def batches() -> Iterator[list[Entry]]:  # Counts the lines that the caller reads.
        nonlocal lines_read
        for batch in times:
            lines_read += len(batch)
            yield [entry(time) for time in batch]

    emitted = []
    for batch in in_order(batches(), max_held):
        emitted += [each.time_ns for each in batch]
        assert lines_read - len(emitted) <= 2 * max_held + max(map(len, times), default=0)
        assert [each.time_ns for each in batch] == sorted(each.time_ns for each in batch)

    assert sorted(emitted) == sorted(time for batch in times for time in batch)
