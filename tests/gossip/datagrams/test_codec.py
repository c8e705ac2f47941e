from contextlib import suppress

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gossip import (
    MAX_MESSAGE,
    Ack,
    BadDatagram,
    Gossip,
    Nack,
    Ping,
    PingReq,
    Record,
    Status,
    decode,
    encode,
    pack_records,
    unpack_records,
)
from gossip.datagrams.codec import record_size, room_for_updates

u64 = st.integers(0, (1 << 64) - 1)
names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20
)
records = st.builds(
    Record,
    name=names,
    host=names,
    port=st.integers(0, 65_535),
    datacenter=names,
    zone=st.just("") | names,
    weight=st.floats(0.25, 4.0),
    generation=u64,
    incarnation=st.integers(0, (1 << 32) - 1),
    status=st.sampled_from(Status),
    forward_only=st.booleans(),
    version=st.just("") | names,
    accuser=st.just("") | names,
)
updates = st.lists(records, max_size=2).map(tuple)
messages = st.one_of(
    st.builds(Ping, names, u64, u64, names, u64, updates),
    st.builds(Ack, names, u64, u64, u64, u64, u64, updates),
    st.builds(PingReq, names, u64, u64, names, st.tuples(names, st.integers(0, 65_535)), updates),
    st.builds(Nack, names, u64, u64, updates),
    st.builds(Gossip, names, u64, updates),
)


@given(messages)
def test_a_message_is_read_as_it_was_written(message):
    assert decode(encode(message)) == message


RECORD = Record("a", "h", 7600, "dc1", "z", 1.5, 3, 2, Status.SUSPECT, True, "1.2", "b")
RECORD_BYTES = "9ca161a168cd1db0a3646331a17acb3ff8000000000000030203c3a3312e32a162"


@pytest.mark.parametrize(
    ("message", "hexadecimal"),
    [
        (Ping("s", 1, 2, "t", 3, (RECORD,)), "929601a1730102a17403" + RECORD_BYTES),
        (Ack("s", 1, 2, 3, 4, 5), "919702a1730102030405"),
        (PingReq("s", 1, 2, "t", ("h", 6)), "919703a1730102a174a16806"),
        (Nack("s", 1, 2), "919404a1730102"),
        (Gossip("s", 1, (RECORD,)), "929305a17301" + RECORD_BYTES),
    ],
)
def test_the_bytes_of_a_message_are_the_same_in_every_release(message, hexadecimal):
    """During an upgrade, members of two releases exchange messages."""
    assert encode(message) == bytes.fromhex(hexadecimal)
    assert decode(bytes.fromhex(hexadecimal)) == message
    with pytest.raises(AttributeError):
        message.sender = "other"


def test_the_numbers_of_states_are_the_same_in_every_release():
    assert {status.name: status.value for status in Status} == {
        "JOINING": 0,
        "ALIVE": 1,
        "LEAVING": 2,
        "SUSPECT": 3,
        "DEAD": 4,
        "LEFT": 5,
    }


def test_records_without_a_member_take_one_byte():
    assert pack_records([]) == b"\x90"
    assert pack_records([RECORD]) == bytes.fromhex("91" + RECORD_BYTES)


@given(st.lists(records, max_size=20))
def test_records_are_read_as_they_were_packed(listed):
    assert unpack_records(pack_records(listed)) == listed


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x90")
@example(b"\x91")
@example(b"\x91\x90")
@example(b"\x91\x91\x90")
@example(b"\x91" * 5000)
@example(b"\xc1")
@example(b"\xdd\xff\xff\xff\xff")
def test_random_bytes_are_decoded_or_refused(data):
    for read in (decode, unpack_records):
        with suppress(BadDatagram):
            read(data)


@given(messages, st.integers(1, 255))
def test_a_message_with_a_flipped_byte_is_another_message_or_refused(message, flip):
    raw = encode(message)
    fields = msgpack.unpackb(raw)

    for place in range(len(raw)):
        for bits in {flip, *(1 << bit for bit in range(8))}:
            flipped = bytearray(raw)
            flipped[place] ^= bits
            with suppress(BadDatagram):
                # msgpack has several encodings of one number, which give the same message.
                assert decode(bytes(flipped)) != message or msgpack.unpackb(flipped) == fields


@given(messages, st.data())
def test_a_message_cut_short_is_refused(message, data):
    raw = encode(message)
    place = data.draw(st.integers(0, len(raw) - 1))

    for cut in (raw[:place], raw + raw[:1]):
        with pytest.raises(BadDatagram):
            decode(cut)


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_list_cut_short_is_refused(listed, data):
    raw = pack_records(listed)

    with pytest.raises(BadDatagram):
        unpack_records(raw[: data.draw(st.integers(0, len(raw) - 1))])


@pytest.mark.parametrize("size", [127, 128, 255, 256, 1000])
def test_lists_of_any_size_are_read_as_they_were_written(record, size):
    """cortex#4326: messages were malformed from 127 members on."""
    listed = [record(f"node-{number}") for number in range(size)]

    assert unpack_records(pack_records(listed)) == listed


def test_a_list_above_64_kib_is_read_as_it_was_written(record):
    """memberlist#260: the length of lists above 64 KiB was cut to two bytes."""
    listed = [record(f"{number:0200}", zone="z" * 200) for number in range(300)]
    raw = pack_records(listed)

    assert len(raw) > 1 << 16
    assert unpack_records(raw) == listed


@pytest.mark.parametrize("size", [1, 31, 32, 127, 128, 255])
def test_names_of_any_length_are_read_as_they_were_written(record, size):
    """cortex#4326, for the lengths at which the msgpack encoding of text changes."""
    message = Gossip("s" * size, 1, (record("n" * size, host="h"),))

    assert decode(encode(message)) == message


def test_more_records_than_a_cluster_can_have_are_refused(record):
    listed = [record(f"n{number}") for number in range(4097)]

    with pytest.raises(BadDatagram) as refusal:
        unpack_records(pack_records(listed))

    assert refusal.value.cause == "oversized"


def test_a_datagram_above_the_limit_is_neither_written_nor_read(record):
    crowded_datagram = tuple(record(f"node-{number:040}") for number in range(20))

    with pytest.raises(ValueError, match="at most"):
        encode(Gossip("a", 1, crowded_datagram))
    with pytest.raises(BadDatagram):
        decode(b"\x90" * (MAX_MESSAGE + 1))


def test_a_message_has_at_most_1130_bytes(record):
    updates = record("n" * 255, host="h" * 255, zone="z" * 100), record("b", zone="z" * 200)

    def message(length):
        return Gossip("s" * length, 1, updates)

    longest = 100 + 1130 - len(encode(message(100)))
    raw = encode(message(longest))
    assert len(raw) == 1130
    assert decode(raw) == message(longest)
    with pytest.raises(ValueError, match="at most 1130 bytes, got 1131"):
        encode(message(longest + 1))
    assert refusal_of(decode, raw + b"\x00") == "oversized"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, ""),
        (0, "x" * 256),
        (0, "line\nbreak"),
        (0, 7),
        (2, 65_536),
        (2, True),
        (3, ""),
        (5, float("nan")),
        (5, 0.1),
        (5, 1),
        (6, -1),
        (7, 1 << 32),
        (8, 6),
        (9, 1),
    ],
)
def test_a_record_with_a_bad_field_is_refused(record, place, value):
    (fields,) = msgpack.unpackb(pack_records([record("a")]))
    fields[place] = value

    with pytest.raises(BadDatagram):
        unpack_records(msgpack.packb([fields]))


def refusal_of(read, data):
    with pytest.raises(BadDatagram) as refusal:
        read(data)
    return refusal.value.cause


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        ([], "malformed"),
        (None, "malformed"),
        ({}, "malformed"),
        ([0, "s", 1], "unknown_message"),
        ([6, "s", 1], "unknown_message"),
        ([True, "s", 1, 2, "t", 3], "unknown_message"),
        (["1", "s", 1, 2, "t", 3], "unknown_message"),
        ([1.0, "s", 1, 2, "t", 3], "unknown_message"),
        ([1, "s", 1, 2, "t"], "unknown_message"),
        ([1, "s", 1, 2, "t", 3, 4], "unknown_message"),
        ([2, "s", 1, 2, 3, 4], "unknown_message"),
        ([5, 7, 1], "bad_field"),
        ([5, "s", -1], "bad_field"),
        ([5, "s", 1.0], "bad_field"),
        ([1, "s", 1, "2", "t", 3], "bad_field"),
        ([1, "s", 1, 2, b"t", 3], "bad_field"),
        ([1, "s", 1, 2, "t", None], "bad_field"),
        ([2, "s", 1, 2, 3, 4, -5], "bad_field"),
        ([3, "s", 1, 2, "t", "h", 65_536], "bad_field"),
        ([3, "s", 1, 2, "t", 7, 1], "bad_field"),
        ([4, "s", 1, True], "bad_field"),
        ([5, "s" * 256, 1], "bad_field"),
    ],
)
def test_a_message_with_an_invalid_header_is_refused(head, cause):
    assert refusal_of(decode, msgpack.packb([head])) == cause


def test_the_largest_numbers_and_texts_are_accepted(record):
    most = (1 << 64) - 1
    messages = [
        PingReq("s" * 255, most, most, "t" * 255, ("h" * 255, 65_535)),
        Ack("s", most, most, most, most, most),
        Gossip("s", 1, (record(port=65_535, generation=most, incarnation=(1 << 32) - 1),)),
        Gossip("s", 1, (record(weight=0.25), record("b", weight=4.0))),
    ]

    assert [decode(encode(message)) for message in messages] == messages


@pytest.mark.parametrize("weight", [0.2499, 4.0001, float("inf"), -1.0])
def test_a_weight_outside_its_range_is_refused(record, weight):
    assert refusal_of(unpack_records, pack_records([record(weight=weight)])) == "bad_field"


@pytest.mark.parametrize(("size", "is_read"), [(700, True), (701, False)])
def test_a_record_has_at_most_700_bytes(record, size, is_read):
    def of(length):
        return record("n" * 255, host="h" * 255, zone="z" * length)

    fitting = next(each for each in map(of, range(256)) if record_size(each) == size)
    raw = pack_records([fitting])

    if is_read:
        assert unpack_records(raw) == [fitting]
    else:
        assert refusal_of(unpack_records, raw) == "oversized"


def test_a_list_has_at_most_4096_records(record):
    listed = [record(f"n{number}") for number in range(4096)]

    assert len(unpack_records(pack_records(listed))) == 4096


def test_updates_get_the_bytes_that_the_header_of_a_message_leaves():
    """The length of a list of updates takes up to three bytes, and one for an empty list."""
    for message in (Ping("s", 1, 2, "t", 3), Nack("s" * 255, 1, 2), Gossip("s", 1)):
        assert room_for_updates(message) == MAX_MESSAGE - len(encode(message)) - 2
