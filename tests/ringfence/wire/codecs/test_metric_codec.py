"""Encoding and validation of decision reports and of lists of denied keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from ringfence.errors import LocalProtocolError
from ringfence.limiter import Code
from ringfence.wire import (
    MAX_REPORT_DECISIONS,
    MAX_REPORT_KEYS,
    MAX_REPORT_NAMED,
    MAX_THROTTLED,
    MAX_U64,
    AskThrottled,
    BadMessage,
    Report,
    Source,
    Throttled,
    decode,
    encode,
)

KEY, RULE = b"ruleidnt\x011", b"ruleidnt"
DENIED, CACHE = Code.DENIED.value, Source.CACHE.value
rows = st.lists(
    st.tuples(
        st.binary(min_size=9, max_size=128),
        st.sampled_from(Code).map(int),
        st.sampled_from([2, 3, 5, 6, 7]),
        st.integers(1, 1000),
    ),
    min_size=1,
    max_size=6,
)


@given(rows=rows, named=st.integers(0, 6), seq=st.integers(1, MAX_U64), client=st.integers(0, 9))
def test_a_decoded_report_equals_the_encoded_report(
    rows: list[tuple[bytes, int, int, int]], named: int, seq: int, client: int
) -> None:
    named = min(named, len(rows))
    keys = [key if index < named else key[:8] for index, (key, *_) in enumerate(rows)]
    columns = [list(column) for column in zip(*[row[1:] for row in rows], strict=True)]
    report = Report(seq, client, 7, named, keys, *columns)

    assert decode(encode(report)) == report


@given(
    rows=st.lists(st.tuples(st.binary(min_size=8, max_size=128), *[st.integers(0, 99)] * 2)),
    names=st.lists(st.text(max_size=9), max_size=4),
)
def test_a_decoded_list_of_denied_keys_equals_the_encoded_list(
    rows: list[tuple[bytes, int, int]], names: list[str]
) -> None:
    keys, counts, errors = ([row[index] for row in rows] for index in range(3))
    listed = Throttled(1, 5, keys, counts, errors, names, [1, 2, 3] * len(names), 90)

    assert decode(encode(listed)) == listed
    assert decode(encode(AskThrottled(1, 20))) == AskThrottled(1, 20)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([41, 1, 1, 0, 0, [RULE], [2], [5], [1]], "Report.number"),
        ([41, 1, 1, 1, 2, [RULE], [2], [5], [1]], "Report.named"),
        ([41, 1, 1, 1, 0, [], [], [], []], "Report.keys"),
        ([41, 1, 1, 1, 0, [KEY], [2], [5], [1]], "Report.keys"),
        ([41, 1, 1, 1, 1, [b"short"], [2], [5], [1]], "Report.keys"),
        ([41, 1, 1, 1, 0, [RULE], [99], [5], [1]], "Report.codes"),
        ([41, 1, 1, 1, 0, [RULE], [2], [0], [1]], "Report.sources"),
        ([41, 1, 1, 1, 0, [RULE], [2], [1], [1]], "Report.sources"),
        ([41, 1, 1, 1, 0, [RULE], [2], [4], [1]], "Report.sources"),
        ([41, 1, 1, 1, 0, [RULE], [2], [5], [0]], "Report.counts"),
        ([41, 1, 1, 1, 0, [RULE], [2], [5], [1, 1]], "Report.counts"),
        ([41, 1, 1, 1, 0, [RULE] * 2, [2] * 2, [5] * 2, [1 << 24, 1]], "Report.counts"),
        ([41, 1, 1, 1, 0, [RULE] * (MAX_REPORT_KEYS + 1), [], [], []], "Report.keys"),
        ([42, 1, 0], "AskThrottled.count"),
        ([42, 1, MAX_THROTTLED + 1], "AskThrottled.count"),
        ([43, 1, 1, [KEY], [1], [], [], [], 9], "Throttled.errors"),
        ([43, 1, 1, [], [], [], ["api"], [1, 2], 9], "Throttled.results"),
        ([43, 1, 1, [], [], [], ["api"], [1, 2, -1], 9], "Throttled.results"),
        ([43, 1, 1, [KEY], [-1], [0], [], [], 9], "Throttled.counts"),
        ([43, 0, 1, [], [], [], [], [], 9], "Throttled.seq"),
        ([43, 1, -1, [], [], [], [], [], 9], "Throttled.denied"),
        ([43, 1, 1, [], [], [], [], [], -1], "Throttled.counting_s"),
        ([42, 0, 1], "AskThrottled.seq"),
        ([43, 1, 1, [KEY] * (MAX_THROTTLED + 1), [], [], [], [], 9], "Throttled.keys"),
    ],
)
def test_a_value_out_of_bounds_is_rejected_with_the_name_of_its_field(
    fields: list[object], field: str
) -> None:
    with pytest.raises(BadMessage, match=field):
        decode(packb(fields))


def test_the_largest_report_takes_less_than_128_kib() -> None:
    keys = [RULE + b"\x77" * 120] * MAX_REPORT_NAMED
    keys += [RULE] * (MAX_REPORT_KEYS - MAX_REPORT_NAMED)
    decisions_per_key = MAX_REPORT_DECISIONS // MAX_REPORT_KEYS
    columns = [[value] * MAX_REPORT_KEYS for value in (DENIED, CACHE, decisions_per_key)]
    payload = encode(Report(MAX_U64, MAX_U64, MAX_U64, MAX_REPORT_NAMED, keys, *columns))

    assert len(payload) < 128 * 1024
    with pytest.raises(LocalProtocolError):
        encode(Report(1, 1, 1, MAX_REPORT_NAMED + 1, keys[:1] * 200, *[[1] * 200] * 3))
