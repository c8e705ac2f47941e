from libc.stdint cimport uint8_t, uint32_t, uint64_t

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


cdef bytes join_numbers(const uint8_t* head, Py_ssize_t head_size, list numbers)


cdef struct Record:
    uint8_t* key  # behind the first bytes that many keys share
    uint8_t* row
    uint32_t row_size
    uint8_t key_size
    uint8_t id


cdef class PackedDict:
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

    cdef void prefetch(self) noexcept
    cdef int _put(
        self, uint32_t at, const uint8_t* key, Py_ssize_t key_size,
        const uint8_t* head, uint32_t head_size, const uint8_t* rest, uint32_t rest_size,
    ) except -1
    cdef void _delete(self, uint32_t at) noexcept
    cdef uint32_t _find(self, const uint8_t* key, Py_ssize_t size) noexcept
    cdef bint _has_key(self, uint32_t at, const uint8_t* key, Py_ssize_t size) noexcept
    cdef uint8_t _id_of(self, const uint8_t* key, Py_ssize_t size) except? 0
    cdef Record _record(self, uint32_t at) noexcept
    cdef void _write(self, uint8_t* place, const Record* new, const uint8_t* key) noexcept
    cdef bytes _key(self, uint32_t at)
    cdef bytes _row(self, uint32_t at)
    cdef int _make_room(self, uint64_t more) except -1
    cdef int _compact(self) except -1
    cdef int _add_slots(self) except -1


cdef class PackedMap:
    cdef list blocks  # `PackedDict`, or None for an empty block
    cdef uint64_t half  # largest power of two below the number of blocks, or 1
    cdef uint64_t count
    cdef uint64_t used  # bytes of all records
    cdef Py_ssize_t hand_block
    cdef uint32_t hand_row

    cdef Py_ssize_t _place(self, const uint8_t* key, Py_ssize_t size) noexcept
    cdef int _put(
        self, const uint8_t* key, Py_ssize_t size, const uint8_t* row, Py_ssize_t row_size
    ) except -1
    cdef int _split(self) except -1
