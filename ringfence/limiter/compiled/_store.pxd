from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from ringfence.limiter.compiled._algorithms cimport Answer, Instant, Params
from ringfence.limiter.compiled._siphash cimport SipKey
from ringfence.limiter.compiled._slots cimport KeyArena, Slots


cdef enum Decided:
    DONE = 0
    ABSENT = 1  # not decided: no entry here, but another store may have one
    FULL = 2  # not decided: no room for a new entry
    OUT_OF_RANGE = 3  # not decided: outside the range of the compiled arithmetic


cdef class Store:
    cdef Params params
    cdef Instant instant
    cdef KeyArena[2] arenas
    cdef Slots now_in
    cdef Slots moved_from
    cdef bint is_moving
    cdef bint keeps_keys
    cdef bint is_within
    cdef uint64_t bound
    cdef uint64_t next_place
    cdef uint64_t released
    cdef uint64_t hand
    cdef int64_t room
    cdef size_t ring_bytes
    cdef SipKey key
    cdef readonly object scheme

    cdef uint64_t identity(self, PyObject* name) noexcept
    cdef bint set_instant(self, int64_t now) except -1
    cdef void prefetch(self, uint64_t identity) noexcept nogil
    cdef int decide(
        self, uint64_t identity, PyObject* name, int64_t cost, bint is_only_store, Answer* answer
    ) except -1
    cdef bint remove(self, uint64_t identity) noexcept
    cdef bint save(self, uint64_t identity, uint64_t* words) noexcept nogil
    cdef void restore_saved(self, uint64_t identity, bint existed, const uint64_t* words) noexcept
    cdef bint restore_state(
        self, uint64_t identity, PyObject* name, const int64_t* numbers, Py_ssize_t count
    ) except -1
    cdef Slots* _part(self, uint64_t identity, uint64_t* begin) noexcept nogil
    cdef uint64_t* _find(self, uint64_t identity) noexcept nogil
    cdef int _apply(self, uint64_t* words, int64_t cost, Answer* answer) except -1
    cdef int _write(
        self, uint64_t identity, uint64_t* word, uint64_t* words, PyObject* name
    ) except -1
    cdef int _insert(self, uint64_t identity, uint64_t* words, PyObject* name) except -1
    cdef int _move_or_resize(self, int least_load) except -1
    cdef int _resize(self) except -1
    cdef void _move_on(self, int steps) noexcept
    cdef void _sweep(self, int steps) noexcept
    cdef void _close(self, Slots* part) noexcept nogil
    cdef void _release(self, Slots* part, uint64_t place) noexcept
    cdef void _remove(self, Slots* part, uint64_t place) noexcept
    cdef int64_t _evict(self) noexcept
