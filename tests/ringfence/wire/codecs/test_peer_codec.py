import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import packb

from hashring import SHARDS
from ringfence.errors import LocalProtocolError
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from ringfence.limiter.outcome import Code
from ringfence.wire.bounds import (
    MAX_COST,
    MAX_KEY,
    MAX_KEYS,
    MAX_MOVED,
    MAX_NUMBERS,
    MAX_ORIGINS,
    MAX_PACKED,
    MAX_PARTS,
    MAX_TEXT,
    MAX_U64,
    MAX_WRITERS,
)
from ringfence.wire.codecs.message_codec import decode, encode
from ringfence.wire.errors import BadMessage, Cause
from ringfence.wire.framing import MAX_MESSAGE
from ringfence.wire.messages.peer_messages import (
    Copy,
    Digest,
    Done,
    Exchange,
    Holding,
    Peers,
    Pull,
    Pulled,
    ReplicaRequest,
    ShardGroup,
    TransferAck,
    TransferOffer,
    WindowCounts,
)
from ringfence.wire.messages.request_columns import Source
from tests.ringfence.wire.codecs.peer_message_strategies import (
    messages,
    texts,
    u64,
)

KEY = b"8 bytes."
LIMIT = Limit.of_ns(100, 60_000_000_000)
WIRE_LIMIT = [100, 60_000_000_000]
ROW = bytes((0, len(KEY), *KEY, 2, 0, 1, 2))
PACKED = [ROW, 1, [WIRE_LIMIT], []]
TWO_PACKED = [ROW + bytes((len(KEY), 0, 0)), 2, [WIRE_LIMIT], []]
GROUP = [[1], [1], 2, 1, "", "", "", 0, False, [], []]


def packed(keys, states, remote_counts=()):
    limits = [LIMIT] if keys else []
    return PackedSnapshot.of(Snapshot(keys, states, limits, [0] * len(keys), [*remote_counts]))


@settings(max_examples=300)
@given(message=messages)
def test_decoding_an_encoded_message_returns_an_equal_message(message):
    assert decode(encode(message)) == message


@settings(max_examples=300)
@given(
    message=messages,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.none() | st.integers(0, 400),
)
def test_a_damaged_message_is_decoded_or_rejected(message, changes, cut):
    data = bytearray(encode(message))
    for place, value in changes:
        data[place % len(data)] = value

    assert_decodes_or_rejects(bytes(data[:cut]))


@given(
    number=st.integers(15, 30),
    fields=st.lists(
        st.recursive(
            st.none() | st.booleans() | u64 | st.floats() | texts | st.binary(max_size=12),
            lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=3),
            max_leaves=15,
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_fields_after_a_known_type_number_are_decoded_or_rejected(number, fields):
    assert_decodes_or_rejects(packb([number, *fields]))


@pytest.mark.parametrize("number", range(15, 31))
def test_missing_and_additional_fields_are_rejected(number):
    for fields in ([number], [number, 1, 2, 3, 4, 5, 6]):
        with pytest.raises(BadMessage) as caught:
            decode(packb(fields))
        assert caught.value.cause is Cause.BAD_SHAPE


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([15, 0, b""], "Exchange.seq"),
        ([15, 1, "text"], "Exchange.packed"),
        ([15, 1, bytes(MAX_PACKED + 1)], "Exchange.packed"),
        ([16, 0, b""], "Exchanged.seq"),
        ([16, 1, bytes(MAX_PACKED + 1)], "Exchanged.packed"),
        ([17, 0, [1], 0, 0, False], "Pull.seq"),
        ([17, 1, [], 0, 0, False], "Pull.shards"),
        ([17, 1, 7, 0, 0, False], "Pull.shards"),
        ([17, 1, [2, 1], 0, 0, False], "Pull.shards"),
        ([17, 1, [1, 1], 0, 0, False], "Pull.shards"),
        ([17, 1, [SHARDS], 0, 0, False], "Pull.shards"),
        ([17, 1, [-1], 0, 0, False], "Pull.shards"),
        ([17, 1, [True], 0, 0, False], "Pull.shards"),
        ([17, 1, [1.0], 0, 0, False], "Pull.shards"),
        ([17, 1, [*range(SHARDS), 0], 0, 0, False], "Pull.shards"),
        ([17, 1, [1], MAX_PARTS, 0, False], "Pull.part"),
        ([17, 1, [1], -1, 0, False], "Pull.part"),
        ([17, 1, [1], 1, -1, False], "Pull.transfer_id"),
        ([17, 1, [1], 1, "1", False], "Pull.transfer_id"),
        ([17, 1, [1], 0, 0, 3], "Pull.replicas"),
        ([19, 0, PACKED, [], []], "Copy.seq"),
        ([19, 1, PACKED, [[-1]], []], "Copy.origins"),
        ([19, 1, PACKED, [[1] * (MAX_ORIGINS + 1)], []], "Copy.origins"),
        ([19, 1, TWO_PACKED, [[1], [2]], [0, 2]], "Copy.which_origins"),
        ([19, 1, TWO_PACKED, [[1], [2]], [0]], "Copy.which_origins"),
        ([19, 1, PACKED, [[1]], [0]], "Copy.which_origins"),
        ([19, 1, PACKED, [], [0]], "Copy.which_origins"),
        ([20, 0, [1]], "TransferOffer.seq"),
        ([20, 1, []], "TransferOffer.shards"),
        ([20, 1, [1, 1]], "TransferOffer.shards"),
        ([22, 0, "eu", [], []], "Digest.seq"),
        ([22, 1, "e" * (MAX_TEXT + 1), [], []], "Digest.writer"),
        ([22, 1, "eu", [2, 1], [0, 0]], "Digest.shards"),
        ([22, 1, "eu", [1], []], "Digest.sums"),
        ([22, 1, "eu", [1], [-1]], "Digest.sums"),
        ([22, 1, "eu", [1], [None]], "Digest.sums"),
        ([23, 0, []], "DigestMismatch.seq"),
        ([23, 1, [3, 2]], "DigestMismatch.shards"),
        ([29, 0, [1]], "RecoverCounts.seq"),
        ([29, 1, []], "RecoverCounts.shards"),
        ([30, 0, [], [], []], "RecoverCountsReply.seq"),
        ([30, 1, [2, 1], [], []], "RecoverCountsReply.shards"),
        ([30, 1, [1], [b"short"], [[]]], "RecoverCountsReply.keys"),
        ([30, 1, [1], [], [[1, 2]]], "RecoverCountsReply.cells"),
        ([30, 1, [1], [b"12345678"], [[1]]], "RecoverCountsReply.cells"),
        ([24, 0], "AskPeers.seq"),
        ([25, 0, []], "Peers.seq"),
        ([25, 1, {b"key": 2}], "Peers.plain"),
        ([26, 0], "AskLeave.seq"),
        ([27, 0], "Done.seq"),
        ([28, 0, [1], 5], "TransferAck.seq"),
        ([28, 1, [], 5], "TransferAck.shards"),
        ([28, 1, [SHARDS], 5], "TransferAck.shards"),
        ([28, 1, [1], -1], "TransferAck.transfer_id"),
        ([28, 1, [1], None], "TransferAck.transfer_id"),
    ],
)
def test_an_invalid_field_is_rejected_with_its_name(fields, field):
    assert_refused(fields, field)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (None, ""),
        (PACKED[:3], ""),
        ([*PACKED, []], ""),
        (["rows", *PACKED[1:]], ".rows"),
        ([ROW[:-1], *PACKED[1:]], ".rows"),
        ([ROW + b"\0", *PACKED[1:]], ".rows"),
        ([ROW, 0, [], []], ".rows"),
        ([ROW, 2, *PACKED[2:]], ".rows"),
        ([ROW, True, *PACKED[2:]], ".count"),
        ([ROW, MAX_MOVED + 1, *PACKED[2:]], ".count"),
        ([bytes((1, 7, *KEY[1:], 0)), *PACKED[1:]], ".rows"),
        ([bytes((0, 7, *KEY[1:], 0)), *PACKED[1:]], ".rows"),
        ([bytes((0, MAX_KEY + 1)) + bytes(MAX_KEY + 2), *PACKED[1:]], ".rows"),
        ([bytes((0, 8, *KEY, 1, 1, 0)), *PACKED[1:]], ".rows"),
        ([bytes((0, 8, *KEY, 1, 0, *[255] * 9, 2)), *PACKED[1:]], ".rows"),
        ([bytes((0, 8, *KEY, 1, 0, *[128] * 10, 0)), *PACKED[1:]], ".rows"),
        ([ROW, 1, [], []], ".rows"),
        ([ROW, 1, [None], []], ".limits"),
        ([ROW, 1, [WIRE_LIMIT] * 2, []], ".limits"),
        ([bytes((0, 8, *KEY, 0x81, 0x80, 1)) + bytes(16_386), *PACKED[1:]], ".rows"),
        ([ROW, 1, [[100]], []], ".limits"),
        ([ROW, 1, [[100, 0]], []], ".limits"),
        ([*PACKED[:3], None], ".remote_counts"),
        ([*PACKED[:3], [{}, {}]], ".remote_counts"),
        ([*PACKED[:3], [[]]], ".remote_counts"),
        ([*PACKED[:3], [{"eu": [1]}]], ".remote_counts"),
        ([*PACKED[:3], [{"eu": [1, -2]}]], ".remote_counts"),
        ([*PACKED[:3], [{b"eu": [1, 2]}]], ".remote_counts"),
        ([*PACKED[:3], [{str(n): [] for n in range(MAX_WRITERS + 1)}]], ".remote_counts"),
    ],
)
def test_malformed_packed_rows_are_rejected(wrong, field):
    assert_refused([18, 1, [GROUP], wrong, [], []], f"Pulled.counts{field}")
    assert_refused([19, 1, wrong, [], []], f"Copy.counts{field}")


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ({}, "Pulled.groups"),
        ([GROUP[:10]], "Pulled.groups"),
        ([[[], [], 2, 1, "", "", "", 0, False, [], []]], "Pulled.shards"),
        ([[[2, 1], [1, 0], 2, 1, "", "", "", 0, False, [], []]], "Pulled.shards"),
        ([[[1], [1, 0], 2, 1, "", "", "", 0, False, [], []]], "Pulled.sizes"),
        ([[[1], [MAX_MOVED + 1], 2, 1, "", "", "", 0, False, [], []]], "Pulled.sizes"),
        ([[[1], [1], 3, 1, "", "", "", 0, False, [], []]], "Pulled.hold"),
        ([[[1], [1], 2, 0, "", "", "", 0, False, [], []]], "Pulled.parts"),
        ([[[1], [1], 2, MAX_PARTS + 1, "", "", "", 0, False, [], []]], "Pulled.parts"),
        ([[[1], [1], 2, 1, None, "", "", 0, False, [], []]], "Pulled.moved_to"),
        ([[[1], [1], 2, 1, "", None, "", 0, False, [], []]], "Pulled.replica_at"),
        ([[[1], [1], 2, 1, "", "", "n" * (MAX_TEXT + 1), 0, False, [], []]], "Pulled.taken_from"),
        ([[[1], [1], 2, 1, "", "", "", -1, False, [], []]], "Pulled.transfer_id"),
        ([[[1], [1], 2, 1, "", "", "", 0, 1, [], []]], "Pulled.is_from_before"),
        ([[[1], [1], 2, 1, "", "", "", 0, False, [-1], []]], "Pulled.origins"),
        ([[[1], [1], 2, 1, "", "", "", 0, False, [1] * (MAX_ORIGINS + 1), []]], "Pulled.origins"),
        ([[[1], [1], 2, 1, "", "", "", 0, False, [], [-1]]], "Pulled.marks"),
        ([[[1], [1], 2, 1, "", "", "", 0, False, [], [1] * (MAX_ORIGINS + 1)]], "Pulled.marks"),
        ([[[1], [2], 2, 1, "", "", "", 0, False, [], []]], "Pulled.groups"),
        ([], "Pulled.groups"),
        ([GROUP, [[1], [0], 0, 1, "", "", "", 0, False, [], []]], "Pulled.groups"),
    ],
)
def test_groups_that_do_not_match_their_keys_are_rejected(groups, field):
    assert_refused([18, 1, groups, PACKED, [], []], field)


@pytest.mark.parametrize(
    "fallback_counts", [None, [[]] * 2, [[1]], [[1, -1]], [[1, True]], [b"\x01\x02"]]
)
def test_fallback_counts_are_pairs_for_every_key_or_missing(fallback_counts):
    assert_refused([18, 1, [GROUP], PACKED, fallback_counts, []], "Pulled.fallback_counts")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([0, "eu", [KEY], [[1, 2]]], "WindowCounts.seq"),
        ([1, None, [KEY], [[1, 2]]], "WindowCounts.writer"),
        ([1, "eu", [b"short"], [[1, 2]]], "WindowCounts.keys"),
        ([1, "eu", [KEY] * (MAX_MOVED + 1), [[]] * (MAX_MOVED + 1)], "WindowCounts.keys"),
        ([1, "eu", [KEY], []], "WindowCounts.cells"),
        ([1, "eu", [KEY], [[1]]], "WindowCounts.cells"),
        ([1, "eu", [KEY], [[1, -1]]], "WindowCounts.cells"),
        ([1, "eu", [KEY], [{}]], "WindowCounts.cells"),
    ],
)
def test_cells_that_do_not_match_their_keys_are_rejected(fields, field):
    assert_refused([21, *fields], field)


@pytest.mark.parametrize(
    "message",
    [
        Exchange(1, bytes(MAX_PACKED + 1)),
        Pull(1, [], 0),
        TransferOffer(1, [2, 1]),
        TransferAck(1, [SHARDS], 1),
        Copy(1, PackedSnapshot(ROW[1:], 1, [LIMIT], [])),
        Copy(1, PackedSnapshot(ROW, 2, [LIMIT], [])),
        Copy(1, PackedSnapshot(ROW, 1, [], [])),
        Copy(0, PackedSnapshot(b"", 0, [], [])),
        Copy(1, PackedSnapshot(ROW, 1, [LIMIT], []), [(1,)], [0]),
        Pulled(1, [], packed([bytes(MAX_KEY)] * 8193, [[]] * 8193), []),
        Pulled(1, [], packed([KEY], [[1]]), []),
        Pulled(1, [ShardGroup([1], [0], Holding.HELD, 0, "", "", "", 0)], packed([], []), []),
        WindowCounts(1, "eu", [KEY], [[1, 2, 3]]),
        WindowCounts(1, "eu", [KEY], [[1, MAX_U64 + 1]]),
        Digest(1, "eu", [1], []),
        Peers(1, [[0] * 40_000]),
        Done(0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_encoding_an_invalid_message_raises_local_protocol_error(message):
    with pytest.raises(LocalProtocolError, match="cannot send"):
        encode(message)


def test_the_largest_valid_messages_can_be_encoded_and_decoded():
    """Check that `decode` accepts what `encode` accepts, also at the bounds."""
    keys = [b"%08d" % number for number in range(MAX_MOVED)]
    states = [[MAX_U64] * 2] * MAX_MOVED
    full = packed(keys, states, [{"us": [1, 2]}] * MAX_MOVED)

    for message in (
        Copy(1, full, [(MAX_U64,) * MAX_ORIGINS, ()], [1] * MAX_MOVED),
        WindowCounts(1, "eu", keys, [[1, MAX_U64]] * MAX_MOVED),
        Pulled(
            1, [ShardGroup([0], [MAX_MOVED], Holding.COPY, MAX_PARTS, "n", "", "m", 1)], full, []
        ),
        Copy(1, packed([bytes(MAX_KEY)], [[0] * MAX_NUMBERS])),
        Pull(1, list(range(SHARDS)), MAX_PARTS - 1, MAX_U64, replicas=ReplicaRequest.ONLY),
        Digest(1, "eu", list(range(SHARDS)), [MAX_U64] * SHARDS),
        Exchange(1, bytes(MAX_PACKED)),
    ):
        payload = encode(message)
        assert len(payload) <= MAX_MESSAGE
        assert decode(payload) == message


def assert_decodes_or_rejects(data: bytes) -> None:
    """Check that data is rejected or decoded to a message that can be encoded again."""
    try:
        message = decode(data)
    except BadMessage as error:
        assert error.reason  # noqa: PT017 - rejection is a valid outcome
    else:
        assert decode(encode(message)) == message


def assert_refused(fields: list[object], field: str) -> None:
    with pytest.raises(BadMessage) as caught:
        decode(packb(fields))
    assert caught.value.cause is Cause.BAD_FIELD
    assert caught.value.reason.startswith(f"{field} must be")


@pytest.mark.parametrize(
    "check",
    [
        None,
        [1, 2, 0, KEY, 1, 0],
        [1, 2, MAX_KEYS, KEY, 1, 0, [0] * 8],
        [1, 2, 0, KEY, MAX_COST + 1, 0, [0] * 8],
        [1, 2, 0, KEY, 1, 0, [0] * 7],
        [1, 2, 0, KEY, 1, 0, [len(Code), *[0] * 7]],
        [1, 2, 0, KEY, 1, 0, [*[0] * 7, len(Source)]],
    ],
)
def test_invalid_decided_checks_are_rejected(check):
    assert_refused([18, 1, [GROUP], PACKED, [], [check]], "Pulled.decided")


def test_a_decided_check_with_a_short_key_is_rejected():
    check = [1, 2, 0, b"short", 1, 0, [0] * 8]

    with pytest.raises(BadMessage, match=r"Pulled\.decided"):
        decode(packb([18, 1, [GROUP], PACKED, [], [check]]))


@pytest.mark.parametrize(
    ("cost", "code", "limit", "kind"),
    [
        (1, Code.UNCHARGED, 0, "refund"),
        (MAX_COST, Code.UNCHARGED, 0, "refund"),
        (0, Code.UNCHARGED, 0, "check"),
        (1, Code.UNCHARGED, 1, "check"),
        (0, Code.NEVER, 0, "reset"),
        (1, Code.NEVER, 0, "check"),
        (0, Code.NEVER, 1, "check"),
        (1, Code.UNKNOWN_RULE, 0, "check"),
        (1, Code.ALLOWED, 0, "check"),
        (1, Code.OVERDRAWN, 9, "check"),
    ],
)
def test_a_decided_check_that_cannot_be_one_is_a_refund_or_a_reset(
    cost: int, code: Code, limit: int, kind: str
) -> None:
    numbers = [int(code), limit, 3, 4, 5, 6, 7, len(Source) - 1]
    fields = [18, 1, [GROUP], PACKED, [], [[1, 2, 3, KEY, cost, 9, numbers]]]

    message = decode(packb(fields))

    [check] = message.decided
    assert (check.id, check.key, check.cost, check.age_ns) == ((1, 2, 3), KEY, cost, 9)
    assert (check.is_refund, check.is_reset) == (kind == "refund", kind == "reset")
    _, limit, remaining, retry_ns, *others = numbers
    retry_ns, replica_age_ns = (0, retry_ns) if kind == "reset" else (retry_ns, 0)
    expected = code if kind == "check" else Code.ALLOWED
    assert check.row == (expected, limit, remaining, retry_ns, *others)
    assert check.replica_age_ns == replica_age_ns
    assert decode(encode(message)) == message
