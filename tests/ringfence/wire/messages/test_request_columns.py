from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Code, Limit, Outcome, Outcomes
from ringfence.wire import Batch, Op, Results, Source, empty_results, join_results

LIMITS = [Limit.of_ns(amount, 1_000_000_000) for amount in (1, 2, 3)]


@st.composite
def batches(draw):
    groups = draw(st.lists(st.integers(1, 4), max_size=6))
    count = sum(groups)

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    has_limits = count > 0 and draw(st.booleans())
    refunds = draw(st.booleans())
    return Batch(
        Op.REFUND if refunds else Op.CHECK,
        column(st.binary(min_size=8, max_size=10)),
        column(st.integers(0, 9)),
        groups if draw(st.booleans()) else [],
        LIMITS if has_limits else [],
        column(st.integers(0, len(LIMITS))) if has_limits else [],
        column(st.integers(0, 9)) if refunds else [],
        column(st.integers(0, 9)) if refunds else [],
    )


@st.composite
def batch_and_rows(draw):
    batch = draw(batches())
    chosen = draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
    return batch, [row for row, is_chosen in enumerate(chosen) if is_chosen]


def rows_of(batch):
    """Return the columns of a batch as rows."""
    return [
        (
            batch.keys[row],
            batch.costs[row],
            batch.limits[batch.which[row] - 1] if batch.which and batch.which[row] else None,
            batch.ages_ns[row] if batch.ages_ns else None,
            batch.slot_ids[row] if batch.slot_ids else None,
        )
        for row in range(len(batch))
    ]


def make_results(count, first=0):
    columns = [[first + 10 * column + row for row in range(count)] for column in range(8)]
    return Results(Outcomes(*columns[:7]), columns[7])


def table(rows):
    columns = rows.outcomes
    return list(
        zip(
            columns.codes,
            columns.limits,
            columns.remaining,
            columns.retry_after_ns,
            columns.reset_after_ns,
            columns.delay_ns,
            columns.slot_ids,
            rows.sources,
            strict=True,
        )
    )


@given(batch_and_rows())
@settings(max_examples=60)
def test_taken_rows_keep_their_columns(batch_with_rows):
    batch, rows = batch_with_rows

    taken = batch.take(rows)

    assert taken.op is batch.op
    assert rows_of(taken) == [rows_of(batch)[row] for row in rows]
    if len(rows) < len(batch):
        assert len(taken.limits) <= len(taken), "a frame may have no more limits than keys"
        assert bool(taken.limits) == bool(taken.which)


@given(batch_and_rows())
@settings(max_examples=60)
def test_taken_rows_keep_their_groups(batch_with_rows):
    batch, rows = batch_with_rows

    before, after = batch.group_numbers(), batch.take(rows).group_numbers()

    assert len(after) == len(rows)
    for one, first in enumerate(rows):
        for other, second in enumerate(rows):
            assert (after[one] == after[other]) == (before[first] == before[second])


@given(batches())
@settings(max_examples=30)
def test_taking_all_rows_changes_nothing(batch):
    assert batch.take(range(len(batch))) == batch


@given(batches())
@settings(max_examples=30)
def test_group_numbers_increase_along_the_rows(batch):
    numbers = batch.group_numbers()

    assert numbers == sorted(numbers)
    if batch.groups:
        starts = [0, *accumulate(batch.groups)][:-1]
        assert [numbers[start] for start in starts] == list(range(len(batch.groups)))
    else:
        assert numbers == list(range(len(batch)))


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=40)
def test_joined_slices_equal_the_original_results(first, second, third):
    whole = make_results(first + second + third)

    cuts = [0, first, first + second, first + second + third]
    parts = [whole.slice(start, stop) for start, stop in pairwise(cuts)]

    assert [row for part in parts for row in table(part)] == table(whole)


def select_rows(whole, places):
    """Return the rows of `whole` at the given places."""
    rows = [table(whole)[place] for place in places]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 8
    return Results(Outcomes(*columns[:7]), columns[7])


@given(st.lists(st.integers(0, 3), max_size=12))
@settings(max_examples=40)
def test_parts_that_have_each_row_once_are_joined_in_order(part_of):
    whole = make_results(len(part_of))
    places = [[row for row, part in enumerate(part_of) if part == number] for number in range(4)]

    joined = join_results([(rows, select_rows(whole, rows)) for rows in places], len(part_of))

    assert joined is not None
    assert table(joined) == table(whole)


@pytest.mark.parametrize("places", [[], [[0, 1]], [[0, 1], [1]], [[0, 1], [1, 2], [2]]])
def test_parts_with_missing_or_repeated_rows_are_not_joined(places):
    whole = make_results(3)

    assert join_results([(rows, select_rows(whole, rows)) for rows in places], 3) is None


@given(st.lists(st.booleans(), max_size=12))
@settings(max_examples=40)
def test_scattered_parts_fill_all_rows_in_order(belongs_to_first):
    whole = make_results(len(belongs_to_first))
    gathered = empty_results(len(belongs_to_first))

    for part in (True, False):
        places = [place for place, belongs in enumerate(belongs_to_first) if belongs is part]
        gathered.scatter(places, select_rows(whole, places))

    assert table(gathered) == table(whole)


def test_put_changes_only_its_own_row():
    gathered = make_results(3)

    gathered.put(1, Outcome(Code.NEVER, 5, 4, 3, 2, 1, 7), Source.STANDBY)

    assert table(gathered) == [
        table(make_results(3))[0],
        (Code.NEVER, 5, 4, 3, 2, 1, 7, Source.STANDBY),
        table(make_results(3))[2],
    ]


def test_empty_results_have_no_charge():
    gathered = empty_results(2)

    row = (Code.UNKNOWN_RULE, *[0] * 6, Source.POLICY)
    assert table(gathered) == [row, row]
