"""Compiled functions of `shards` for all keys of a frame or all shards, without a Python call
for each."""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from hashring._murmur cimport SHARD_SHIFT, murmur3

cdef extern from "Python.h":
    object PySequence_Fast(object sequence, const char* message)
    PyObject** PySequence_Fast_ITEMS(object sequence)
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)
    object PySequence_GetItem(object table, Py_ssize_t at)


cdef inline Py_ssize_t _shard_of(key) except -1:
    if not PyBytes_Check(key):
        raise TypeError(f"key: {key!r} is not bytes")
    return murmur3(<const unsigned char*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) >> SHARD_SHIFT


def pick(keys, table):
    """See `shards.pick`."""
    keys = PySequence_Fast(keys, b"keys: not a sequence")
    cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
    cdef PyObject** names = PySequence_Fast_ITEMS(keys)
    cdef list picked = PyList_New(n)
    cdef Py_ssize_t at
    for at in range(n):
        item = PySequence_GetItem(table, _shard_of(<object>names[at]))
        Py_INCREF(item)
        PyList_SET_ITEM(picked, at, item)
    return picked


def group_by(keys, table, const unsigned char[:] marked not None):
    """See `shards.group_by`."""
    keys = PySequence_Fast(keys, b"keys: not a sequence")
    cdef PyObject** names = PySequence_Fast_ITEMS(keys)
    cdef dict groups = {}
    cdef list group = None
    cdef Py_ssize_t at, shard
    last = groups  # No table contains it.
    for at in range(PySequence_Fast_GET_SIZE(keys)):
        shard = _shard_of(<object>names[at])
        if shard >= marked.shape[0]:
            raise IndexError("marked must have one byte per shard")
        if not marked[shard]:
            continue
        item = PySequence_GetItem(table, shard)
        if item is not last:
            last, group = item, groups.get(item)
            if group is None:
                groups[item] = group = []
        group.append(<object>names[at])
    return groups


def mark(table, item):
    """See `shards.mark`."""
    table = PySequence_Fast(table, b"table: not a sequence")
    cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(table)
    cdef PyObject** items = PySequence_Fast_ITEMS(table)
    cdef PyObject* last = NULL
    cdef bytes marked = PyBytes_FromStringAndSize(NULL, n)
    cdef char* marks = PyBytes_AS_STRING(marked)
    cdef bint is_equal = False
    cdef Py_ssize_t at
    for at in range(n):
        if items[at] != last:  # Successive shards often have the same owner.
            last = items[at]
            is_equal = <object>last == item
        marks[at] = is_equal
    return marked
