"""Dictionaries from keys to bytes in blocks of memory, without an object per key.

A record of a `PackedDict` is the lengths of key and row, the key and the row. The first 8 bytes of
a key are the id of its rule, so they are stored once for many keys. An index has the place of each
record in the order of insertion, and one byte of the hash of its key. A look-up compares this byte
for all keys, so this dictionary suits a few hundred keys. A `PackedMap` divides more keys among
many such dictionaries.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from ringfence.limiter.compiled._states cimport packed_number, put_packed_number

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 18446744073709551615


cdef enum:
    SPARE = 16  # 1 / 16 of the memory may be unused
    MOST_REMOVED = 4  # 1 / 4 of the memory of a block in a map may belong to removed rows
    STEP = 64  # bytes
    ID = 8  # bytes of the id of a rule
    NO_ID = 255  # number of the id when the whole key is in the record
    SHORT = 255  # rows with fewer bytes have a length of one byte
    HEAD = 3  # bytes: number of the id, length of the rest of the key, length of the row
    LONG_HEAD = 7  # bytes: the same, with the length of a long row behind
    CACHE_LINE = 64  # bytes
    PER_BLOCK = 64  # mean number of keys above which another block is added
    TAG_BITS = 8  # bits of a hash that a `PackedDict` compares
    ROW_OVERHEAD = 10  # estimated bytes of a row in the index, with its part of the block
    LONGEST_NUMBER = 10  # bytes


def pack_numbers(list numbers not None) -> bytes:
    """Return numbers as bytes, 7 bits in each byte, the lowest bits first.

    Raises `OverflowError` if a number is negative or has more than 64 bits.
    """
    return join_numbers(NULL, 0, numbers)


cdef bytes join_numbers(const uint8_t* head, Py_ssize_t head_size, list numbers):
    """Return the bytes of `head`, followed by packed numbers; raises as `pack_numbers` does."""
    cdef uint8_t[256] buffer
    cdef Py_ssize_t most = head_size + len(numbers) * LONGEST_NUMBER
    cdef uint8_t* begin = &buffer[0]
    cdef uint8_t* place
    if most > <Py_ssize_t>sizeof(buffer):
        begin = <uint8_t*>malloc(most)
        if begin == NULL:
            raise MemoryError
    try:
        memcpy(begin, head, head_size)
        place = begin + head_size
        for number in numbers:
            place = put_packed_number(place, PyLong_AsUnsignedLongLong(number))
        return PyBytes_FromStringAndSize(<char*>begin, place - begin)
    finally:
        if begin != &buffer[0]:
            free(begin)


def unpack_numbers(bytes row not None) -> list[int]:
    """Return the numbers of `pack_numbers`; raises `ValueError` for other bytes."""
    cdef uint64_t number
    cdef const uint8_t* place = <const uint8_t*><char*>row
    cdef const uint8_t* end = place + len(row)
    cdef list numbers = []
    while place < end:
        if not packed_number(&place, end, &number):
            raise ValueError("a row must consist of packed numbers")
        numbers.append(number)
    return numbers


cdef inline uint64_t _size(const Record* record) noexcept:
    """Return the bytes of a record in memory."""
    cdef uint64_t head = HEAD if record.row_size < SHORT else LONG_HEAD
    return head + record.key_size + record.row_size


cdef class PackedDict:
    """Rows by key, with the interface of `dict[bytes, bytes]` as far as it is needed."""

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
        self.records, self.end, self.removed, self.room = records, end, 0, end
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


cdef class PackedMap:
    """Rows by key for any number of keys, in blocks of about 64 keys.

    The number of blocks grows by one at a time (linear hashing, Litwin 1980), so that no call
    moves more than the keys of one block.
    """

    def __cinit__(self):
        self.blocks = [None]
        self.half = 1

    def __len__(self):
        return self.count

    def __contains__(self, bytes key not None):
        cdef PackedDict block = self.blocks[self._place(<uint8_t*><char*>key, len(key))]
        return block is not None and block._find(<uint8_t*><char*>key, len(key)) < block.count

    @property
    def bytes_in_use(self) -> int:
        """Approximate bytes of the rows with their keys."""
        return self.used + self.count * ROW_OVERHEAD

    @property
    def nbytes(self) -> int:
        """Return the allocated bytes of all blocks."""
        return sum([block.nbytes for block in self.blocks if block is not None])

    def get(self, bytes key not None):
        """Return the row of a key; None if it has none."""
        cdef PackedDict block = self.blocks[self._place(<uint8_t*><char*>key, len(key))]
        return None if block is None else block.get(key)

    def __setitem__(self, bytes key not None, bytes row not None):
        self._put(<uint8_t*><char*>key, len(key), <uint8_t*><char*>row, len(row))
        if self.count > PER_BLOCK * <uint64_t>len(self.blocks):
            self._split()

    def pop(self, bytes key not None):
        """Remove a key; return its row, or None if it has none."""
        cdef Py_ssize_t place = self._place(<uint8_t*><char*>key, len(key))
        cdef PackedDict block = self.blocks[place]
        if block is None:
            return None
        cdef uint32_t at = block._find(<uint8_t*><char*>key, len(key))
        if at == block.count:
            return None
        cdef bytes row = block._row(at)
        cdef Record record = block._record(at)
        self.used -= _size(&record)
        self.count -= 1
        block._delete(at)
        if place == self.hand_block and at < self.hand_row:
            self.hand_row -= 1  # The next row has taken this place.
        if not block.count:
            self.blocks[place] = None
        elif MOST_REMOVED * block.removed > block.end:
            block._compact()
        return row

    def keys_from(self, Py_ssize_t place, Py_ssize_t size):
        """Return at least `size` keys from the block with this number on, and the number of the
        next block, which is 0 after the last one."""
        cdef list keys = []
        cdef PackedDict block
        cdef uint32_t at
        while place < len(self.blocks):
            if len(keys) >= size:
                return keys, place
            block = self.blocks[place]
            place += 1
            if block is not None:
                keys += [block._key(at) for at in range(block.count)]
        return keys, 0

    def next_row(self, Py_ssize_t most_blocks=PY_SSIZE_T_MAX):
        """Return the next key with its row, in a fixed order that starts again at its end.

        Returns None without rows, or if the next `most_blocks` blocks have none.
        """
        cdef PackedDict block
        cdef uint32_t at
        while self.count and most_blocks > 0:
            if self.hand_block >= len(self.blocks):
                self.hand_block = 0
            block = self.blocks[self.hand_block]
            if block is not None and self.hand_row < block.count:
                at = self.hand_row
                self.hand_row += 1
                return block._key(at), block._row(at)
            self.hand_block += 1
            self.hand_row = 0
            most_blocks -= 1
        return None

    cdef Py_ssize_t _place(self, const uint8_t* key, Py_ssize_t size) noexcept:
        cdef uint64_t number = <uint64_t>ringfence_hash(key, size) >> TAG_BITS
        cdef uint64_t place = number & (2 * self.half - 1)
        if place >= <uint64_t>len(self.blocks):
            place = number & (self.half - 1)
        return place

    cdef int _put(
        self, const uint8_t* key, Py_ssize_t size, const uint8_t* row, Py_ssize_t row_size
    ) except -1:
        cdef Py_ssize_t place = self._place(key, size)
        cdef PackedDict block = self.blocks[place]
        if block is None:
            block = self.blocks[place] = PackedDict()
        cdef uint32_t count = block.count
        cdef uint64_t used = block.end - block.removed
        block._put(block._find(key, size), key, size, NULL, 0, row, <uint32_t>row_size)
        self.count += block.count - count
        self.used += block.end - block.removed - used
        return 0

    cdef int _split(self) except -1:
        """Add a block, and move keys of one other block into it."""
        cdef Py_ssize_t place = len(self.blocks) - self.half
        cdef PackedDict block = self.blocks[place]
        cdef uint32_t at
        cdef Record record
        self.blocks.append(None)
        if <uint64_t>len(self.blocks) == 2 * self.half:
            self.half *= 2
        if block is None:
            return 0
        self.blocks[place] = None
        for at in range(block.count):
            record = block._record(at)
            key = block._key(at)
            self._put(<uint8_t*><char*>key, len(key), record.row, record.row_size)
            self.count -= 1
            self.used -= _size(&record)
        return 0
