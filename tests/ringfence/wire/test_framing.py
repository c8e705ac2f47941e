from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import LocalProtocolError
from ringfence.wire.errors import BadMessage
from ringfence.wire.framing import MAX_MESSAGE, Framer, frame

payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=20)


@given(payloads=payloads, cuts=st.lists(st.integers(0, 900), max_size=30))
def test_messages_are_complete_and_in_order_for_any_split_of_the_stream(payloads, cuts):
    stream = b"".join(map(frame, payloads))
    ends = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    framer = Framer()

    found = [message for start, end in pairwise(ends) for message in framer.feed(stream[start:end])]

    assert found == payloads


@given(payloads=payloads)
def test_a_stream_fed_byte_by_byte_gives_the_same_messages(payloads):
    framer = Framer()

    found = []
    for byte in b"".join(map(frame, payloads)):
        found += framer.feed(bytes([byte]))

    assert found == payloads


def test_the_largest_message_arrives_in_packets():
    payload = bytes(range(256)) * (MAX_MESSAGE // 256)
    stream = frame(payload) + frame(b"next")
    framer = Framer()

    found = []
    for start in range(0, len(stream), 1200):
        found += framer.feed(stream[start : start + 1200])

    assert found == [payload, b"next"]


def test_an_empty_message_is_rejected():
    with pytest.raises(BadMessage) as caught:
        Framer().feed(bytes(4))

    assert caught.value.cause == "empty"


@pytest.mark.parametrize("length", [MAX_MESSAGE + 1, 2**32 - 1])
def test_an_oversized_message_is_refused_as_soon_as_its_length_is_known(length):
    framer = Framer()
    prefix = length.to_bytes(4, "big")

    assert framer.feed(prefix[:3]) == []
    with pytest.raises(BadMessage) as caught:
        framer.feed(prefix[3:])

    assert caught.value.cause == "oversized"
    assert str(length) in caught.value.reason


def test_a_framer_returns_no_messages_after_an_error():
    framer = Framer()
    with pytest.raises(BadMessage):
        framer.feed(bytes(4))

    with pytest.raises(BadMessage) as caught:
        framer.feed(frame(b"good"))

    assert caught.value.cause == "empty"


@pytest.mark.parametrize("size", [0, MAX_MESSAGE + 1])
def test_a_message_that_a_framer_rejects_cannot_be_framed(size):
    with pytest.raises(LocalProtocolError):
        frame(bytes(size))


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_any_bytes_give_messages_or_raise_bad_message(data, cut):
    framer = Framer()

    try:
        found = framer.feed(data[:cut]) + framer.feed(data[cut:])
    except BadMessage as error:
        assert error.cause in {"empty", "oversized"}  # noqa: PT017 - rejection is a valid outcome
    else:
        assert data.startswith(b"".join(map(frame, found)))


def test_under_a_low_limit_feed_returns_one_message_at_a_time():
    framer = Framer(limit=5)

    assert framer.feed(frame(b"hello") + frame(b"much longer") + frame(b"next")) == [b"hello"]
    framer.limit = MAX_MESSAGE
    assert framer.feed(b"") == [b"much longer", b"next"]


def test_a_message_above_a_low_limit_is_rejected_by_its_length_prefix():
    framer = Framer(limit=5)

    with pytest.raises(BadMessage, match="at most 5 bytes, got 6"):
        framer.feed(frame(b"longer")[:4])
