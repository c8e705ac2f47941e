"""Rows of the replicas of one shard in packed memory, and the update of many shards.

A row of a replica is the number of its limit, the instant of its arrival in 8 bytes, and the
numbers of its state. Numbers have 7 bits in each byte, the lowest bits first.
"""

from collections import Counter

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from hashring._murmur cimport SHARD_SHIFT, murmur3
from ringfence.limiter.compiled._states cimport (
    PackedRow, first_packed_row, next_packed_row, packed_number, put_packed_number,
)
from ringfence.limiter.packed._packed_dict cimport (
    PackedDict, Record, join_numbers, ringfence_fetch,
)

from node.shards.replica_rows import merged

cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(object sequence) nogil
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 18446744073709551615


cdef enum:
    LONGEST_NUMBER = 10  # bytes
    INSTANT = 8  # bytes
    CACHE_LINE = 64  # bytes
    BLOCK = 32  # rows whose memory is prefetched together

ROW_BYTES = 40  # estimated bytes of a row with its key, without the numbers
cdef int64_t _ROW_BYTES = ROW_BYTES


def pack_row(limit, arrived_at, list state not None) -> bytes:
    """Return a row with the number of a limit, the instant of its arrival, and a state.

    Raises `OverflowError` if a number is negative or has more than 64 bits.
    """
    cdef uint8_t[LONGEST_NUMBER + INSTANT] head
    cdef uint64_t instant = PyLong_AsUnsignedLongLong(arrived_at)
    cdef uint8_t* end = _put_head(head, limit, instant)
    return join_numbers(head, end - head, state)


cdef uint8_t* _put_head(uint8_t* place, limit, uint64_t instant) except NULL:
    """Write the number of the limit and the instant of arrival; return the place behind them."""
    place = put_packed_number(place, PyLong_AsUnsignedLongLong(limit))
    memcpy(place, &instant, INSTANT)
    return place + INSTANT


cdef const uint8_t* _read_head(bytes row, uint64_t* limit, uint64_t* instant) except NULL:
    """Read the number of the limit and the instant of arrival; return the place behind them."""
    cdef const uint8_t* place = <const uint8_t*><char*>row
    cdef const uint8_t* end = place + len(row)
    if not packed_number(&place, end, limit) or end - place < INSTANT:
        raise ValueError("a row must begin with a limit and an instant")
    memcpy(instant, place, INSTANT)
    return place + INSTANT


def head_of(bytes row not None) -> tuple[int, int]:
    """Return the number of the limit and the instant of arrival in a row."""
    cdef uint64_t limit, instant
    _read_head(row, &limit, &instant)
    return limit, instant


def state_of(bytes row not None) -> list[int]:
    """Return the state in a row."""
    cdef uint64_t limit, number
    cdef const uint8_t* place = _read_head(row, &limit, &number)
    cdef const uint8_t* end = <const uint8_t*><char*>row + len(row)
    cdef list state = []
    while place < end:
        if not packed_number(&place, end, &number):
            raise ValueError("a row must end with whole numbers")
        state.append(number)
    return state


@cython.no_gc  # It refers to a string and to a tuple of integers.
cdef class PackedRows(PackedDict):
    """Rows of the replicas of one shard by key."""

    cdef public object sender
    """Owner that sent the rows."""
    cdef public tuple origins
    """Origins of the counters in the rows."""
    cdef public uint64_t updated
    """Number of the last update; it grows with each update of any shard."""

    def __cinit__(self):
        self.origins = ()


def keep_rows(
    list shards not None, bytes packed not None, list numbers not None, arrived_at, sender, origins,
    uint64_t first_update,
):
    """Store packed rows by shard, see `replica_rows.keep_rows`."""
    cdef PackedRow[BLOCK] block
    cdef uint32_t by_shard[BLOCK]
    cdef _Keeper keeper = _Keeper()
    cdef int count, at
    cdef PyObject** found = PySequence_Fast_ITEMS(shards)
    if len(shards) <= UINT32_MAX >> SHARD_SHIFT:
        raise ValueError("there must be an item for each shard")
    keeper.shards, keeper.numbers, keeper.sender, keeper.origins = shards, numbers, sender, origins
    keeper.added = [0] * len(numbers)
    keeper.instant = PyLong_AsUnsignedLongLong(arrived_at)
    keeper.first_update = first_update
    first_packed_row(&block[0], <uint8_t*><char*>packed, len(packed))
    while block[0].next < block[0].end:
        # Nearly each row is in another shard, whose memory is in no cache. It is prefetched.
        count = 0
        while count < BLOCK and (not count or block[count - 1].next < block[count - 1].end):
            if count:
                block[count] = block[count - 1]
            if not next_packed_row(&block[count]):
                raise ValueError("replicas must be packed rows")
            by_shard[count] = murmur3(block[count].key, block[count].key_size) >> SHARD_SHIFT
            ringfence_fetch(found + by_shard[count])
            count += 1
        for at in range(count):
            ringfence_fetch(found[by_shard[at]])
            ringfence_fetch(<char*>found[by_shard[at]] + CACHE_LINE)
        for at in range(count):
            if isinstance(<object>found[by_shard[at]], PackedRows):
                (<PackedRows>found[by_shard[at]]).prefetch()
        for at in range(count):
            keeper.keep(&block[at], by_shard[at])
        block[0] = block[count - 1]
    keeper.dropped[keeper.last_dropped] += keeper.in_turn
    return keeper.size, keeper.nbytes, keeper.added, keeper.dropped


cdef class _Keeper:
    """One call of `keep_rows`."""

    cdef list shards
    cdef list numbers
    cdef object sender
    cdef object origins
    cdef uint64_t instant
    cdef uint64_t first_update
    cdef uint64_t place  # of the next row
    cdef int64_t size
    cdef int64_t nbytes
    cdef list added
    cdef object dropped
    cdef uint64_t last_dropped
    cdef int64_t in_turn  # rows with the limit `last_dropped` that are not in `dropped`

    def __cinit__(self):
        self.dropped = Counter()

    @cython.boundscheck(True)
    cdef int keep(self, const PackedRow* row, uint32_t shard) except -1:
        cdef PackedRows rows
        cdef Record old
        cdef uint64_t old_limit
        cdef uint8_t[LONGEST_NUMBER + INSTANT] head
        cdef const uint8_t* first
        cdef uint8_t* end
        cdef uint64_t place = self.place
        self.place += 1
        rows = self.shards[shard]
        if rows is None:
            if not row.numbers:
                return 0
            rows = self.shards[shard] = PackedRows()
        rows.sender = self.sender
        rows.updated = self.first_update + place
        of_row = self.origins[min(place, <uint64_t>len(self.origins) - 1)]
        if rows.origins is not of_row and rows.origins != of_row:
            rows.origins = merged(rows.origins, of_row)
        cdef uint32_t at = rows._find(row.key, row.key_size)
        if at < rows.count:
            old = rows._record(at)
            self.size -= 1
            self.nbytes -= _ROW_BYTES + old.row_size
            first = old.row
            packed_number(&first, old.row + old.row_size, &old_limit)
            if old_limit != self.last_dropped:
                self.dropped[self.last_dropped] += self.in_turn
                self.last_dropped, self.in_turn = old_limit, 0
            self.in_turn += 1
        if row.numbers:
            if row.limit >= <uint64_t>len(self.numbers):
                raise ValueError("packed rows must have known limits")
            end = _put_head(head, self.numbers[row.limit], self.instant)
            rows._put(
                at, row.key, row.key_size, head, <uint32_t>(end - head), row.state,
                <uint32_t>(row.next - row.state),
            )
            self.size += 1
            self.nbytes += _ROW_BYTES + (end - head) + (row.next - row.state)
            self.added[row.limit] += 1
            return 0
        if at < rows.count:
            rows._delete(at)
        if not rows.count:
            self.shards[shard] = None
        return 0
