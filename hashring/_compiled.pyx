"""Compiled functions of `shards` and `placement` for all keys of a frame or all shards, without a
Python call for each."""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint64_t

from hashring._murmur cimport SHARD_SHIFT, murmur3

cdef enum:
    SHARDS = 1 << 14
    POINT_SHIFT = 50  # from the 64 bits of a point to the 14 bits of a shard

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


def place_shards(const uint64_t[:] points not None, list names not None, dict label_of not None):
    """See `placement.place_shards`."""
    cdef Py_ssize_t size = points.shape[0]
    if len(names) != size:
        raise ValueError("points and names must be parallel")
    if not size:
        return (), ()
    cdef bint has_standbys = len(set(label_of.values())) > 1
    cdef tuple owners = PyTuple_New(SHARDS)
    cdef tuple standbys = PyTuple_New(SHARDS if has_standbys else 0)
    cdef Py_ssize_t shard, end = 0, vnode = 0, other = 0
    for shard in range(SHARDS):
        if shard == end:
            while vnode < size and <Py_ssize_t>(points[vnode] >> POINT_SHIFT) < shard:
                vnode += 1
            end = SHARDS if vnode == size else <Py_ssize_t>(points[vnode] >> POINT_SHIFT) + 1
            owner = names[vnode % size]
            if has_standbys and vnode >= other:
                label, other = label_of[owner], vnode + 1
                while label_of[names[other % size]] == label:
                    other += 1
                standby = names[other % size]
        Py_INCREF(owner)
        PyTuple_SET_ITEM(owners, shard, owner)
        if has_standbys:
            Py_INCREF(standby)
            PyTuple_SET_ITEM(standbys, shard, standby)
    return owners, standbys
