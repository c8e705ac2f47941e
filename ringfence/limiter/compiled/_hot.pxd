from cpython.list cimport PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint64_t

from ringfence.limiter.compiled._algorithms cimport Answer
from ringfence.limiter.compiled._store cimport Store
from ringfence.limiter.packed._packed_dict cimport PackedMap


cdef extern from "Python.h":
    object PyLong_FromLongLong(long long number)


cdef inline void put_number(list column, Py_ssize_t at, int64_t number):
    """Replace a zero in a column of an answer by a number; most numbers stay zero."""
    value = PyLong_FromLongLong(number)
    Py_INCREF(value)
    Py_DECREF(column[at])
    PyList_SET_ITEM(column, at, value)


cdef int64_t cost_of(PyObject* cost) except -1
cdef object columns_of(list codes, list limits, list remaining, list retry, list reset, list delay,
                       list slot_ids)


cdef class HotTable:
    cdef public Store own
    cdef public list stores
    cdef public object overflow
    cdef public PackedMap cold
    cdef public object own_limit
    cdef public object own_amount
    cdef public int64_t most
    cdef public object last_limit  # last limit of a check; its store is cached
    cdef Store last_store
    cdef bint is_only_store
    cdef uint64_t frame  # frame in which `ready` is valid
    cdef Store ready

    cdef Py_ssize_t _size(self)
    cdef Store _ready(self, limit, now)
    cdef bint _decide(
        self, Store store, uint64_t identity, PyObject* key, int64_t cost, Answer* answer
    ) except -1
    cdef int numbers_of(
        self, PyObject* key, uint64_t identity, now, uint64_t* numbers, PyObject** found
    ) except -2
    cdef bint restore_state(self, PyObject* key, uint64_t identity, state, limit, now) except -1
    cdef Store any_store(self)
    cdef Store hot_store(self, uint64_t frame, now)
    cdef tuple decide_by_reference(self, PyObject* key, PyObject* cost, now)


cdef class RowPacker:
    cdef uint8_t* rows
    cdef uint8_t* end
    cdef size_t room
    cdef const uint8_t* last  # the key before
    cdef Py_ssize_t last_size
    cdef list limits
    cdef dict indexes
    cdef PyObject* limit
    cdef uint64_t index

    cdef int add_key(self, PyObject* name, size_t numbers) except -1
    cdef bytes packed(self)
    cdef int add_limit(self, limit) except -1
