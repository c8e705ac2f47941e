import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import packb

from ringfence.errors import LocalProtocolError, RemoteProtocolError
from ringfence.limiter import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.wire.bounds import MAX_CREDENTIAL, MAX_DEPTH, MAX_REASON, MAX_TEXT, MAX_U64
from ringfence.wire.codecs.message_codec import VERSION, PackedRules, decode, encode
from ringfence.wire.errors import BadMessage, ErrorCode, WrongVersion
from ringfence.wire.framing import MAX_MESSAGE
from ringfence.wire.messages.cluster_messages import (
    AskMembers,
    AskRules,
    AskStats,
    MemberRow,
    Members,
    Rules,
    Stats,
)
from ringfence.wire.messages.lease_messages import (
    DenialRevoked,
    LeaseGrant,
    LeaseRecall,
    LeaseRequest,
    SlotsFree,
    SubscribeDenials,
)
from ringfence.wire.messages.request_columns import Batch, Op, Results
from ringfence.wire.messages.request_messages import Answer, Request
from ringfence.wire.messages.session_messages import (
    Goodbye,
    Hello,
    Ping,
    Pong,
    Refused,
    Role,
    Welcome,
)

u64 = st.integers(0, 100) | st.integers(0, MAX_U64)
seqs = st.integers(1, MAX_U64)
texts = st.text(max_size=12)
keys = st.lists(st.binary(min_size=8, max_size=12), min_size=1, max_size=5)
rows = st.builds(
    MemberRow,
    name=texts,
    host=texts,
    port=st.integers(0, 65_535),
    datacenter=texts,
    zone=texts,
    weight=st.floats(0.25, 4),
    state=st.sampled_from(["joining", "alive", "suspect", "forwarding", "leaving", "dead", "left"]),
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), MAX_U64)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
messages = st.one_of(
    st.builds(Hello, st.sampled_from(Role), texts, st.binary(max_size=MAX_CREDENTIAL), u64),
    st.builds(Welcome, texts, u64, u64),
    st.builds(Refused, u64, st.sampled_from(ErrorCode).filter(bool).map(int), texts),
    st.builds(
        lambda seq, view, keys: Request(
            seq, view, 250, 0, False, Batch(Op.CHECK, keys, [1] * len(keys))
        ),
        seqs,
        u64,
        keys,
    ),
    st.builds(
        lambda seq, view, values: Answer(
            seq, view, 3, Results(Outcomes(*(list(values) for _ in range(7))), list(values))
        ),
        seqs,
        u64,
        st.lists(st.integers(0, 4), min_size=1, max_size=5),
    ),
    *(st.builds(kind, seqs) for kind in (AskMembers, AskRules, AskStats, Ping, Pong)),
    st.builds(
        lambda seq, view, rows: Members(seq, view, sorted(rows, key=lambda row: row.name)),
        seqs,
        u64,
        st.lists(rows, max_size=4, unique_by=lambda row: row.name),
    ),
    st.builds(Rules, seqs, u64, plain),
    st.builds(Stats, seqs, st.dictionaries(texts, u64, max_size=5)),
    st.builds(Goodbye, texts),
    st.builds(SubscribeDenials, seqs),
    st.builds(SlotsFree, st.lists(seqs, min_size=1, max_size=3)),
    st.builds(LeaseRecall, st.lists(st.binary(min_size=8, max_size=12), max_size=3)),
    st.builds(
        lambda seq, key, pairs: LeaseRequest(
            seq, key, 5, [a for a, _ in pairs], [b for _, b in pairs]
        ),
        seqs,
        st.binary(min_size=8, max_size=12),
        st.lists(st.tuples(seqs, st.integers(0, 2**53)), max_size=3),
    ),
    st.builds(LeaseGrant, seqs, seqs, st.integers(1, 2**53), u64, u64, u64, u64),
    st.builds(DenialRevoked, st.lists(st.binary(min_size=8, max_size=12), max_size=3)),
)


@given(message=messages)
def test_decoding_an_encoded_message_returns_an_equal_message(message):
    assert decode(encode(message)) == message


@given(data=st.binary(max_size=300))
def test_random_bytes_are_decoded_or_rejected(data):
    assert_decodes_or_rejects(data)


@given(
    fields=st.lists(
        plain | st.integers(0, 15).map(lambda value: [value] * 7), min_size=1, max_size=15
    ),
    number=st.integers(0, 43),
)
def test_any_fields_after_a_known_type_number_are_decoded_or_rejected(fields, number):
    assert_decodes_or_rejects(packb([number, *fields]))


@settings(max_examples=300)
@given(
    message=messages,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.none() | st.integers(0, 400),
    tail=st.binary(max_size=2),
)
def test_a_damaged_message_is_decoded_or_rejected(message, changes, cut, tail):
    data = bytearray(encode(message))
    for place, value in changes:
        data[place % len(data)] = value

    assert_decodes_or_rejects(bytes(data[:cut]) + tail)


@given(message=messages, tail=st.binary(min_size=1, max_size=5))
def test_bytes_after_a_message_are_rejected(message, tail):
    assert_refused(encode(message) + tail, "garbled")


@given(message=messages, data=st.data())
def test_a_truncated_message_is_rejected(message, data):
    payload = encode(message)
    cut = data.draw(st.integers(0, len(payload) - 1))

    with pytest.raises(BadMessage):
        decode(payload[:cut])


@pytest.mark.parametrize(
    "header", [b"\xdd\xff\xff\xff\xff", b"\xdd\0\x10\0\0", b"\xdf\xff\xff\xff\xff", b"\xc6" * 5]
)
@pytest.mark.parametrize("repeats", [1, 500, 100_000])
def test_huge_declared_lengths_are_refused(header, repeats):
    assert_refused(header * repeats, "garbled")


@pytest.mark.parametrize("depth", [100, 500, 1_000, 500_000])
def test_deeply_nested_messages_are_refused(depth):
    with pytest.raises(BadMessage):
        decode(b"\x94\x09\x01\x01" + b"\x91" * depth + b"\xc0")


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"name": inner}])
def test_rules_may_nest_up_to_the_maximum_depth(wrap):
    nested = None
    for _ in range(MAX_DEPTH):
        nested = wrap(nested)

    assert decode(encode(Rules(1, 1, nested))) == Rules(1, 1, nested)
    assert_refused(packb([9, 1, 1, wrap(nested)]), "bad_field")


def test_an_empty_message_is_rejected():
    assert_refused(b"", "empty")


def test_a_message_has_at_most_a_mebibyte():
    head = len(encode(Rules(1, 1, "r" * (1 << 17)))) - (1 << 17)
    largest = Rules(1, 1, "r" * ((1 << 20) - head))

    assert len(encode(largest)) == 1 << 20
    assert decode(encode(largest)) == largest
    with pytest.raises(LocalProtocolError):
        encode(Rules(1, 1, "r" * ((1 << 20) - head + 1)))


def test_an_oversized_message_is_rejected():
    assert_refused(bytes(MAX_MESSAGE + 1), "oversized")


@pytest.mark.parametrize("value", [None, 12, "hello", {}, {"seq": 1}, [], [[1]], b"\x92\x0c\x01"])
def test_a_message_must_be_an_array_that_begins_with_a_type_number(value):
    with pytest.raises(BadMessage):
        decode(packb(value))


@pytest.mark.parametrize("number", [0, 40, -1, 2**64 - 1, True, None, "Ping", 12.0])
def test_unknown_type_numbers_are_refused(number):
    assert_refused(packb([number, 1]), "unknown_type")


@pytest.mark.parametrize("fields", [[12], [12, 1, None], [6, 1, 1], [3, 1, 1], [4, 1], [1, 1, 0]])
def test_the_wrong_number_of_fields_is_refused(fields):
    assert_refused(packb(fields), "bad_shape")


def test_maps_with_a_duplicate_key_are_rejected():
    assert_refused(b"\x93\x0b\x01\x82\xa1a\x01\xa1a\x02", "garbled")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([1, VERSION, 2, "n1", b"", 1], "Hello.role"),
        ([1, VERSION, 0, b"n1", b"", 1], "Hello.name"),
        ([1, VERSION, 0, "n" * (MAX_TEXT + 1), b"", 1], "Hello.name"),
        ([1, VERSION, 0, "n1", "", 1], "Hello.credential"),
        ([1, VERSION, 0, "n1", bytes(MAX_CREDENTIAL + 1), 1], "Hello.credential"),
        ([1, VERSION, 0, "n1", b"", -1], "Hello.session"),
        ([1, True, 0, "n1", b"", 1], "the protocol's version"),
        ([1], "the protocol's version"),
        ([2, VERSION, "n1", 1, 1.0], "Welcome.rules"),
        ([3, 0, 0, ""], "Refused.code"),
        ([3, 0, 1, "r" * (MAX_REASON + 1)], "Refused.reason"),
        ([7, 1, 1, {}], "Members.members"),
        ([7, 1, 1, [["n1"]]], "Members.members"),
        ([7, 1, 1, [["n1", "h", 70_000, "", "", 1.0, "alive"]]], "Members.port"),
        ([7, 1, 1, [["n1", "h", 1, "", "", 1, "alive"]]], "Members.weight"),
        ([7, 1, 1, [["n1", "h", 1, "", "", float("nan"), "alive"]]], "Members.weight"),
        ([7, 1, 1, [["n1", "h", 1, "", "", 1.0, "up"]]], "Members.state"),
        ([7, 1, 1, [["n1", "h", 1, "", "", 1.0, []]]], "Members.state"),
        ([7, 1, 1, [["n1", "h", 1, "", "", 1.0, "alive"]] * 2], "Members.members"),
        ([9, 1, 1, {b"key": 1}], "Rules.plain"),
        ([11, 1, []], "Stats.counters"),
        ([11, 1, {"checks": -1}], "Stats.counters"),
        ([12, 0], "Ping.seq"),
        ([14, None], "Goodbye.reason"),
    ],
)
def test_an_invalid_field_is_rejected_with_its_name(fields, field):
    with pytest.raises(BadMessage, match=field) as caught:
        decode(packb(fields))

    assert caught.value.cause == "bad_field"
    assert caught.value.code == ErrorCode.BAD_MESSAGE


def test_extension_types_are_refused():
    assert_refused(b"\x94\x09\x01\x01\xd6\xff\0\0\0\0", "bad_field")
    assert_refused(b"\x94\x09\x01\x01\xd4\x05\0", "bad_field")


@pytest.mark.parametrize("fields", [[1, 2], [2, 2, "n1"], [1, 2, 0, "n1", b"", 1, "new field"]])
def test_another_version_is_distinguished_from_a_bad_message(fields):
    with pytest.raises(WrongVersion) as caught:
        decode(packb(fields))

    assert (caught.value.ours, caught.value.theirs) == (VERSION, 2)
    assert (caught.value.code, caught.value.cause) == (ErrorCode.WRONG_VERSION, "wrong_version")
    assert "must be 1, got 2" in str(caught.value)
    assert isinstance(caught.value, RemoteProtocolError)


def test_reasons_are_cut_to_the_maximum_length():
    assert decode(encode(Goodbye("r" * 600))) == Goodbye("r" * MAX_REASON)
    assert decode(encode(Refused(1, 8, "r" * 600))) == Refused(1, 8, "r" * MAX_REASON)


@pytest.mark.parametrize(
    "message",
    [
        Ping(0),
        Ping(MAX_U64 + 1),
        Hello(Role.NODE, "n" * 300, b"", 1),
        Hello(Role.NODE, "\ud800", b"", 1),
        Members(1, 1, [MemberRow("n1", "h", 1, "", "", 5.0, "alive")]),
        Rules(1, 1, "r" * MAX_MESSAGE),
        Rules(1, 1, [0] * 40_000),
        Request(1, 1, 250, 0, False, Batch(Op.CHECK, [], [])),
        Request(1, 1, 250, 0, False, Batch(Op.CHECK, [bytes(1024)] * 2000, [1] * 2000)),
        Answer(1, 1, 1, Results(Outcomes(), [])),
    ],
    ids=lambda message: type(message).__name__,
)
def test_encoding_an_invalid_message_raises_local_protocol_error(message):
    with pytest.raises(LocalProtocolError, match="cannot send"):
        encode(message)


def assert_decodes_or_rejects(data: bytes) -> None:
    """Check that data is rejected or decoded to a message that can be encoded again."""
    try:
        message = decode(data)
    except BadMessage as error:
        assert error.reason  # noqa: PT017 - rejection is a valid outcome
    else:
        assert isinstance(encode(message), bytes)


def assert_refused(data: bytes, cause: str) -> None:
    with pytest.raises(BadMessage) as caught:
        decode(data)
    assert caught.value.cause == cause


@given(seq=st.integers(1, 2**64 - 1), version=st.integers(0, 2**64 - 1))
def test_packed_rules_are_encoded_like_a_rules_message(seq, version):
    plain = {"domains": [["log", None, b"\x00", 1.5]], "more": [True, -1]}

    assert PackedRules(version, plain).to(seq) == encode(Rules(seq, version, plain))


def test_rules_too_large_for_a_message_cannot_be_packed():
    with pytest.raises(LocalProtocolError, match="cannot send"):
        PackedRules(1, ["x" * 200] * 10_000)


def test_a_message_with_a_map_is_rejected_when_maps_are_not_allowed():
    payload = encode(Stats(1, {"checks": 1}))

    assert decode(payload).counters == {"checks": 1}
    with pytest.raises(BadMessage, match="must not contain maps") as caught:
        decode(payload, maps=False)
    assert caught.value.cause == "bad_shape"


def test_an_oversized_hello_cannot_be_encoded_and_decode_applies_its_limit():
    with pytest.raises(LocalProtocolError, match="at most 1024 bytes, got"):
        encode(Hello(Role.CLIENT, "\U0001f600" * 255, bytes(MAX_CREDENTIAL), 2**64 - 1))
    with pytest.raises(BadMessage, match="at most 10 bytes, got"):
        decode(encode(Goodbye("I must be going")), limit=10)


def test_a_message_with_more_arrays_than_allowed_is_rejected():
    limits = [Limit.of_ns(amount, 10**9) for amount in range(1, 501)]
    request = Request(
        1, 1, 250, 0, False, Batch(Op.CHECK, [b"k" * 8] * 500, [1] * 500, [], limits, [1] * 500)
    )
    payload = encode(request)

    assert decode(payload, arrays=503) == request
    with pytest.raises(BadMessage, match="at most 502 arrays"):
        decode(payload, arrays=502)
