"""States of many counters as one byte string, without a Python object for each key.

Replication and transfers send counters in this form. A row has the key, then the number of integers
in its state. If there are any, the index of the limit and the integers follow. The key is the
number of first bytes that it shares with the key before it, the number of its other bytes, and
these bytes. Integers behind the key have 7 bits in each byte, the lowest bits first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from ringfence.limiter.limit import Limit
from ringfence.limiter.serialization import MAX_NUMBERS, Snapshot

__all__ = ["PackedSnapshot", "check_rows", "pack_rows", "rows_in", "unpack_rows"]

_MORE = 0x80
_BITS = 7
_MAX_U64 = 2**64 - 1
_LONGEST_KEY = 255
_LONGEST_NUMBER = 10
"""Bytes of an integer with 64 bits."""
_NO_LIMIT = Limit.of_ns(0, 1)
"""Limit of unused keys in a `Snapshot`."""


class PackedSnapshot(Struct, frozen=True):
    """States of several counters in packed rows."""

    rows: bytes
    count: int
    """Number of the rows."""
    limits: list[Limit]
    """Limits to which the rows refer."""
    remote_counts: list[dict[str, list[int]]]
    """Counts of other data centers, as in a `Snapshot`."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> "PackedSnapshot":
        """Pack a snapshot."""
        rows = pack_rows(zip(snapshot.keys, snapshot.which, snapshot.states, strict=True))
        remote_counts = snapshot.remote_counts if any(snapshot.remote_counts) else []
        return cls(rows, len(snapshot.keys), snapshot.limits, remote_counts)

    @classmethod
    def joined(cls, parts: Sequence["PackedSnapshot"]) -> "PackedSnapshot":
        """Return the rows of all parts."""
        limits = [*dict.fromkeys(chain.from_iterable([part.limits for part in parts]))]
        rows, remote_counts = list[bytes](), list[dict[str, list[int]]]()
        for part in parts:
            if part.limits == limits[: len(part.limits)]:  # Nearly always.
                rows.append(part.rows)
                continue
            indexes = [limits.index(limit) for limit in part.limits]
            keys, which, states = unpack_rows(part.rows)
            numbers = [indexes[limit] if indexes else 0 for limit in which]
            rows.append(pack_rows(zip(keys, numbers, states, strict=True)))
        if any([part.remote_counts for part in parts]):
            for part in parts:
                remote_counts += part.remote_counts or [{} for _ in range(part.count)]
        return cls(b"".join(rows), sum([part.count for part in parts]), limits, remote_counts)

    def unpack(self) -> Snapshot:
        """Return the rows in columns, which the caller may change. A row with an empty state has a
        limit of no units."""
        keys, which, states = unpack_rows(self.rows)
        limits = [*self.limits]
        if not all(states):
            unused = len(limits)
            limits.append(_NO_LIMIT)
            which = [at if state else unused for at, state in zip(which, states, strict=True)]
        return Snapshot(keys, states, limits, which, [*self.remote_counts])


def _pack_rows(rows: Iterable[tuple[bytes, int, list[int]]]) -> bytes:
    """Pack keys, indexes of limits and states. Raises `ValueError` for keys above 255 bytes."""
    packed = bytearray()
    last = b""
    for key, limit, state in rows:
        if len(key) > _LONGEST_KEY:
            raise ValueError(f"a key must have at most {_LONGEST_KEY} bytes, got {len(key)}")
        shared = 0
        while shared < len(key) and key[shared : shared + 1] == last[shared : shared + 1]:
            shared += 1
        packed += bytes((shared, len(key) - shared)) + key[shared:]
        for number in (len(state), limit, *state) if state else (0,):
            _append_number(packed, number)
        last = key
    return bytes(packed)


def _append_number(packed: bytearray, number: int) -> None:
    if not 0 <= number <= _MAX_U64:
        raise OverflowError(f"a number must be from 0 to 2**64 - 1, got {number}")
    while number >= _MORE:
        packed.append(number & (_MORE - 1) | _MORE)
        number >>= _BITS
    packed.append(number)


def rows_in(packed: bytes) -> Iterator[tuple[bytes, int, list[int]]]:
    """Yield the key, the index of the limit and the state of each row; 0 for an empty state.

    Raises `ValueError` for bytes that are not packed rows.
    """
    last, at = b"", 0
    while at < len(packed):
        shared, rest = packed[at], packed[at + 1 : at + 2]
        end = at + 2 + (rest[0] if rest else 0)
        key = last[:shared] + packed[at + 2 : end]
        if shared > len(last) or not rest or end > len(packed) or len(key) > _LONGEST_KEY:
            raise _bad_rows(at)
        numbers, at = _number_at(packed, end)
        if numbers > MAX_NUMBERS:
            raise _bad_rows(end)
        limit, state = 0, list[int]()
        if numbers:
            limit, at = _number_at(packed, at)
            for _ in range(numbers):
                number, at = _number_at(packed, at)
                state.append(number)
        yield key, limit, state
        last = key


def _unpack_rows(packed: bytes) -> tuple[list[bytes], list[int], list[list[int]]]:
    """Return the keys, the indexes of the limits and the states of the rows, as `rows_in` yields
    them."""
    keys, which, states = list[bytes](), list[int](), list[list[int]]()
    for key, limit, state in rows_in(packed):
        keys.append(key)
        which.append(limit)
        states.append(state)
    return keys, which, states


def _number_at(packed: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a position and the position behind it."""
    number = 0
    for place, byte in enumerate(packed[at : at + _LONGEST_NUMBER], 1):
        number |= (byte & (_MORE - 1)) << (place - 1) * _BITS
        if byte < _MORE and number <= _MAX_U64:
            return number, at + place
    raise _bad_rows(at)


def _check_rows(
    packed: bytes, count: int, limits: int, shortest_key: int, longest_key: int
) -> None:
    """Validate packed rows. Raises `ValueError` unless they are `count` rows, whose keys have a
    permitted length and whose limits are below `limits`."""
    found = 0
    for key, limit, state in rows_in(packed):
        found += 1
        if found > count or not shortest_key <= len(key) <= longest_key:
            raise ValueError(f"row {found} is one too many, or its key has a wrong length")
        if state and limit >= limits:
            raise ValueError(f"row {found} has a limit that does not exist")
    if found < count:
        raise ValueError(f"there must be {count} rows, got {found}")


def _bad_rows(at: int) -> ValueError:
    return ValueError(f"the bytes from {at} on are not a packed row")


check_rows: Callable[[bytes, int, int, int, int], None]
pack_rows: Callable[[Iterable[tuple[bytes, int, list[int]]]], bytes]
unpack_rows: Callable[[bytes], tuple[list[bytes], list[int], list[list[int]]]]
try:
    from ringfence.limiter.compiled._hot import check_rows, pack_rows, unpack_rows
except ImportError:  # The compiled module exists only where a C compiler was available.
    check_rows, pack_rows, unpack_rows = _check_rows, _pack_rows, _unpack_rows
