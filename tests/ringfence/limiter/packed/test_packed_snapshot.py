"""Packed rows of counters: they are read as packed, and compiled code agrees with Python."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.limiter import (
    Algorithm,
    Engine,
    EngineRule,
    Limit,
    PackedSnapshot,
    Snapshot,
    compiled_tables,
    why_not_compiled,
)
from ringfence.limiter.packed.packed_snapshot import (
    _check_rows,
    _pack_rows,
    _unpack_rows,
    check_rows,
    pack_rows,
    rows_in,
    unpack_rows,
)

S = 10**9
Pack = Callable[[list[tuple[bytes, int, list[int]]]], bytes]
NOW = 1_700_000_000 * S
LIMITS = [
    Limit.of_ns(10, 60 * S),
    Limit.of_ns(7, 86_400 * S, algorithm=Algorithm.FIXED_WINDOW),
    Limit.of_ns(9, 60 * S, algorithm=Algorithm.SLIDING_WINDOW),
    Limit.of_ns(5, 60 * S, algorithm=Algorithm.SLIDING_WINDOW_LOG),
    Limit.of_ns(3, 60 * S, algorithm=Algorithm.CONCURRENCY),
]

compiled_only = pytest.mark.skipif(why_not_compiled() is not None, reason=str(why_not_compiled()))
u64 = st.integers(0, 300) | st.integers(0, 2**64 - 1)
states = st.lists(u64, max_size=5)
keys = st.binary(max_size=12) | st.binary(max_size=4).map(lambda end: bytes(8) + end)
rows = st.lists(st.tuples(keys, st.integers(0, 2), states), max_size=8)


@given(rows)
def test_packed_rows_are_read_back(rows: list[tuple[bytes, int, list[int]]]) -> None:
    read = list(rows_in(pack_rows(rows)))

    assert read == [(key, which if state else 0, state) for key, which, state in rows]


def test_a_snapshot_is_unpacked_as_it_was() -> None:
    counts = Snapshot([b"one-key-", b"one-more"], [[1, 2], [3]], LIMITS, [1, 0], [{}, {"eu": [1]}])

    assert PackedSnapshot.of(counts).unpack() == counts


def test_a_change_of_unpacked_columns_does_not_change_the_snapshot() -> None:
    packed = PackedSnapshot.of(Snapshot([b"one-key-"], [[1]], LIMITS[:1], [0], [{"eu": [1]}]))

    columns = packed.unpack()
    columns.limits.append(LIMITS[1])
    columns.remote_counts.append({})

    assert (packed.limits, packed.remote_counts) == (LIMITS[:1], [{"eu": [1]}])


def test_an_unused_key_is_unpacked_with_a_limit_of_no_units() -> None:
    counts = PackedSnapshot(pack_rows([(b"one-key-", 0, []), (b"one-more", 0, [3])]), 2, LIMITS, [])

    unpacked = counts.unpack()

    assert unpacked.states == [[], [3]]
    assert [unpacked.limits[which].amount for which in unpacked.which] == [0, LIMITS[0].amount]
    assert PackedSnapshot(pack_rows([(b"one-key-", 0, [])]), 1, [], []).unpack().which == [0]


def snapshot_of(*rows: tuple[bytes, Limit, dict[str, list[int]]]) -> Snapshot:
    """Return a snapshot whose limits are in the order of their first use."""
    limits = [*dict.fromkeys(limit for _, limit, _ in rows)]
    which = [limits.index(limit) for _, limit, _ in rows]
    remote = [each for _, _, each in rows]
    return Snapshot([key for key, _, _ in rows], [[1, 2]] * len(rows), limits, which, remote)


named_rows = st.lists(
    st.tuples(keys, st.sampled_from(LIMITS), st.sampled_from([{}, {}, {"eu": [1, 2]}])), max_size=4
)


@given(st.lists(named_rows, max_size=4))
def test_joined_rows_have_the_limits_of_all_parts(
    parts: list[list[tuple[bytes, Limit, dict[str, list[int]]]]],
) -> None:
    joined = PackedSnapshot.joined([PackedSnapshot.of(snapshot_of(*part)) for part in parts])

    assert joined == PackedSnapshot.joined([joined])
    expected = PackedSnapshot.of(snapshot_of(*[row for part in parts for row in part])).unpack()
    assert joined.unpack() == expected
    assert joined.count == len(expected.keys)


@pytest.mark.parametrize("pack", [pack_rows, _pack_rows])
def test_keys_share_their_first_bytes_with_the_key_before(pack: Pack) -> None:
    packed = pack([(b"12345678ann", 0, []), (b"12345678anton", 0, []), (b"12345", 0, [])])

    assert packed == b"\x00\x0b12345678ann\x00" + b"\x0a\x03ton\x00" + b"\x05\x00\x00"
    assert pack([(b"12abcd", 0, []), (b"12345", 0, [])])[-6:] == b"\x02\x03345\x00"
    assert pack([(b"1234abcd", 0, []), (b"123456789a", 0, [])])[-9:] == b"\x04\x0656789a\x00"
    assert pack([(b"12345", 0, []), (b"123456789a", 0, [])])[-8:] == b"\x05\x056789a\x00"


def test_numbers_are_packed_in_groups_of_seven_bits_the_lowest_first() -> None:
    numbers = [0, 127, 128, 300, 2**64 - 1]
    packed = pack_rows([(b"k", 1, numbers)])

    assert packed == b"\x00\x01k\x05\x01" + b"\x00\x7f\x80\x01\xac\x02" + b"\xff" * 9 + b"\x01"
    assert list(rows_in(packed)) == [(b"k", 1, numbers)]


def test_a_key_has_at_most_255_bytes() -> None:
    rows = [(b"a" * 255, 0, [1]), (b"a" * 254 + b"b", 0, [2])]

    assert list(rows_in(pack_rows(rows))) == rows


@pytest.mark.parametrize(
    "packed",
    [
        b"\x00",
        b"\x00\x02k",
        b"\x01\x01k\x00",  # It shares a byte with a key that does not exist.
        b"\x00\x01k",
        b"\x00\x01k\x01\x00\x80",
        b"\x00\x01k\x01\x00" + b"\xff" * 9 + b"\x02",  # The number is 2**64 or more.
        b"\x00\x01k\x01\x00" + b"\x80" * 10 + b"\x00",
        b"\x00\xff" + b"k" * 255 + b"\x00" + b"\xff\x01k\x00",  # A key of 256 bytes.
    ],
)
def test_bytes_that_are_no_rows_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="row"):
        list(rows_in(packed))


@pytest.mark.parametrize("pack", [pack_rows, _pack_rows])
@pytest.mark.parametrize(
    "row", [(bytes(256), 0, []), (b"key", 0, [-1]), (b"key", 0, [2**64]), (b"key", -1, [1])]
)
def test_what_does_not_fit_is_not_packed(pack: Pack, row: tuple[bytes, int, list[int]]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        pack([row])


@compiled_only
@given(rows)
def test_compiled_code_packs_the_same_rows(rows: list[tuple[bytes, int, list[int]]]) -> None:
    assert pack_rows is not _pack_rows

    packed = pack_rows(iter(rows))

    assert packed == _pack_rows(rows)
    assert unpack_rows(packed) == _unpack_rows(packed)


def is_refused(check: object, *arguments: object) -> bool:
    assert callable(check)
    try:
        check(*arguments)
    except ValueError:
        return True
    return False


@compiled_only
@given(rows, st.data())
def test_compiled_code_accepts_the_same_rows(
    rows: list[tuple[bytes, int, list[int]]], data: st.DataObject
) -> None:
    packed = bytearray(pack_rows(rows))
    for _ in range(data.draw(st.integers(0, 2))):
        if packed:
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    end = data.draw(st.binary(max_size=2))
    arguments = bytes(packed[: len(packed) - cut]) + end, len(rows), 3, 0, 255
    assert check_rows is not _check_rows

    assert is_refused(check_rows, *arguments) == is_refused(_check_rows, *arguments)
    is_damaged = is_refused(_unpack_rows, arguments[0])
    assert is_refused(unpack_rows, arguments[0]) == is_damaged
    assert is_damaged or unpack_rows(arguments[0]) == _unpack_rows(arguments[0])


@pytest.mark.parametrize("check", [check_rows, _check_rows])
def test_rows_with_a_wrong_number_limit_or_key_are_refused(check: object) -> None:
    packed = pack_rows([(b"12345678", 1, [5])])

    assert not is_refused(check, packed, 1, 2, 8, 8)
    assert is_refused(check, packed, 0, 2, 8, 8)
    assert is_refused(check, packed, 2, 2, 8, 8)
    assert is_refused(check, packed, 1, 1, 8, 8)
    assert is_refused(check, packed, 1, 2, 9, 9)
    assert is_refused(check, packed, 1, 2, 7, 7)


def engines(*, is_shared: bool = False) -> list[Engine]:
    """Return an engine in Python, and a compiled one if there is one."""
    made = [Engine(max_keys=1000)]
    if why_not_compiled() is None:
        tables = compiled_tables(bytes(16), keeps_keys=True)
        made.append(Engine(max_keys=1000, tables=tables))
    for engine in made:
        engine.set_rules(
            {at: EngineRule(limit, is_shared=is_shared) for at, limit in enumerate(LIMITS)}
        )
    return made


checks = st.lists(
    st.tuples(
        st.integers(0, len(LIMITS) - 1),
        st.integers(0, 3),
        st.integers(1, 4),
        st.sampled_from([0, 1, S, 61 * S]),
        st.integers(0, 4 * len(LIMITS)),
    ),
    max_size=30,
)


def without_unused(counts: Snapshot, now: int) -> Snapshot:
    """Return counters without the units of previous windows that count nothing any more.

    The engines remove an unused key at different times, and a new check creates it without them.
    """
    for at, state in enumerate(counts.states):
        limit = counts.limits[counts.which[at]]
        if limit.algorithm is Algorithm.SLIDING_WINDOW and len(state) == 3:
            left_ns = limit.period_ns - now % limit.period_ns
            if state[0] == now // limit.period_ns and state[2] * left_ns < limit.period_ns:
                counts.states[at] = [*state[:2], 0]
    return counts


@example([*[(0, 0, 1, 0, 0)] * 6, (0, 2, 1, 0, 0), (0, 1, 1, 61 * S, 0), (0, 2, 1, 0, 0)], False, 0)
@given(checks, st.booleans(), st.sampled_from([0, 30 * S, 200 * S, 2 * 86_400 * S]))
def test_both_engines_pack_what_a_snapshot_has(
    checks: list[tuple[int, int, int, int, int]], is_shared: bool, later: int
) -> None:
    asked = [
        rule.to_bytes(8, "big") + b"%d" % number
        for rule in range(len(LIMITS) + 1)
        for number in range(4)
    ]
    packed = []
    for engine in engines(is_shared=is_shared):
        now = NOW
        for rule, number, cost, gap, carried in checks:
            now += gap
            key = rule.to_bytes(8, "big") + b"%d" % number
            limits = [LIMITS[carried]] if carried < len(LIMITS) else []
            engine.decide([key], [cost], [], limits, [1] if limits else [], now)
            if is_shared:
                engine.merge_remote("eu", [key], [[now // (60 * S), 2]], now)
        now += later
        counts = engine.snapshot(asked, now)
        found = engine.pack(asked, now)
        unpacked = found.unpack()
        assert unpacked.keys == asked
        used = [at for at, state in enumerate(unpacked.states) if state]
        assert [asked[at] for at in used] == counts.keys
        assert [unpacked.states[at] for at in used] == counts.states
        assert [unpacked.limits[unpacked.which[at]] for at in used] == [
            counts.limits[which] for which in counts.which
        ]
        assert engine.pack(asked, now, with_unused=False).unpack() == counts
        remote = unpacked.remote_counts or [{} for _ in asked]
        assert [remote[at] for at in used] == (counts.remote_counts or [{} for _ in used])
        packed.append(without_unused(unpacked, now))

    assert all(found == packed[0] for found in packed)


numbers = st.integers(0, 5) | st.sampled_from([NOW // (60 * S), 20 * S, 2**63 - 1, 2**63, 2**64])
arriving = st.lists(
    st.tuples(
        st.integers(0, len(LIMITS)),
        st.integers(0, 3),
        st.lists(numbers, max_size=4),
        st.integers(0, len(LIMITS) - 1),
    ),
    max_size=12,
)


@compiled_only
@given(checks, arriving, st.lists(st.integers(0, 4 * len(LIMITS) + 3), max_size=8))
def test_both_engines_restore_and_forget_the_same_counters(
    checks: list[tuple[int, int, int, int, int]],
    arriving: list[tuple[int, int, list[int], int]],
    forgotten: list[int],
) -> None:
    asked = [
        rule.to_bytes(8, "big") + b"%d" % number
        for rule in range(len(LIMITS) + 1)
        for number in range(4)
    ]
    counts = Snapshot(
        [rule.to_bytes(8, "big") + b"%d" % number for rule, number, _, _ in arriving],
        [state for _, _, state, _ in arriving],
        LIMITS,
        [limit for _, _, _, limit in arriving],
        [],
    )
    found = []
    for engine in engines():
        for rule, number, cost, _, carried in checks:
            key = rule.to_bytes(8, "big") + b"%d" % number
            limits = [LIMITS[carried]] if carried < len(LIMITS) else []
            engine.decide([key], [cost], [], limits, [1] if limits else [], NOW)
        refused = engine.restore(counts, NOW)
        before = engine.snapshot(asked, NOW)
        engine.forget([asked[at] for at in forgotten])
        found.append((refused, before, engine.snapshot(asked, NOW)))

    assert found[0] == found[1]
    assert not {asked[at] for at in forgotten} & {*found[0][2].keys}
