"""Dictionary from keys to rows of bytes in two blocks of memory, without an object per key.

A record is the lengths of key and row, the key and the row. The first 8 bytes of a key are the id
of its rule, so they are stored once for many keys. An index has the place of each record in the
order of insertion, and one byte of the hash of its key. A look-up compares this byte for all keys,
so the dictionary suits the few hundred keys of a shard, not millions.

A row of a replica is the number of its limit, the instant of its arrival in 8 bytes, and the
numbers of its state. Numbers have 7 bits in each byte, the lowest bits first.
"""

from collections import Counter

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from hashring._murmur cimport SHARD_SHIFT, murmur3
from ringfence.limiter.compiled._states cimport (
    PackedRow, first_packed_row, next_packed_row, packed_number, put_packed_number,
)

from node.shards.replica_rows import merged

cdef extern from *:
    """
    /* Hash of the bytes object with this content, keyed by the process. */
    #if PY_VERSION_HEX >= 0x030E0000
    #define ringfence_hash Py_HashBuffer
    #else
    #define ringfence_hash _Py_HashBytes
    #endif
    #if defined(__GNUC__)
    #define ringfence_fetch(place) __builtin_prefetch(place)
    #else
    #define ringfence_fetch(place) ((void)(place))
    #endif
    """
    Py_hash_t ringfence_hash(const void* text, Py_ssize_t size) nogil
    void ringfence_fetch(const void* place) nogil

cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(object sequence) nogil
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 18446744073709551615


cdef enum:
    SPARE = 16  # 1 / 16 of the memory may be unused
    STEP = 64  # bytes
    ID = 8  # bytes of the id of a rule
    NO_ID = 255  # number of the id when the whole key is in the record
    SHORT = 255  # rows with fewer bytes have a length of one byte
    HEAD = 3  # bytes: number of the id, length of the rest of the key, length of the row
    LONG_HEAD = 7  # bytes: the same, with the length of a long row behind
    LONGEST_NUMBER = 10  # bytes
    INSTANT = 8  # bytes
    CACHE_LINE = 64  # bytes
    BLOCK = 32  # rows whose memory is prefetched together

ROW_BYTES = 40  # estimated bytes of a row with its key, without the numbers
cdef int64_t _ROW_BYTES = ROW_BYTES

cdef struct Record:
    uint8_t* key  # behind the id
    uint8_t* row
    uint32_t row_size
    uint8_t key_size
    uint8_t id


def pack_row(limit, arrived_at, list state not None) -> bytes:
    """Return a row with the number of a limit, the instant of its arrival, and a state.

    Raises `OverflowError` if a number is negative or has more than 64 bits.
    """
    cdef uint8_t[256] buffer
    cdef Py_ssize_t most = (len(state) + 1) * LONGEST_NUMBER + INSTANT
    cdef uint8_t* begin = &buffer[0]
    if most > <Py_ssize_t>sizeof(buffer):
        begin = <uint8_t*>malloc(most)
        if begin == NULL:
            raise MemoryError
    cdef uint8_t* place
    cdef uint64_t instant
    try:
        instant = PyLong_AsUnsignedLongLong(arrived_at)
        place = put_packed_number(begin, PyLong_AsUnsignedLongLong(limit))
        memcpy(place, &instant, INSTANT)
        place += INSTANT
        for number in state:
            place = put_packed_number(place, PyLong_AsUnsignedLongLong(number))
        return PyBytes_FromStringAndSize(<char*>begin, place - begin)
    finally:
        if begin != &buffer[0]:
            free(begin)


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


cdef inline uint64_t _size(const Record* record) noexcept:
    """Return the bytes of a record in memory."""
    cdef uint64_t head = HEAD if record.row_size < SHORT else LONG_HEAD
    return head + record.key_size + record.row_size


@cython.no_gc  # It refers to a string and to a tuple of integers.
cdef class PackedRows:
    """Rows by key, with the interface of `dict[bytes, bytes]` as far as replicas need it."""

    cdef uint8_t* records
    cdef uint64_t end  # bytes of all records, removed ones included
    cdef uint64_t room
    cdef uint64_t removed  # bytes of the records that are not in the index
    cdef uint32_t* places
    cdef uint8_t* tags  # behind the places, in the same block
    cdef uint8_t* ids
    cdef uint32_t count
    cdef uint32_t slots
    cdef uint8_t id_count
    cdef public object sender
    """Owner that sent the rows."""
    cdef public tuple origins
    """Origins of the counters in the rows."""
    cdef public uint64_t updated
    """Number of the last update; it grows with each update of any shard."""

    def __cinit__(self):
        self.origins = ()

    def __dealloc__(self):
        free(self.records)
        free(self.places)
        free(self.ids)

    def __len__(self):
        return self.count

    @property
    def nbytes(self) -> int:
        """Return the allocated bytes."""
        return self.room + self.slots * (sizeof(uint32_t) + 1) + self.id_count * ID

    def get(self, bytes key not None):
        """Return the row of a key; None if it has none."""
        cdef uint32_t at = self._find(<uint8_t*><char*>key, len(key))
        return None if at == self.count else self._row(at)

    def __setitem__(self, bytes key not None, bytes row not None):
        self._put(
            self._find(<uint8_t*><char*>key, len(key)), <uint8_t*><char*>key, len(key), NULL, 0,
            <uint8_t*><char*>row, len(row),
        )

    def __delitem__(self, bytes key not None):
        cdef uint32_t at = self._find(<uint8_t*><char*>key, len(key))
        if at == self.count:
            raise KeyError(key)
        self._delete(at)

    def items(self):
        """Yield each key with its row, in the order in which the keys were added.

        The rows must not change meanwhile.
        """
        cdef uint32_t at
        for at in range(self.count):
            yield self._key(at), self._row(at)

    cdef void prefetch(self) noexcept:
        """Prefetch the memory that an update of one row needs."""
        cdef uint32_t at
        for at in range(0, self.count, CACHE_LINE):
            ringfence_fetch(self.tags + at)
        ringfence_fetch(self.places + self.count)
        ringfence_fetch(self.ids)
        ringfence_fetch(self.records + self.end)

    cdef int _put(
        self, uint32_t at, const uint8_t* key, Py_ssize_t key_size,
        const uint8_t* head, uint32_t head_size, const uint8_t* rest, uint32_t rest_size,
    ) except -1:
        """Set the row of the key whose index `_find` has returned. The row is in two parts."""
        cdef Record old, new
        cdef uint64_t size
        if key_size > 255:
            raise ValueError(f"a key has at most 255 bytes, this one {key_size}")
        new.row_size = head_size + rest_size
        if at < self.count:
            old = self._record(at)
            if old.row_size == new.row_size:
                memcpy(old.row, head, head_size)
                memcpy(old.row + head_size, rest, rest_size)
                return 0
        new.id = self._id_of(key, key_size)
        new.key_size = <uint8_t>(key_size if new.id == NO_ID else key_size - ID)
        size = _size(&new)
        if at == self.count == self.slots:
            self._add_slots()
        if self.end + size > self.room:
            self._make_room(size)
        if at < self.count:
            old = self._record(at)
            self.removed += _size(&old)
        else:
            self.tags[at] = <uint8_t>ringfence_hash(key, key_size)
            self.count += 1
        self.places[at] = <uint32_t>self.end
        self._write(self.records + self.end, &new, key)
        old = self._record(at)
        memcpy(old.row, head, head_size)
        memcpy(old.row + head_size, rest, rest_size)
        self.end += size
        return 0

    cdef void _delete(self, uint32_t at) noexcept:
        cdef Record record = self._record(at)
        self.removed += _size(&record)
        self.count -= 1
        memmove(self.places + at, self.places + at + 1, (self.count - at) * sizeof(uint32_t))
        memmove(self.tags + at, self.tags + at + 1, self.count - at)

    cdef uint32_t _find(self, const uint8_t* key, Py_ssize_t size) noexcept:
        """Return the index of a key; the number of keys if it has no row."""
        cdef uint8_t tag = <uint8_t>ringfence_hash(key, size)
        cdef uint32_t at = 0
        cdef uint8_t* found
        while at < self.count:
            found = <uint8_t*>memchr(self.tags + at, tag, self.count - at)
            if found == NULL:
                break
            at = <uint32_t>(found - self.tags)
            if self._has_key(at, key, size):
                return at
            at += 1
        return self.count

    cdef bint _has_key(self, uint32_t at, const uint8_t* key, Py_ssize_t size) noexcept:
        cdef Record record = self._record(at)
        if record.id != NO_ID:
            if size != record.key_size + ID or memcmp(self.ids + record.id * ID, key, ID):
                return False
            key += ID
        elif size != record.key_size:
            return False
        return not memcmp(record.key, key, record.key_size)

    cdef uint8_t _id_of(self, const uint8_t* key, Py_ssize_t size) except? 0:
        """Return the number of a key's first bytes, or `NO_ID`."""
        cdef uint8_t number
        cdef uint8_t* longer
        if size < ID:
            return NO_ID
        for number in range(self.id_count):
            if not memcmp(self.ids + number * ID, key, ID):
                return number
        if self.id_count == NO_ID:
            return NO_ID
        longer = <uint8_t*>realloc(self.ids, (self.id_count + 1) * ID)
        if longer == NULL:
            raise MemoryError
        self.ids = longer
        memcpy(self.ids + self.id_count * ID, key, ID)
        self.id_count += 1
        return self.id_count - 1

    cdef Record _record(self, uint32_t at) noexcept:
        cdef Record record
        cdef uint8_t* place = self.records + self.places[at]
        record.id, record.key_size, record.row_size = place[0], place[1], place[2]
        record.key = place + HEAD
        if record.row_size == SHORT:
            memcpy(&record.row_size, place + HEAD, sizeof(uint32_t))  # It is not aligned.
            record.key = place + LONG_HEAD
        record.row = record.key + record.key_size
        return record

    cdef void _write(self, uint8_t* place, const Record* new, const uint8_t* key) noexcept:
        """Write a record without its row."""
        cdef uint64_t head = HEAD if new.row_size < SHORT else LONG_HEAD
        place[0], place[1] = new.id, new.key_size
        place[2] = <uint8_t>new.row_size if new.row_size < SHORT else SHORT
        if head == LONG_HEAD:
            memcpy(place + HEAD, &new.row_size, sizeof(uint32_t))
        memcpy(place + head, key if new.id == NO_ID else key + ID, new.key_size)

    cdef bytes _key(self, uint32_t at):
        cdef Record record = self._record(at)
        cdef bytes rest = record.key[: record.key_size]
        return rest if record.id == NO_ID else self.ids[record.id * ID : record.id * ID + ID] + rest

    cdef bytes _row(self, uint32_t at):
        cdef Record record = self._record(at)
        return record.row[: record.row_size]

    cdef int _make_room(self, uint64_t more) except -1:
        """Make room for one more record, in place of the removed ones if there are many."""
        if self.removed * SPARE > self.end:
            self._compact()
        cdef uint64_t room = self.end + more
        room += room // SPARE + STEP
        if room >> 32:
            raise MemoryError("the rows of one shard have more than 4 GiB")
        cdef uint8_t* records = <uint8_t*>realloc(self.records, room)
        if records == NULL:
            raise MemoryError
        self.records, self.room = records, room
        return 0

    cdef int _compact(self) except -1:
        """Copy the records to another block without the removed ones."""
        cdef uint64_t size, end = 0
        cdef uint32_t at
        cdef Record record
        cdef uint8_t* records = <uint8_t*>malloc(self.end - self.removed + 1)
        if records == NULL:
            raise MemoryError
        for at in range(self.count):
            record = self._record(at)
            size = _size(&record)
            memcpy(records + end, self.records + self.places[at], size)
            self.places[at] = <uint32_t>end
            end += size
        free(self.records)
        self.records, self.end, self.removed = records, end, 0
        return 0

    cdef int _add_slots(self) except -1:
        cdef uint32_t slots = self.slots + self.slots // SPARE + 4
        cdef uint32_t* places = <uint32_t*>realloc(self.places, slots * (sizeof(uint32_t) + 1))
        if places == NULL:
            raise MemoryError
        self.places, self.tags = places, <uint8_t*>(places + slots)
        memmove(self.tags, <uint8_t*>(places + self.slots), self.count)
        self.slots = slots
        return 0


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
            end = put_packed_number(head, PyLong_AsUnsignedLongLong(self.numbers[row.limit]))
            memcpy(end, &self.instant, INSTANT)
            end += INSTANT
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
