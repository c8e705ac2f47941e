from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import Packer, packb, unpackb
from msgspec.structs import replace

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import LONGEST_NS, Code, Outcomes
from ringfence.wire.bounds import MAX_COST, MAX_DEADLINE_MS, MAX_KEY, MAX_KEYS, MAX_U64, MIN_KEY
from ringfence.wire.codecs.request_codec import (
    ANSWER_FIELDS,
    REQUEST_FIELDS,
    peek_request,
    read_answer,
    read_request,
    write_answer,
    write_request,
)
from ringfence.wire.errors import BadMessage
from ringfence.wire.messages.request_columns import Batch, Op, Results, Source
from ringfence.wire.messages.request_messages import Answer, Request

KEY = b"twenty bytes of key."
VIEW = 0xA1B2C3D4E5F60718
LIMIT = Limit.of_ns(100, 60_000_000_000)

u64 = st.integers(0, 100) | st.integers(0, MAX_U64)
seqs = st.integers(1, MAX_U64)


def request(count: int = 1) -> Request:
    keys = [b"%012d" % number for number in range(count)]
    return Request(7, VIEW, 250, 0, False, Batch(Op.CHECK, keys, [1] * count))


def answer(count: int = 1) -> Answer:
    rows = Outcomes(*([value] * count for value in (0, 100, 99, 0, 60_000_000_000, 0, 0)))
    return Answer(7, VIEW, 3, Results(rows, [0] * count))


def column(count: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.one_of(
        values.map(lambda value: [value] * count),
        st.lists(values, min_size=count, max_size=count),
    )


def leases_of(op: Op, count: int) -> st.SearchStrategy[list[int]]:
    """Return a strategy for slots to release or renew, or for tickets of waiting checks."""
    if op is Op.RENEW:
        return column(count, u64)
    return st.just([]) if op in (Op.RESET, Op.CHARGE) else st.just([]) | column(count, u64)


def with_columns(message: Request, **columns: object) -> Request:
    return replace(message, batch=replace(message.batch, **columns))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    count = draw(st.integers(1, 12))
    limits = draw(
        st.lists(st.integers(0, 99).map(lambda amount: Limit.of_ns(amount, 10**9)), max_size=3)
    )
    limits = limits[:count]
    op = draw(st.sampled_from(Op))
    refunded = op is Op.REFUND
    cuts = draw(st.none() | st.sets(st.integers(1, count)))
    ends = [] if cuts is None else sorted({0, count, *cuts})
    return Request(
        seq=draw(seqs),
        view=draw(u64),
        deadline_ms=draw(st.integers(1, MAX_DEADLINE_MS)),
        hops=draw(st.integers(0, 2)),
        as_standby=draw(st.booleans()),
        batch=Batch(
            op,
            draw(
                st.lists(st.binary(min_size=MIN_KEY, max_size=30), min_size=count, max_size=count)
            ),
            draw(column(count, st.integers(0, 3) | st.integers(0, MAX_COST))),
            groups=[end - start for start, end in pairwise(ends)],
            limits=limits,
            which=draw(column(count, st.integers(0, len(limits)))) if limits else [],
            ages_ns=draw(st.just([]) | column(count, u64)) if refunded else [],
            slot_ids=draw(leases_of(op, count)),
            ids=draw(st.just([]) | column(count, st.tuples(u64, u64, u64))),
        ),
    )


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    count = draw(st.integers(1, 12))
    codes = draw(column(count, st.sampled_from(Code).map(int)))
    durations = st.integers(0, LONGEST_NS)  # The codec cuts longer durations.
    kinds = (u64, u64, durations, durations, durations, u64)
    rows = Outcomes(codes, *(draw(column(count, kind)) for kind in kinds))
    sources = draw(column(count, st.sampled_from(Source).map(int)))
    row_numbers = st.lists(
        st.integers(0, MAX_KEYS - 1), min_size=count, max_size=count, unique=True
    )
    part = draw(st.none() | row_numbers.map(sorted))
    return Answer(draw(seqs), draw(u64), draw(u64), Results(rows, sources), part)


@given(message=requests())
def test_reading_a_written_request_returns_an_equal_request(message):
    assert read_request(unpackb(packb(write_request(message)))) == message


@given(message=answers())
def test_reading_a_written_answer_returns_an_equal_answer(message):
    assert read_answer(unpackb(packb(write_answer(message)))) == message


def test_written_messages_have_the_declared_number_of_fields():
    assert len(write_request(request())) == REQUEST_FIELDS
    assert len(write_answer(answer())) == ANSWER_FIELDS


def test_a_single_check_is_small():
    single = with_columns(replace(request(), seq=1_000_000), keys=[KEY])

    assert len(packb(write_request(single))) < 60
    assert len(packb(write_answer(answer()))) < 50


def test_a_batch_is_only_a_little_larger_than_its_keys():
    batch = with_columns(request(256), keys=[KEY] * 256)

    assert len(packb(write_request(batch))) < 256 * (len(KEY) + 2) + 40


def test_an_answer_with_equal_results_is_as_small_as_one_result():
    assert len(packb(write_answer(answer(4096)))) <= len(packb(write_answer(answer()))) + 2


def test_codes_given_as_enum_members_are_written_as_their_numbers():
    rows = answer(2)
    rows.results.outcomes.codes = [Code.ALLOWED, Code.DENIED]
    rows.results.sources = [Source.STANDBY, Source.STANDBY]

    decoded = read_answer(unpackb(packb(write_answer(rows))))

    assert (decoded.results.outcomes.codes, decoded.results.sources) == ([0, 2], [1, 1])


@pytest.mark.parametrize(
    ("index", "value", "field"),
    [
        (1, 0, "Request.seq"),
        (1, MAX_U64 + 1, "Request.seq"),
        (1, True, "Request.seq"),
        (2, 5, "Request.op"),
        (2, False, "Request.op"),
        (3, -1, "Request.view"),
        (3, 1.0, "Request.view"),
        (4, 0, "Request.deadline_ms"),
        (4, MAX_DEADLINE_MS + 1, "Request.deadline_ms"),
        (5, 3, "Request.hops"),
        (6, 0, "Request.as_standby"),
        (6, None, "Request.as_standby"),
        (7, None, "Request.keys"),
        (7, [], "Request.keys"),
        (7, KEY, "Request.keys"),
        (7, ["twelve chars"] * 3, "Request.keys"),
        (7, [KEY, KEY, bytes(MIN_KEY - 1)], "Request.keys"),
        (7, [KEY, KEY, bytes(MAX_KEY + 1)], "Request.keys"),
        (7, [KEY] * (MAX_KEYS + 1), "Request.keys"),
        (8, None, "Request.costs"),
        (8, [1, 1, 1], "Request.costs"),
        (8, MAX_COST + 1, "Request.costs"),
        (8, b"\1\2", "Request.costs"),
        (9, [1, 2], "Request.groups"),
        (9, 2, "Request.groups"),
        (10, [], "Request.limits"),
        (10, [[100, 1]], "Request.which"),
        (10, [[100, 1]] * 4, "Request.limits"),
        (10, [[100]], "Request.limits"),
        (10, 1, "Request.limits"),
        (11, 0, "Request.which"),
        (12, 5, "Request.ages_ns"),
        (13, [5], "Request.slot_ids"),
        (2, 4, "Request.slot_ids"),
        (14, 5, "Request.ids"),
        (14, [1, 2], "Request.ids"),
        (14, [1, 2, b"\1"], "Request.ids"),
        (14, [1, 2, -1], "Request.ids"),
    ],
)
def test_a_request_with_one_invalid_field_is_rejected_with_its_name(index, value, field):
    fields = unpackb(packb(write_request(request(3))))
    fields[index] = value

    with pytest.raises(BadMessage, match=field) as caught:
        read_request(fields)

    assert caught.value.cause == "bad_field"


def test_an_index_past_the_limits_is_refused():
    limited = with_columns(request(3), limits=[LIMIT], which=[0, 1, 1])
    fields = unpackb(packb(write_request(limited)))
    fields[11] = b"\0\1\2"

    with pytest.raises(BadMessage, match=r"Request\.which"):
        read_request(fields)


@pytest.mark.parametrize(
    ("index", "value", "field"),
    [
        (1, 0, "Answer.seq"),
        (2, None, "Answer.view"),
        (3, "3", "Answer.rules"),
        (4, 0, "Answer.count"),
        (4, MAX_KEYS + 1, "Answer.count"),
        (4, True, "Answer.count"),
        (5, 7, "Answer.codes"),
        (5, b"\0\7\0", "Answer.codes"),
        (5, b"\0\0", "Answer.codes"),
        (6, -1, "Answer.limits"),
        (7, [1, 2, 3], "Answer.remaining"),
        (8, None, "Answer.retry_after_ns"),
        (9, bytes(9), "Answer.reset_after_ns"),
        (10, 0.5, "Answer.delay_ns"),
        (11, {}, "Answer.slot_ids"),
        (12, 8, "Answer.sources"),
        (13, 5, "Answer.rows"),
        (13, b"\0\2\1", "Answer.rows"),
        (13, b"\0\1", "Answer.rows"),
        (13, b"\0\0\0\1\xff\xff", "Answer.rows"),
    ],
)
def test_an_answer_with_one_invalid_field_is_rejected_with_its_name(index, value, field):
    fields = write_answer(answer(3))
    fields[index] = value

    with pytest.raises(BadMessage, match=field) as caught:
        read_answer(fields)

    assert caught.value.cause == "bad_field"


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 0},
        {"view": -1},
        {"deadline_ms": 0},
        {"hops": 3},
    ],
    ids=str,
)
def test_an_invalid_request_cannot_be_written(changes):
    with pytest.raises(BadMessage, match="Request"):
        write_request(replace(request(3), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": []},
        {"keys": [b"short"] * 3},
        {"costs": [1]},
        {"costs": [1, -1, 1]},
        {"groups": [2]},
        {"limits": [LIMIT]},
        {"which": [0, 0, 0]},
        {"limits": [LIMIT], "which": [0, 1, 2]},
        {"ages_ns": [1, 2, 3]},
        {"op": Op.RESET, "slot_ids": [1, 2, 3]},
        {"op": Op.RENEW},
    ],
    ids=str,
)
def test_invalid_columns_of_a_request_cannot_be_written(changes):
    with pytest.raises(BadMessage, match="Request"):
        write_request(with_columns(request(3), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 0},
        {"results": Results(Outcomes(*([0] * 3 for _ in range(7))), [0])},
        {"results": Results(Outcomes(*([0] * 3 for _ in range(7))), [0, 8, 0])},
        {"rows": [0, 2, 1]},
    ],
    ids=str,
)
def test_an_invalid_answer_cannot_be_written(changes):
    with pytest.raises(BadMessage, match="Answer"):
        write_answer(replace(answer(3), **changes))


def test_an_answer_without_rows_cannot_be_written():
    with pytest.raises(BadMessage, match=r"Answer\.count"):
        write_answer(Answer(7, VIEW, 3, Results(Outcomes(), [])))


@given(message=requests())
def test_peek_request_returns_the_sequence_number_and_the_row_count(message):
    payload = packb(write_request(message))

    assert peek_request(payload) == (message.seq, len(message.batch))
    assert peek_request(payload[:64]) == (message.seq, len(message.batch))


@given(message=answers())
def test_peek_request_returns_none_for_an_answer(message):
    assert peek_request(packb(write_answer(message))) is None


@given(payload=st.binary(max_size=80))
def test_peek_request_never_raises(payload):
    for each in (payload, b"\x9f\x04" + payload):
        peeked = peek_request(each)
        assert peeked is None or (peeked[0] >= 1 and 1 <= peeked[1] <= MAX_KEYS)


def start_of_request(length: int, kind: object, seq: object, rows: int) -> bytes:
    """Return the fields of an encoded request up to the number of its keys."""
    packer = Packer()
    fields = (kind, seq, 0, VIEW, 250, 0, False)
    return b"".join(
        [packer.pack_array_header(length), *map(packb, fields), packer.pack_array_header(rows)]
    )


@pytest.mark.parametrize(
    ("length", "kind", "seq", "rows", "peeked"),
    [
        (15, 4, 1, 1, (1, 1)),
        (15, 4, MAX_U64, 4096, (MAX_U64, 4096)),
        (14, 4, 1, 1, None),
        (16, 4, 1, 1, None),
        (15, 3, 1, 1, None),
        (15, 5, 1, 1, None),
        (15, 4, 0, 1, None),
        (15, 4, -1, 1, None),
        (15, 4, True, 1, None),
        (15, 4, 1.0, 1, None),
        (15, 4, b"1", 1, None),
        (15, 4, 1, 0, None),
        (15, 4, 1, 4097, None),
    ],
)
def test_peek_request_checks_type_number_field_count_sequence_number_and_row_count(
    length: int, kind: object, seq: object, rows: int, peeked: tuple[int, int] | None
) -> None:
    assert peek_request(start_of_request(length, kind, seq, rows)) == peeked


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", [MIN_KEY, MAX_KEY])
def test_keys_have_8_to_128_bytes(count: int, size: int) -> None:
    message = with_columns(request(count), keys=[bytes(size)] * count)
    assert read_request(unpackb(packb(write_request(message)))) == message

    wrong = size - 1 if size == MIN_KEY else size + 1
    for keys in ([bytes(wrong)] * count, [*[bytes(size)] * (count - 1), bytes(wrong)]):
        with pytest.raises(BadMessage, match=r"Request\.keys"):
            write_request(with_columns(message, keys=keys))


@pytest.mark.parametrize("count", [1, 2])
def test_the_columns_of_an_answer_have_greatest_values(count: int) -> None:
    greatest = (6, MAX_U64, MAX_U64, LONGEST_NS, LONGEST_NS, LONGEST_NS, MAX_U64, 7)
    rows = [[value] * count for value in greatest]
    message = Answer(7, VIEW, 3, Results(Outcomes(*rows[:7]), rows[7]))
    assert read_answer(unpackb(packb(write_answer(message)))) == message

    for column in (0, 7):
        for value in (-1, greatest[column] + 1):
            rows = [[0] * count for _ in greatest]
            rows[column] = [value] * count
            with pytest.raises(BadMessage, match="Answer"):
                write_answer(Answer(7, VIEW, 3, Results(Outcomes(*rows[:7]), rows[7])))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("column", [3, 4, 5])
def test_a_longer_duration_is_written_as_the_longest(count: int, column: int) -> None:
    rows = [[1] * count for _ in range(8)]
    rows[column] = [LONGEST_NS + 1] * count

    decoded = read_answer(write_answer(Answer(7, VIEW, 3, Results(Outcomes(*rows[:7]), rows[7]))))

    outcomes = decoded.results.outcomes
    durations = outcomes.retry_after_ns, outcomes.reset_after_ns, outcomes.delay_ns
    assert durations[column - 3] == [LONGEST_NS] * count
    assert durations[column - 4] == [1] * count


@pytest.mark.parametrize("value", [-1, True, 1.0, None, b"", b"\1\1\1"])
@pytest.mark.parametrize("column", range(8))
def test_an_answer_with_one_row_has_a_natural_number_in_each_column(
    column: int, value: object
) -> None:
    fields = write_answer(answer())
    fields[5 + column] = value

    with pytest.raises(BadMessage, match="Answer"):
        read_answer(fields)


@pytest.mark.parametrize(("column", "most"), [(0, 6), (7, 7)])
@pytest.mark.parametrize("others", [0, 9])
def test_an_answer_with_one_row_has_a_known_code_and_source(
    column: int, most: int, others: int
) -> None:
    fields = write_answer(answer())
    fields[6:12] = [others] * 6
    for value in (0, most):
        fields[5 + column] = value
        results = read_answer(fields).results
        assert (results.outcomes.codes, results.sources)[column // 7] == [value]

    fields[5 + column] = most + 1
    with pytest.raises(BadMessage, match="Answer"):
        read_answer(fields)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize(("index", "permitted"), [(12, [Op.REFUND]), (13, [0, 1, 4])])
def test_a_column_is_read_only_with_the_operations_that_use_it(
    op: Op, index: int, permitted: list[int]
) -> None:
    fields = write_request(request())
    fields[2], fields[index] = int(op), 5
    if op is Op.RENEW:
        fields[13] = 5

    if op in permitted:
        assert read_request(fields).batch.op is op
    else:
        with pytest.raises(BadMessage, match=r"Request\.(ages_ns|slot_ids)"):
            read_request(fields)


@pytest.mark.parametrize("column", range(8))
@pytest.mark.parametrize("length", [0, 2])
def test_an_answer_with_one_row_has_one_value_in_each_column(column: int, length: int) -> None:
    rows = [[1] for _ in range(8)]
    rows[column] = [1] * length

    with pytest.raises(BadMessage, match="Answer"):
        write_answer(Answer(7, VIEW, 3, Results(Outcomes(*rows[:7]), rows[7])))


def test_the_rows_of_an_answer_are_rows_of_a_request() -> None:
    fields = write_answer(answer())
    for row in (0, 4095):
        fields[13] = row
        assert read_answer(fields).rows == [row]
        assert write_answer(replace(answer(), rows=[row]))[13] == row

    fields[13] = 4096
    with pytest.raises(BadMessage, match=r"Answer\.rows"):
        read_answer(fields)
    with pytest.raises(BadMessage, match=r"Answer\.rows"):
        write_answer(replace(answer(), rows=[4096]))
