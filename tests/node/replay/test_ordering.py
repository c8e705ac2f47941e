from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from node.replay.logs import Entry, sorted_by_time
from node.replay.ordering import in_order


def entry(time_ns: int, client: str = "x") -> Entry:
    return Entry(time_ns, client, "GET", "/", "200")


@given(
    st.lists(st.integers(0, 30), max_size=60).map(sorted),
    st.integers(1, 8),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_lines_that_are_no_farther_out_of_order_than_is_held_are_put_in_order(
    times: list[int], held: int, size: int, random: Random
) -> None:
    log: list[int] = []
    for start in range(0, len(times), held):
        log += random.sample(block := times[start : start + held], len(block))
    entries = [entry(time, str(place)) for place, time in enumerate(log)]
    batches = [entries[start : start + size] for start in range(0, len(entries), size)]

    found = [each for batch in in_order(batches, held) for each in batch]

    assert found == sorted_by_time(entries)


@given(st.lists(st.lists(st.integers(0, 1000), max_size=9)), st.integers(1, 9))
def test_no_line_is_lost_and_few_are_held(times: list[list[int]], held: int) -> None:
    taken = 0

    def batches() -> Iterator[list[Entry]]:  # Counts what was asked for.
        nonlocal taken
        for batch in times:
            taken += len(batch)
            yield [entry(time) for time in batch]

    given_out = []
    for batch in in_order(batches(), held):
        given_out += [each.time_ns for each in batch]
        assert taken - len(given_out) <= 2 * held
        assert [each.time_ns for each in batch] == sorted(each.time_ns for each in batch)

    assert sorted(given_out) == sorted(time for batch in times for time in batch)
