"""Dictionary from keys to rows of bytes in two blocks of memory, without an object per key.

A record is the lengths of key and row, the key and the row. An index has the place of each record
in the order of insertion, and one byte of the hash of its key. A look-up compares this byte for all
keys, so the dictionary suits the few hundred keys of a shard, not millions.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

cdef extern from "Python.h":
    Py_hash_t PyObject_Hash(object) except -1



cdef enum:
    SPARE = 16  # 1 / 16 of the memory may be unused
    STEP = 64  # bytes

cdef packed struct Lengths:
    uint32_t row
    uint8_t key


cdef class PackedRows:
    """Rows by key, with the interface of `dict[bytes, bytes]` as far as replicas need it."""

    cdef uint8_t* records
    cdef uint64_t end  # bytes of all records, removed ones included
    cdef uint64_t room
    cdef uint64_t removed  # bytes of the records that are not in the index
    cdef uint32_t* places
    cdef uint8_t* tags  # behind the places, in the same block
    cdef uint32_t count
    cdef uint32_t slots

    def __dealloc__(self):
        free(self.records)
        free(self.places)

    def __len__(self):
        return self.count

    @property
    def nbytes(self) -> int:
        """Return the allocated bytes."""
        return self.room + self.slots * (sizeof(uint32_t) + 1)

    def get(self, bytes key not None):
        """Return the row of a key; None if it has none."""
        cdef uint32_t at = self._find(key)
        return None if at == self.count else self._row(at)

    def __setitem__(self, bytes key not None, bytes row not None):
        cdef Lengths lengths = Lengths(<uint32_t>len(row), <uint8_t>len(key))
        cdef uint64_t size = sizeof(Lengths) + len(key) + len(row)
        cdef uint32_t at = self._find(key)
        cdef uint8_t* record
        if len(key) > 255:
            raise ValueError(f"a key has at most 255 bytes, this one {len(key)}")
        if at < self.count and self._lengths(at).row == lengths.row:
            record = self.records + self.places[at]
            memcpy(record + sizeof(Lengths) + lengths.key, <char*>row, lengths.row)
            return
        if at == self.count == self.slots:
            self._add_slots()
        if self.end + size > self.room:
            self._make_room(size)
        if at < self.count:
            self.removed += self._size(at)
        else:
            self.tags[at] = <uint8_t>PyObject_Hash(key)
            self.count += 1
        self.places[at] = <uint32_t>self.end
        record = self.records + self.end
        memcpy(record, &lengths, sizeof(Lengths))
        memcpy(record + sizeof(Lengths), <char*>key, lengths.key)
        memcpy(record + sizeof(Lengths) + lengths.key, <char*>row, lengths.row)
        self.end += size

    def __delitem__(self, bytes key not None):
        cdef uint32_t at = self._find(key)
        if at == self.count:
            raise KeyError(key)
        self.removed += self._size(at)
        self.count -= 1
        memmove(self.places + at, self.places + at + 1, (self.count - at) * sizeof(uint32_t))
        memmove(self.tags + at, self.tags + at + 1, self.count - at)

    def items(self):
        """Yield each key with its row, in the order in which the keys were added.

        The rows must not change meanwhile.
        """
        cdef uint32_t at
        for at in range(self.count):
            yield self._key(at), self._row(at)

    cdef uint32_t _find(self, bytes key) except? 4294967295:
        """Return the index of a key; the number of keys if it has no row."""
        cdef uint8_t tag = <uint8_t>PyObject_Hash(key)
        cdef uint32_t at = 0
        cdef uint8_t* found
        while at < self.count:
            found = <uint8_t*>memchr(self.tags + at, tag, self.count - at)
            if found == NULL:
                break
            at = <uint32_t>(found - self.tags)
            if self._lengths(at).key == len(key) and not memcmp(
                self.records + self.places[at] + sizeof(Lengths), <char*>key, len(key)
            ):
                return at
            at += 1
        return self.count

    cdef Lengths _lengths(self, uint32_t at) noexcept:
        cdef Lengths lengths
        memcpy(&lengths, self.records + self.places[at], sizeof(Lengths))  # It is not aligned.
        return lengths

    cdef uint64_t _size(self, uint32_t at) noexcept:
        return sizeof(Lengths) + <uint64_t>self._lengths(at).key + self._lengths(at).row

    cdef bytes _key(self, uint32_t at):
        cdef uint8_t* key = self.records + self.places[at] + sizeof(Lengths)
        return key[: self._lengths(at).key]

    cdef bytes _row(self, uint32_t at):
        cdef uint8_t* key = self.records + self.places[at] + sizeof(Lengths)
        return key[self._lengths(at).key : self._size(at) - sizeof(Lengths)]

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
        cdef uint8_t* records = <uint8_t*>malloc(self.end - self.removed + 1)
        if records == NULL:
            raise MemoryError
        for at in range(self.count):
            size = self._size(at)
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
