"""Checks that a node received directly, kept until clients no longer repeat them."""

from unittest.mock import patch
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from hashring import shard_of
from node.requests.deduplication import DirectChecks

KEY, OTHER = b"\0" * 7 + b"\1ann", b"\0" * 7 + b"\1bob"
requests = st.tuples(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 20),
    st.sampled_from(["list", "index some", "drop the index"]),
)


def test_each_check_is_listed_at_the_shard_of_its_key() -> None:
    checks = DirectChecks()
    checks.add(1, 5, [KEY, OTHER, KEY], [2, 3, 4], None, 0, 9)
    checks.add(2, 7, [OTHER], [1], [300], 0, 9)

    assert checks.of_shard(shard_of(KEY), 0) == [((1, 5), 0, KEY, 2), ((1, 5), 2, KEY, 4)]
    assert checks.of_shard(shard_of(OTHER), 0) == [((1, 5), 1, OTHER, 3), ((2, 7), 300, OTHER, 1)]


def test_checks_added_after_a_listing_of_their_shard_are_listed() -> None:
    checks = DirectChecks()
    checks.add(1, 5, [KEY], [1], None, 0, 9)
    checks.of_shard(shard_of(KEY), 0)
    checks.add(1, 6, [KEY], [1], None, 0, 9)

    assert [request for request, *_ in checks.of_shard(shard_of(KEY), 0)] == [(1, 5), (1, 6)]


def test_requests_are_indexed_in_slices_of_rows() -> None:
    checks = DirectChecks()
    for seq in range(5):
        checks.add(1, seq, [KEY, OTHER], [1, 1], None, 0, 9)

    assert [checks.index(4) for _ in range(4)] == [False, False, True, True]
    checks.add(1, 5, [KEY], [1], None, 0, 9)
    assert checks.index(1)
    assert len(checks.of_shard(shard_of(KEY), 0)) == 6


class Keys(list[bytes]):
    """List of which a test can see that it was freed."""


@patch("node.requests.deduplication._MAX_DIRECT_ROWS", 8)
@patch("node.requests.deduplication._MAX_INDEXED_ROWS", 16)
def test_the_index_frees_dropped_requests() -> None:
    checks = DirectChecks()
    keys = Keys([KEY])
    first = ref(keys)
    checks.add(1, 0, keys, [1], None, 0, 9)
    del keys
    for seq in range(1, 18):
        assert first() is not None
        checks.add(1, seq, [KEY], [1], None, 0, 9)
        checks.of_shard(shard_of(KEY), 0)

    assert first() is None


@given(st.lists(requests, max_size=30))
def test_rows_are_bounded_and_the_oldest_are_dropped_first(
    asked: list[tuple[int, int, int, str]],
) -> None:
    most, now = 8, 0
    checks = DirectChecks()
    kept: list[tuple[int, int, int]] = []
    with (
        patch("node.requests.deduplication._MAX_DIRECT_ROWS", most),
        patch("node.requests.deduplication._MAX_INDEXED_ROWS", 2 * most),
    ):
        for seq, (rows, pause, repeated_for, step) in enumerate(asked, 1):
            now += pause
            checks.add(1, seq, [KEY] * rows, [1] * rows, None, now, now + repeated_for)
            kept.append((seq, rows, now + repeated_for))
            while sum(rows for _, rows, _ in kept) > most or kept[0][2] < now:
                del kept[0]
            match step:
                case "index some":
                    checks.index(3)
                    continue
                case "drop the index":
                    checks.drop_index()
                    continue

            listed = [request[1] for request, *_ in checks.of_shard(shard_of(KEY), now)]
            assert listed == [seq for seq, rows, until in kept if until >= now for _ in range(rows)]
            assert len(checks) == sum(rows for _, rows, _ in kept) <= most
