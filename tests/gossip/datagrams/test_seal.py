"""Sealed datagrams: only holders of the cluster's key can send them, and no replay is accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.datagrams.codec import MAX_MESSAGE
from gossip.datagrams.seal import MAX_DATAGRAM, Rejected, Seal

KEY, NEW = b"k" * 32, b"n" * 32


def cause_of(seal: Seal, datagram: bytes) -> str:
    with pytest.raises(Rejected) as caught:
        seal.open(datagram)
    return caught.value.cause


def test_a_sealed_datagram_can_be_opened_by_another_member() -> None:
    sender, receiver = Seal([KEY], "c", 1), Seal([KEY], "c", 2)

    assert [receiver.open(sender.seal(b)) for b in (b"", b"one", b"x" * MAX_MESSAGE)] == [
        b"",
        b"one",
        b"x" * MAX_MESSAGE,
    ]


def test_the_largest_message_fits_into_a_datagram_and_is_no_quic_packet() -> None:
    datagram = Seal([KEY], "c", 1).seal(b"x" * MAX_MESSAGE)

    assert len(datagram) <= MAX_DATAGRAM
    assert not datagram[0] & 0x40


def test_the_bytes_of_datagrams_are_the_same_in_every_release() -> None:
    """During an upgrade, members of two releases exchange datagrams."""
    sender = Seal([b"k" * 70], "c", 258)

    assert [sender.seal(b"hello").hex() for _ in range(2)] == [
        "01c422229e00000000000001020000000000000001d1387d03bac3a16a38bf217a22cf53f67b0a2d75f3",
        "01c422229e00000000000001020000000000000002485d67d3e935c23983704a7d5f0a8eb912fb329d3a",
    ]


def test_a_bit_that_is_flipped_anywhere_is_noticed_and_changes_nothing() -> None:
    datagram = Seal([KEY], "c", 1).seal(b"hello")
    receiver = Seal([KEY], "c", 2)

    for place in range(len(datagram)):
        broken = bytearray(datagram)
        broken[place] ^= 1
        assert cause_of(receiver, bytes(broken)) in ("wrong_version", "unknown_key", "forged")
    assert receiver.open(datagram) == b"hello"


def test_a_datagram_cut_anywhere_is_refused() -> None:
    datagram = Seal([KEY], "c", 1).seal(b"hello")
    receiver = Seal([KEY], "c", 2)

    assert {cause_of(receiver, datagram[:end]) for end in range(len(datagram))} == {
        "truncated",
        "forged",
    }


def test_a_datagram_has_at_most_1178_bytes() -> None:
    """QUIC needs a path for datagrams of 1200 bytes, so these pass wherever QUIC works."""
    sender, receiver = Seal([KEY], "c", 1), Seal([KEY], "c", 2)
    largest, larger = sender.seal(bytes(1178 - 37)), sender.seal(bytes(1178 - 36))

    assert (len(largest), len(larger)) == (1178, 1179)
    assert receiver.open(largest) == bytes(1178 - 37)
    assert cause_of(receiver, larger) == "oversized"


def test_datagrams_of_another_key_or_cluster_are_rejected() -> None:
    datagram = Seal([KEY], "ours", 1).seal(b"hello")

    assert cause_of(Seal([NEW], "ours", 2), datagram) == "unknown_key"
    assert cause_of(Seal([KEY], "theirs", 2), datagram) == "unknown_key"


@given(st.permutations(range(12)))
def test_each_datagram_is_accepted_once_in_any_order(order: list[int]) -> None:
    sender, receiver = Seal([KEY], "c", 1), Seal([KEY], "c", 2)
    sent = [sender.seal(bytes([number])) for number in range(12)]

    assert [receiver.open(sent[number]) for number in order] == [bytes([n]) for n in order]
    assert {cause_of(receiver, datagram) for datagram in sent} == {"replayed"}


def test_a_datagram_overtaken_by_a_thousand_others_is_rejected() -> None:
    sender, receiver = Seal([KEY], "c", 1), Seal([KEY], "c", 2)
    sealed = [sender.seal(b"") for _ in range(1100)]
    for datagram in sealed[50:]:
        receiver.open(datagram)

    assert {cause_of(receiver, datagram) for datagram in sealed[:50]} == {"replayed"}


@pytest.mark.parametrize("version", [0, 2, 255])
def test_datagrams_of_another_version_are_rejected(version: int) -> None:
    datagram = Seal([KEY], "c", 1).seal(b"hello")

    changed = bytes([version]) + datagram[1:]

    assert cause_of(Seal([KEY], "c", 2), changed) == "wrong_version"


@pytest.mark.parametrize("is_remembered", [True, False])
def test_the_datagrams_of_the_last_4096_senders_are_remembered(*, is_remembered: bool) -> None:
    first, receiver = Seal([KEY], "c", 1), Seal([KEY], "c", 2)
    old, newer = first.seal(b"old"), first.seal(b"newer")
    receiver.open(old)
    for sender in range(3, 3 + 4096):
        receiver.open(Seal([KEY], "c", sender).seal(b""))
        if is_remembered and sender == 4000:
            receiver.open(newer)

    if is_remembered:
        assert cause_of(receiver, old) == "replayed"
    else:
        assert receiver.open(old) == b"old"


def test_a_datagram_is_accepted_after_at_most_1023_later_ones() -> None:
    sender, receiver = Seal([KEY], "c", 1), Seal([KEY], "c", 2)
    too_late, late, *others = [sender.seal(b"") for _ in range(1025)]
    for datagram in others:
        receiver.open(datagram)

    assert receiver.open(late) == b""
    assert cause_of(receiver, late) == "replayed"
    assert cause_of(receiver, too_late) == "replayed"


def test_a_key_change_in_three_steps_loses_no_datagram() -> None:
    one, two = Seal([KEY], "c", 1), Seal([KEY], "c", 2)
    for keys in ([KEY, NEW], [NEW, KEY], [NEW]):
        for changing, other in ((one, two), (two, one)):
            changing.change_keys(keys)
            assert other.open(changing.seal(b"x")) == b"x"
            assert changing.open(other.seal(b"y")) == b"y"

    assert cause_of(one, Seal([KEY], "c", 3).seal(b"")) == "unknown_key"


def test_a_seal_has_one_key_or_two() -> None:
    with pytest.raises(ValueError, match="got 0"):
        Seal([], "c", 1)
    with pytest.raises(ValueError, match="got 3"):
        Seal([KEY, NEW, b"z" * 32], "c", 1)


@given(st.binary(max_size=1300))
def test_random_bytes_raise_no_other_error_than_rejected(datagram: bytes) -> None:
    with pytest.raises(Rejected):
        Seal([KEY], "c", 2).open(datagram)
