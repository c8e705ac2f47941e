"""A short run of the fuzz targets of a node's QUIC port, with the same bytes every time."""

from random import Random

from tests.fuzz import frames_before_hello, packets_after_handshake


def test_frames_of_strangers_raise_nothing_and_let_nobody_in_without_a_credential() -> None:
    random = Random(1)

    frames = sum(frames_before_hello.run(random.randbytes(400)) for _ in range(1500))

    assert frames > 1500


def test_the_fast_path_accepts_and_rejects_the_packets_that_aioquic_does() -> None:
    random = Random(1)

    packets = sum(packets_after_handshake.run(random.randbytes(1000)) for _ in range(40))

    assert packets > 200
