"""Frames of several batches: which batches share a frame, and the columns of their request."""

from collections import deque
from typing import Any

import pytest

from ringfence.limiter import Limit
from ringfence.peering.link.outgoing import QueuedBatch, coalesce, join_batches, make_request
from ringfence.wire import Batch, Op, decode, encode

ONE, TWO, THREE = b"key-one-", b"key-two-", b"key-3---"
SMALL, LARGE = Limit(5, 60), Limit(50, 60)


def batch(*keys: bytes, op: Op = Op.CHECK, **columns: Any) -> Batch:
    return Batch(op, [*keys], [1] * len(keys), **columns)


def queued(one: Batch, *, hops: int = 0, as_standby: bool = False) -> QueuedBatch:
    return QueuedBatch(one, hops, as_standby, lambda results: None, 0.0, lambda each: None)


@pytest.mark.parametrize(
    ("other", "hops", "as_standby", "is_joined"),
    [
        (batch(TWO), 1, True, True),
        (batch(TWO, op=Op.CHARGE), 1, True, False),
        (batch(TWO), 0, True, False),
        (batch(TWO), 2, True, False),
        (batch(TWO), 1, False, False),
    ],
)
def test_batches_share_a_frame_if_operation_hops_and_role_are_equal(
    other: Batch, hops: int, *, as_standby: bool, is_joined: bool
) -> None:
    first = queued(batch(ONE), hops=1, as_standby=True)
    second = queued(other, hops=hops, as_standby=as_standby)
    queue = deque([first, second])

    assert coalesce(queue) == ([first, second] if is_joined else [first])
    assert [*queue] == ([] if is_joined else [second])


@pytest.mark.parametrize(("rows", "together"), [((511, 1, 1), 2), ((512, 1), 1), ((600, 1), 1)])
def test_the_batches_of_a_frame_have_at_most_512_rows(rows: tuple[int, ...], together: int) -> None:
    queue = deque([queued(batch(*[ONE] * count)) for count in rows])

    assert len(coalesce(queue)) == together
    assert len(queue) == len(rows) - together


def test_a_request_has_the_fields_of_its_batches_and_the_rows_of_all() -> None:
    together = [
        queued(batch(ONE), hops=1, as_standby=True),
        queued(batch(TWO), hops=1, as_standby=True),
    ]

    request = make_request(together, 7, 9, 250)

    assert (request.seq, request.view, request.deadline_ms) == (7, 9, 250)
    assert (request.hops, request.as_standby) == (1, True)
    assert request.batch == batch(ONE, TWO)
    assert make_request(together[:1], 7, 9, 250).batch is together[0].batch


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (batch(ONE), batch(TWO), batch(ONE, TWO)),
        (
            batch(ONE, TWO, groups=[2]),
            batch(THREE),
            batch(ONE, TWO, THREE, groups=[2, 1]),
        ),
        (
            batch(THREE),
            batch(ONE, TWO, groups=[2]),
            batch(THREE, ONE, TWO, groups=[1, 2]),
        ),
        (
            batch(ONE, TWO, limits=[SMALL], which=[0, 1]),
            batch(THREE),
            batch(ONE, TWO, THREE, limits=[SMALL], which=[0, 1, 0]),
        ),
        (
            batch(ONE, limits=[SMALL], which=[1]),
            batch(TWO, THREE, limits=[LARGE, SMALL], which=[2, 1]),
            batch(ONE, TWO, THREE, limits=[SMALL, LARGE], which=[1, 1, 2]),
        ),
        (
            batch(ONE, op=Op.REFUND, ages_ns=[8]),
            batch(TWO, op=Op.REFUND),
            batch(ONE, TWO, op=Op.REFUND, ages_ns=[8, 0]),
        ),
        (
            batch(ONE, op=Op.REFUND),
            batch(TWO, op=Op.REFUND, slot_ids=[3]),
            batch(ONE, TWO, op=Op.REFUND, slot_ids=[0, 3]),
        ),
        (
            batch(ONE),
            batch(TWO, ids=[(4, 5, 6)]),
            batch(ONE, TWO, ids=[(0, 0, 0), (4, 5, 6)]),
        ),
    ],
    ids=["keys", "groups", "later groups", "limits", "equal limits", "ages", "slots", "ids"],
)
def test_a_row_without_an_optional_column_has_its_default_in_joined_batches(
    one: Batch, other: Batch, joined: Batch
) -> None:
    result = join_batches([one, other])

    assert result == joined
    request = make_request([queued(one), queued(other)], 1, 0, 250)
    assert decode(encode(request)) == request
