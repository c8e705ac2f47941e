"""Encoding and decoding of `Request` and `Answer`, the messages of every check.

Defines the format of the arrays, and checks that the columns of a message are consistent. Encoding
and decoding raise `BadMessage`. `message_codec` converts it to `LocalProtocolError` when encoding
fails.
"""

from collections.abc import Sequence
from operator import lt
from typing import TypeGuard

from msgpack import Unpacker, UnpackException

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import LONGEST_NS, Code, Outcomes
from ringfence.wire.bounds import (
    MAX_COST,
    MAX_DEADLINE_MS,
    MAX_ITEMS,
    MAX_KEY,
    MAX_KEYS,
    MAX_U64,
    MIN_KEY,
)
from ringfence.wire.codecs.fields import IntegerFields, bad_field, flag, integer, items
from ringfence.wire.codecs.integer_columns import (
    read_integers,
    read_runs,
    write_durations,
    write_integers,
    write_runs,
)
from ringfence.wire.codecs.limit_codec import read_limit, write_limit
from ringfence.wire.messages.request_columns import Batch, CheckId, Op, Results, Source
from ringfence.wire.messages.request_messages import Answer, Request

__all__ = [
    "ANSWER",
    "ANSWER_FIELDS",
    "REQUEST",
    "REQUEST_FIELDS",
    "peek_request",
    "read_answer",
    "read_request",
    "write_answer",
    "write_request",
]

REQUEST = 4
ANSWER = 5
REQUEST_FIELDS = 15
ANSWER_FIELDS = 14

_ID_COLUMNS = 3
_FIELDS_BEFORE_KEYS = 7
_PEEKED_BYTES = 64
"""Number of bytes that `peek_request` reads. The fields that it needs end within 44 bytes."""
_ONLY_BYTES = {bytes}
_ONLY_INTEGERS = {int}
_OPS = {op.value: op for op in Op}
_LAST_OP = max(Op)
_WITH_SLOT_IDS = (Op.CHECK, Op.REFUND, Op.RENEW)
_LAST_CODE = len(Code) - 1
_LAST_SOURCE = len(Source) - 1
_REQUEST_NUMBERS = IntegerFields(
    "Request",
    seq=(1, MAX_U64),
    view=(0, MAX_U64),
    deadline_ms=(1, MAX_DEADLINE_MS),
    hops=(0, 2),
)
_ANSWER_NUMBERS = IntegerFields(
    "Answer", seq=(1, MAX_U64), view=(0, MAX_U64), rules=(0, MAX_U64), count=(1, MAX_KEYS)
)


def write_request(message: Request) -> list[object]:
    """Convert a request to the list of its fields."""
    batch = message.batch
    keys = batch.keys
    count = len(keys)
    _check_keys(keys)
    groups = batch.groups
    numbers = message.seq, message.view, message.deadline_ms, message.hops
    seq, view, deadline, hops = _REQUEST_NUMBERS.checked(*numbers)
    fields = [
        REQUEST,
        seq,
        batch.op,
        view,
        deadline,
        hops,
        message.as_standby,
        keys,
        write_integers(batch.costs, count, "Request.costs", MAX_COST),
        write_runs(groups, count, "Request.groups") if groups else None,
    ]
    has_extras = batch.limits or batch.which or batch.ages_ns or batch.slot_ids
    if has_extras or batch.op is Op.RENEW:
        fields += _write_extras(batch, count)
    else:
        fields += (None, None, None, None)
    fields.append(_write_ids(batch.ids, count) if batch.ids else None)
    return fields


def read_request(fields: list[object]) -> Request:
    """Create a request from the list of its `REQUEST_FIELDS` fields."""
    _, seq, op, view, deadline, hops, as_standby, keys, costs, groups, *extras = fields
    limits, which, ages, slot_ids, ids = extras
    checked = _read_keys(keys)
    count = len(checked)
    batch = Batch(
        _read_op(op),
        checked,
        read_integers(costs, count, "Request.costs", MAX_COST),
        [] if groups is None else read_runs(groups, count, "Request.groups"),
        [] if limits is None else _read_limits(limits, count),
        [] if which is None else read_integers(which, count, "Request.which"),
        [] if ages is None else read_integers(ages, count, "Request.ages_ns"),
        [] if slot_ids is None else read_integers(slot_ids, count, "Request.slot_ids"),
        [] if ids is None else _read_ids(ids, count),
    )
    has_extras = not (limits is None and which is None and ages is None and slot_ids is None)
    if has_extras or batch.op is Op.RENEW:
        _check_extras(batch)
    seq, view, deadline, hops = _REQUEST_NUMBERS.checked(seq, view, deadline, hops)
    return Request(seq, view, deadline, hops, flag(as_standby, "Request.as_standby"), batch)


def peek_request(payload: bytes) -> tuple[int, int] | None:
    """Return the sequence number and the row count of an encoded request, without decoding it
    completely.

    Returns None when the payload cannot be a request. The cost does not depend on the size of the
    payload. Other fields are not checked.
    """
    unpacker = Unpacker(max_array_len=MAX_ITEMS)
    unpacker.feed(payload[:_PEEKED_BYTES])
    try:
        length = unpacker.read_array_header()
        head = [unpacker.unpack() for _ in range(_FIELDS_BEFORE_KEYS)]
        rows = unpacker.read_array_header()
    except (ValueError, TypeError, UnpackException):
        return None
    kind, seq = head[:2]
    if (length, kind) != (REQUEST_FIELDS, REQUEST) or type(seq) is not int or seq < 1:
        return None
    return (seq, rows) if 1 <= rows <= MAX_KEYS else None


def write_answer(message: Answer) -> list[object]:
    """Convert an answer to the list of its fields."""
    results = message.results
    count = len(results.outcomes)
    row = _write_row(results) if count == 1 else None
    return [
        ANSWER,
        *_ANSWER_NUMBERS.checked(message.seq, message.view, message.rules, count),
        *(_write_columns(results, count) if row is None else row),
        None if message.rows is None else _write_rows(message.rows, count),
    ]


def _write_row(results: Results) -> Sequence[int] | None:
    """Return the only row of an answer, whose columns are one integer each.

    Returns None when a column is invalid or a duration is too long, for `_write_columns`.
    """
    outcomes = results.outcomes
    codes, limits, remaining = outcomes.codes, outcomes.limits, outcomes.remaining
    durations = outcomes.retry_after_ns, outcomes.reset_after_ns, outcomes.delay_ns
    columns = (codes, limits, remaining, *durations, outcomes.slot_ids, results.sources)
    try:
        (row,) = zip(*columns, strict=True)
    except ValueError:
        return None
    is_valid = row[0] <= _LAST_CODE and row[-1] <= _LAST_SOURCE
    return row if is_valid and min(row) >= 0 and max(row) <= LONGEST_NS else None


def _write_columns(results: Results, count: int) -> Sequence[int | bytes]:
    outcomes = results.outcomes
    return (
        write_integers(outcomes.codes, count, "Answer.codes", _LAST_CODE),
        write_integers(outcomes.limits, count, "Answer.limits"),
        write_integers(outcomes.remaining, count, "Answer.remaining"),
        write_durations(outcomes.retry_after_ns, count, "Answer.retry_after_ns"),
        write_durations(outcomes.reset_after_ns, count, "Answer.reset_after_ns"),
        write_durations(outcomes.delay_ns, count, "Answer.delay_ns"),
        write_integers(outcomes.slot_ids, count, "Answer.slot_ids"),
        write_integers(results.sources, count, "Answer.sources", _LAST_SOURCE),
    )


def read_answer(fields: list[object]) -> Answer:
    """Create an answer from the list of its `ANSWER_FIELDS` fields."""
    _, seq, view, rules, size, *columns, rows = fields
    seq, view, rules, count = _ANSWER_NUMBERS.checked(seq, view, rules, size)
    results = _read_row(columns) if count == 1 else None
    return Answer(
        seq,
        view,
        rules,
        _read_columns(columns, count) if results is None else results,
        None if rows is None else _read_rows(rows, count),
    )


def _read_row(row: list[object]) -> Results | None:
    """Create the results of an answer with one row, whose columns are one integer each.

    Returns None for any other column, for `_read_columns`.
    """
    if not _are_integers(row) or min(row) < 0 or row[0] > _LAST_CODE or row[-1] > _LAST_SOURCE:
        return None
    code, limit, remaining, retry, reset, delay, slot_id, source = row
    outcomes = Outcomes([code], [limit], [remaining], [retry], [reset], [delay], [slot_id])
    return Results(outcomes, [source])


def _are_integers(values: list[object]) -> TypeGuard[list[int]]:
    return {*map(type, values)} == _ONLY_INTEGERS


def _read_columns(columns: list[object], count: int) -> Results:
    codes, limits, remaining, retry, reset, delay, slot_ids, sources = columns
    return Results(
        Outcomes(
            read_integers(codes, count, "Answer.codes", _LAST_CODE),
            read_integers(limits, count, "Answer.limits"),
            read_integers(remaining, count, "Answer.remaining"),
            read_integers(retry, count, "Answer.retry_after_ns"),
            read_integers(reset, count, "Answer.reset_after_ns"),
            read_integers(delay, count, "Answer.delay_ns"),
            read_integers(slot_ids, count, "Answer.slot_ids"),
        ),
        read_integers(sources, count, "Answer.sources", _LAST_SOURCE),
    )


def _read_op(wire: object) -> Op:
    op = _OPS.get(integer(wire, "Request.op", 0, _LAST_OP))
    if op is None:
        raise bad_field("Request.op", f"one of {', '.join(map(str, _OPS))}")
    return op


def _write_rows(rows: list[int], count: int) -> int | bytes:
    wire = write_integers(rows, count, "Answer.rows", MAX_KEYS - 1)
    _check_rows(rows)
    return wire


def _read_rows(wire: object, count: int) -> list[int]:
    rows = read_integers(wire, count, "Answer.rows", MAX_KEYS - 1)
    _check_rows(rows)
    return rows


def _check_rows(rows: list[int]) -> None:
    if not all(map(lt, rows, rows[1:])):
        raise bad_field("Answer.rows", "in rising order, each once")


def _read_keys(wire: object) -> list[bytes]:
    if type(wire) is list:
        _check_keys(wire)
        return wire
    raise bad_field("Request.keys", f"an array of 1 to {MAX_KEYS} keys")


def _check_keys(keys: list[bytes]) -> None:
    if len(keys) == 1 and type(keys[0]) is bytes and MIN_KEY <= len(keys[0]) <= MAX_KEY:
        return
    if not 1 <= len(keys) <= MAX_KEYS:
        raise bad_field("Request.keys", f"an array of 1 to {MAX_KEYS} keys")
    if set(map(type, keys)) == _ONLY_BYTES:
        sizes = set(map(len, keys))
        if min(sizes) >= MIN_KEY and max(sizes) <= MAX_KEY:
            return
    raise bad_field("Request.keys", f"byte strings of {MIN_KEY} to {MAX_KEY} bytes")


def _read_limits(wire: object, count: int) -> list[Limit]:
    limits = items(wire, "Request.limits", count)
    if not limits:
        raise bad_field("Request.limits", "nil when there are none")
    return [read_limit(limit, "Request.limits") for limit in limits]


def _write_extras(batch: Batch, count: int) -> list[object]:
    """Encode the four columns of a request that are usually empty."""
    _check_extras(batch)
    limits, which, ages, slot_ids = batch.limits, batch.which, batch.ages_ns, batch.slot_ids
    return [
        [write_limit(limit) for limit in limits] if limits else None,
        write_integers(which, count, "Request.which") if which else None,
        write_integers(ages, count, "Request.ages_ns") if ages else None,
        write_integers(slot_ids, count, "Request.slot_ids") if slot_ids else None,
    ]


def _write_ids(ids: list[CheckId], count: int) -> list[object]:
    columns = [list(column) for column in zip(*ids, strict=True)]
    return [write_integers(column, count, "Request.ids") for column in columns]


def _read_ids(wire: object, count: int) -> list[CheckId]:
    columns = items(wire, "Request.ids", _ID_COLUMNS)
    if len(columns) != _ID_COLUMNS:
        raise bad_field("Request.ids", f"{_ID_COLUMNS} columns")
    sessions, seqs, rows = [read_integers(each, count, "Request.ids") for each in columns]
    return list(zip(sessions, seqs, rows, strict=True))


def _check_extras(batch: Batch) -> None:
    """Raise `BadMessage` for columns that the request's operation does not permit, and for
    missing columns."""
    limits, which = batch.limits, batch.which
    if len(limits) > len(batch.keys):
        raise bad_field("Request.limits", "no more than the keys")
    if bool(limits) != bool(which) or max(which, default=0) > len(limits):
        raise bad_field("Request.which", "there when Request.limits is, and index into it")
    if batch.ages_ns and batch.op is not Op.REFUND:
        raise bad_field("Request.ages_ns", "left out unless keys are refunded")
    if batch.slot_ids and batch.op not in _WITH_SLOT_IDS:
        raise bad_field("Request.slot_ids", "left out unless slots are meant")
    if batch.op is Op.RENEW and not batch.slot_ids:
        raise bad_field("Request.slot_ids", "there when slots are renewed")
