"""Fuzz target: replicas in compiled rows and in Python, which must store and return the same.

Bytes encode frames of packed rows, valid and invalid. They are unpacked and packed again. Two
standbys receive them, one with the compiled module and one without it. Both standbys drop unused
keys and take over shards.

`python -m tests.fuzz.packed_rows --seconds 60 --seed 1`.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from unittest.mock import patch

from hashring import SHARDS, NodeId, shards_of
from node.shards import _packed_rows, replica_rows, replicas
from ringfence.limiter import Algorithm, Limit, PackedSnapshot
from ringfence.limiter.packed.packed_snapshot import (
    _check_rows,
    _pack_rows,
    _unpack_rows,
    check_rows,
    pack_rows,
    unpack_rows,
)
from tests.fuzz.bytes_to_histories import Choices, main

__all__ = ["run"]

LIMITS = [
    Limit.of_ns(10, 60 * 10**9),
    Limit.of_ns(7, 10**9, Algorithm.FIXED_WINDOW),
    Limit.of_ns(9, 10**3, Algorithm.SLIDING_WINDOW),
]
NUMBERS = (0, 1, 127, 128, 300, 16_385, 2**32, 2**63, 2**64 - 1)
ORIGINS = ((0,), (1,), (2,), (1, 2))
GAPS_NS = (0, 1, 10**6, 10**9, 3 * 10**9, 200 * 10**9)
MAX_KEYS = 50


def _keys() -> list[bytes]:
    """Return keys of which many are in the same shards, and keys of all lengths."""
    names = [b"rule-%03d%d" % (number % 5, number) for number in range(200_000)]
    crowded = [name for name, at in zip(names, shards_of(names), strict=True) if at < 5]
    return [*crowded, *[bytes(size) for size in (0, 1, 7, 8, 9, 254, 255)]]


def _plain_replicas() -> type[replicas.Replicas]:
    """Return the class `Replicas` as it is without the compiled module."""
    spec = find_spec("node.shards.replicas")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with patch.dict(sys.modules, {"node.shards._packed_rows": None}):
        spec.loader.exec_module(module)
    plain: type[replicas.Replicas] = module.Replicas
    return plain


KEYS = _keys()
SHARDS_OF_KEYS = sorted({*shards_of(KEYS)})
PlainReplicas = _plain_replicas()


def run(data: bytes) -> int:
    """Run the history that `data` encodes; return the number of rows and other steps."""
    read = Choices(data)
    standbys = replicas.Replicas(MAX_KEYS, 2**40), PlainReplicas(MAX_KEYS, 2**40)
    rows, expected = _packed_rows.PackedRows(), dict[bytes, bytes]()
    now, steps = 10**18, 0
    while read:
        kind = read.below(32)
        now += GAPS_NS[read.below(len(GAPS_NS))]
        if kind < 20:
            steps += _keep(standbys, read, now)
        elif kind < 24:
            steps += _keep_invalid(read)
        elif kind < 28:
            steps += _put(rows, expected, read)
        elif kind == 28:
            _row(read)
        elif kind == 29:
            for standby in standbys:
                standby.expire(now)
        else:
            moved_shards = [
                SHARDS_OF_KEYS[read.below(len(SHARDS_OF_KEYS))] for _ in range(read.below(4))
            ]
            _compare(standbys, moved_shards)
            for standby in standbys:
                standby.drop(moved_shards)
        steps += 1
        assert len(standbys[0]) == len(standbys[1])
        assert standbys[0].next_expiry == standbys[1].next_expiry
    _compare(standbys, SHARDS_OF_KEYS)
    assert standbys[0].shards() == standbys[1].shards()
    assert [*rows.items()] == [*expected.items()]
    return steps


def _frame(read: Choices) -> tuple[bytes, int]:
    """Choose rows; return them packed, and their number."""
    rows = [
        (
            KEYS[read.below(len(KEYS))],
            read.below(len(LIMITS)),
            [NUMBERS[read.below(len(NUMBERS))] for _ in range(read.below(5))],
        )
        for _ in range(1 + read.below(64))
    ]
    packed = pack_rows(rows)
    assert packed == _pack_rows(rows)
    return packed, len(rows)


def _keep(standbys: tuple[replicas.Replicas, replicas.Replicas], read: Choices, now: int) -> int:
    """Store a frame of rows if the frame is still valid after some damage."""
    packed, count = _frame(read)
    packed = _damaged(packed, read)
    bounds = len(LIMITS), (0, 0, 0, 8)[read.below(4)], (255, 255, 255, 16)[read.below(4)]
    error = _error_of(check_rows, packed, count, *bounds)
    assert error == _error_of(_check_rows, packed, count, *bounds)
    damage = _error_of(unpack_rows, packed)
    assert damage == _error_of(_unpack_rows, packed)
    if damage is None:
        columns = unpack_rows(packed)
        assert columns == _unpack_rows(packed)
        assert pack_rows(zip(*columns, strict=True)) == _pack_rows(zip(*columns, strict=True))
    if error is None:
        remote = [{"eu": [read.below(9)]}] * count if read.below(8) == 0 else []
        origins = [ORIGINS[read.below(4)] for _ in range((count, 1)[read.below(2)])]
        counts = PackedSnapshot(packed, count, LIMITS, remote)
        sender = NodeId(f"n{read.below(3)}")
        for standby in standbys:
            standby.keep(sender, counts, now, origins)
    return count


def _damaged(packed: bytes, read: Choices) -> bytes:
    index, value = (read.below(256) << 8 | read.below(256)) % len(packed), read.below(256)
    match read.below(16):
        case 1:
            return packed[:index]
        case 2:
            return packed[:index] + bytes((value,)) + packed[index + 1 :]
        case 3:
            return packed[:index] + bytes((value,)) + packed[index:]
        case 4:
            return packed[:index] + packed[index + 1 :]
        case 5:
            return packed[:index] + b"\xff" * (1 + value % 12) + packed[index:]
        case 6:
            return read.take(value)
        case _:
            return packed


def _keep_invalid(read: Choices) -> int:
    """Store unvalidated rows, or call with wrong arguments, on empty tables."""
    packed, count = _frame(read)
    arguments: list[object] = [packed, [7, 300, 2**33], 10**18, "n1", [(1,)], 5]
    match read.below(10):
        case 0:
            arguments[0] = (None, 5, "text")[read.below(3)]
        case 1:
            arguments[1] = (None, [], [7], [None] * 3, [-1] * 3, [2**64] * 3)[read.below(6)]
        case 2:
            arguments[2] = (None, -1, 2**64, "now")[read.below(4)]
        case 3:
            arguments[4] = (None, [], (), 5)[read.below(4)]
        case 4:
            arguments[5] = None
        case _:
            arguments[0] = _damaged(packed, read)
    if isinstance(arguments[0], bytes):  # Plain code reads the arguments only when it stores a row.
        arguments[0] = pack_rows([(b"12345678", 0, [1])]) + arguments[0]
    compiled: list[_packed_rows.PackedRows | None] = [None] * SHARDS
    plain: list[replica_rows.PlainRows | None] = [None] * SHARDS
    error = _error_of(_packed_rows.keep_rows, compiled, *arguments)
    assert error == _error_of(replica_rows.keep_rows, plain, *arguments), arguments
    for shard in SHARDS_OF_KEYS:
        found, rows = compiled[shard], plain[shard]
        found_rows = {} if found is None else _contents(found, _packed_rows.head_of)
        if error is None:
            assert found_rows == ({} if rows is None else _contents(rows, replica_rows.head_of))
    return count


def _contents(
    rows: "_packed_rows.PackedRows | replica_rows.PlainRows",
    head_of: Callable[[bytes], tuple[int, int]],
) -> dict[bytes, tuple[int, int]]:
    return {key: head_of(row) for key, row in rows.items()}


def _put(rows: _packed_rows.PackedRows, expected: dict[bytes, bytes], read: Choices) -> int:
    """Set, get and remove rows of any bytes."""
    count = read.below(64)
    for _ in range(count):
        key = b"%08d" % read.below(256) * read.below(2) + b"%d" % read.below(4)
        size = (0, 1, 9, 40, 254, 255, 256, 5_000)[read.below(8)]
        assert rows.get(key) == expected.get(key)
        if read.below(3):
            rows[key] = expected[key] = bytes((read.below(256),)) * size
        else:
            removed = expected.pop(key, None)
            error = _error_of(rows.__delitem__, key)
            assert error == (KeyError if removed is None else None)
    assert len(rows) == len(expected)
    return count


def _row(read: Choices) -> None:
    """Pack and read one row, and read bytes that are no row."""
    wrong = (-1, 2**64, None, "1")[read.below(4)]
    parts: list[object] = [NUMBERS[read.below(len(NUMBERS))] for _ in range(2 + read.below(40))]
    if read.below(3) == 0:
        parts[read.below(len(parts))] = wrong
    arguments = *parts[:2], parts[2:]
    error = _error_of(_packed_rows.pack_row, *arguments)
    assert error == _error_of(replica_rows.pack_row, *arguments), arguments
    if error is None:
        for form in (_packed_rows, replica_rows):
            row = form.pack_row(*arguments)
            assert [*form.head_of(row), *form.state_of(row)] == parts
    for function in (_packed_rows.head_of, _packed_rows.state_of):
        assert _error_of(function, read.take(read.below(24))) in {None, ValueError}


def _compare(standbys: tuple[replicas.Replicas, replicas.Replicas], shards: list[int]) -> None:
    for shard in shards:
        found, expected = (
            ([*each.of(shard)], each.sender_of(shard), each.origins_of(shard)) for each in standbys
        )
        assert found == expected


def _error_of(function: Callable[..., object], *arguments: object) -> type[Exception] | None:
    """Call a function; return the class of its error."""
    try:
        function(*arguments)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        return type(error)
    return None


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.packed_rows", "rows and steps", size=4000))
