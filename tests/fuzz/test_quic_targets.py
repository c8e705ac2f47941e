"""Short runs of the fuzz targets of a node's QUIC port, with the same bytes in every run."""

from random import Random

from tests.fuzz import frames_before_hello, packets_after_handshake


def test_frames_before_the_hello_raise_no_error_and_only_a_valid_credential_is_accepted() -> None:
    random = Random(1)

    frames = sum(frames_before_hello.run(random.randbytes(400)) for _ in range(1500))

    assert frames > 1500


def test_the_fast_path_accepts_and_rejects_the_same_packets_as_aioquic() -> None:
    random = Random(1)

    packets = sum(packets_after_handshake.run(random.randbytes(1000)) for _ in range(40))

    assert packets > 200
