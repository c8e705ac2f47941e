"""Compiled `pick` of `shards`: the shard of each key of a frame, without a Python call per key."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t

cdef extern from "Python.h":
    object PySequence_Fast(object sequence, const char* message)
    PyObject** PySequence_Fast_ITEMS(object sequence)
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)
    object PySequence_GetItem(object table, Py_ssize_t at)

cdef enum:
    SHIFT = 18  # from the 32 bits of a hash to the 14 bits of a shard


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
            murmur3(<const unsigned char*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) >> SHIFT,
        )
        Py_INCREF(item)
        PyList_SET_ITEM(picked, at, item)
    return picked


cdef inline uint32_t rotated(uint32_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (32 - bits))


cdef inline uint32_t scrambled(uint32_t block) noexcept nogil:
    return rotated(block * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef uint32_t murmur3(const unsigned char* key, Py_ssize_t size) noexcept nogil:
    """Compute MurmurHash3 x86_32 with seed 0, as published by Austin Appleby."""
    cdef uint32_t state = 0, tail = 0
    cdef Py_ssize_t at
    for at in range(0, size - 3, 4):
        state ^= scrambled(
            key[at]
            | <uint32_t>key[at + 1] << 8
            | <uint32_t>key[at + 2] << 16
            | <uint32_t>key[at + 3] << 24
        )
        state = rotated(state, 13) * 5 + <uint32_t>0xE6546B64
    for at in range(size - 1, size - size % 4 - 1, -1):
        tail = tail << 8 | key[at]
    state ^= scrambled(tail)  # 0 when no bytes are left.
    state ^= <uint32_t>size
    state = (state ^ state >> 16) * <uint32_t>0x85EBCA6B
    state = (state ^ state >> 13) * <uint32_t>0xC2B2AE35
    return state ^ state >> 16
