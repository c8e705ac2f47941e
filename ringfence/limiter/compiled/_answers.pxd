"""Numbers in the columns of an answer. Columns begin as zeros, and most numbers stay zero."""

from cpython.list cimport PyList_SET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t


cdef extern from "Python.h":
    object PyLong_FromLongLong(long long number)


cdef inline void put_number(list column, Py_ssize_t at, int64_t number):
    """Replace a zero by a number."""
    value = PyLong_FromLongLong(number)
    Py_INCREF(value)
    Py_DECREF(column[at])
    PyList_SET_ITEM(column, at, value)
