import pytest

from tests.programs import require_compiled

require_compiled()

from ringfence.limiter.compiled._store import siphash_of  # noqa: E402 - only where it was built

KEY = bytes(range(16))
PUBLISHED = bytes.fromhex("""
    310e0edd47db6f72 fd67dc93c539f874 5a4fa9d909806c0d 2d7efbd796666785
    b7877127e09427cf 8da699cd64557618 cee3fe586e46c9cb 37d1018bf50002ab
    6224939a79f5f593 b0e4a90bdf82009e f3b9dd94c5bb5d7a a7ad6b22462fb3f4
    fbe50e86bc8f1e75 903d84c02756ea14 eef27a8e90ca23f7 e545be4961ca29a1
""")
"""Test vectors of Aumasson and Bernstein: hashes of the empty text, of 00, of 00 01 and so on."""


@pytest.mark.parametrize("size", range(16))
def test_the_hash_is_siphash_2_4_as_published(size: int) -> None:
    expected = PUBLISHED[8 * size : 8 * size + 8]

    assert siphash_of(KEY, KEY[:size]) == int.from_bytes(expected, "little")


def test_another_key_gives_another_hash() -> None:
    assert siphash_of(KEY[::-1], b"text") != siphash_of(KEY, b"text")


def test_a_key_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        siphash_of(b"short", b"text")
