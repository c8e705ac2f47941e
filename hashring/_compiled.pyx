"""Compiled `pick` of `shards`: the shard of each key of a frame, without a Python call per key."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from hashring._murmur cimport SHARD_SHIFT, murmur3

cdef extern from "Python.h":
    object PySequence_Fast(object sequence, const char* message)
    PyObject** PySequence_Fast_ITEMS(object sequence)
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)
    object PySequence_GetItem(object table, Py_ssize_t at)


def pick(keys, table):
    """See `shards.pick`."""
    keys = PySequence_Fast(keys, b"keys: not a sequence")
    cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
    cdef PyObject** names = PySequence_Fast_ITEMS(keys)
    cdef list picked = PyList_New(n)
    cdef Py_ssize_t at
    for at in range(n):
        key = <object>names[at]
        if not PyBytes_Check(key):
            raise TypeError(f"key: {key!r} is not bytes")
        item = PySequence_GetItem(
            table,
            murmur3(<const unsigned char*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) >> SHARD_SHIFT,
        )
        Py_INCREF(item)
        PyList_SET_ITEM(picked, at, item)
    return picked
