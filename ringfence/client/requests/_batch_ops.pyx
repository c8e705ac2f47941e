"""Compiled steps of `check_many` for each request; `batch_ops_plain` defines them."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Size
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

from ringfence.wire import CODE as _CODE
from ringfence.client.decision import Decision as _DecisionType
from ringfence.limiter import Code
from ringfence.rules.keys import MAX_KEY as _MAX_KEY
from ringfence.rules.keys import bounded, with_length

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    bint PyUnicode_Check(object value)
    bint PyUnicode_CheckExact(object value)
    const char* PyUnicode_AsUTF8AndSize(object value, Py_ssize_t* size)
    void PyErr_Clear()

cdef extern from *:
    """
    /* Make an instance of a class with slots and set the slots, without a call of __init__. */
    static PyObject *ringfence_instance(PyObject *cls, PyObject **slots, PyObject **values, int n) {
        PyTypeObject *type = (PyTypeObject *)cls;
        PyObject *made = type->tp_alloc(type, 0);
        if (made == NULL) return NULL;
        for (int i = 0; i < n; i++) {
            if (Py_TYPE(slots[i])->tp_descr_set(slots[i], made, values[i]) < 0) {
                Py_DECREF(made);
                return NULL;
            }
        }
        return made;
    }
    """
    object ringfence_instance(object cls, PyObject** slots, PyObject** values, int n)

cdef enum:
    FIELDS = 4

cdef object Decision = _DecisionType
cdef Py_ssize_t CODE = _CODE
cdef Py_ssize_t MAX_KEY = _MAX_KEY
cdef tuple _SLOTS = (Decision._rule, Decision._row, Decision._data, Decision.allowed)
cdef long _DENIED = Code.DENIED.value
cdef long _NEVER = Code.NEVER.value
cdef PyObject* slots[FIELDS]
for _at in range(FIELDS):
    slots[_at] = <PyObject*>_SLOTS[_at]


def find_lone(dict known not None, name, requests):
    """See `batch_ops_plain.find_lone`."""
    # A copy, because code in Python that runs for a value or a key could change the list.
    cdef tuple each = tuple(requests)
    cdef PyObject* value
    cdef PyObject* match
    cdef list rules = []
    cdef list keys = []
    for request in each:
        if not PyDict_CheckExact(request) or PyDict_Size(request) != 1:
            return None
        value = PyDict_GetItemWithError(request, name)
        if value == NULL:
            return None
        item = <object>value
        match = PyDict_GetItemWithError(known, item)
        if match == NULL:
            return None
        rule, key = <tuple?>match
        rules.append(rule)
        keys.append(key)
    return rules, keys


cdef object _key(bytes head, object value):
    cdef Py_ssize_t begin, size
    cdef const char* text
    if not PyUnicode_Check(value):
        return None
    begin = PyBytes_GET_SIZE(head)
    text = PyUnicode_AsUTF8AndSize(value, &size) if PyUnicode_CheckExact(value) else NULL
    if text == NULL or begin + 1 + size > MAX_KEY:
        PyErr_Clear()  # A lone surrogate: `with_length` encodes it.
        return bounded(head + with_length(value))
    key = PyBytes_FromStringAndSize(NULL, begin + 1 + size)
    cdef char* into = PyBytes_AS_STRING(key)
    memcpy(into, PyBytes_AS_STRING(head), begin)
    into[begin] = <char>size
    memcpy(into + begin + 1, text, size)
    return key


def key_of_value(bytes head not None, value):
    """See `batch_ops_plain.key_of_value`."""
    return _key(head, value)


def keys_of_values(bytes head not None, name, requests):
    """See `batch_ops_plain.keys_of_values`."""
    # A copy, because code in Python that runs for a value or a key could change the list.
    cdef tuple each = tuple(requests)
    cdef PyObject* value
    cdef list keys = []
    for request in each:
        if not PyDict_CheckExact(request) or PyDict_Size(request) != 1:
            return None
        value = PyDict_GetItemWithError(request, name)
        if value == NULL:
            return None
        item = <object>value
        key = _key(head, item)
        if key is None:
            return None
        keys.append(key)
    return keys


@cython.boundscheck(True)
def decisions(list rules not None, list rows not None):
    """See `batch_ops_plain.decisions`."""
    cdef Py_ssize_t n = len(rows)
    cdef Py_ssize_t at
    cdef long code
    cdef PyObject* values[FIELDS]
    if len(rules) != n:
        raise ValueError(f"{len(rules)} rules, but {n} rows")
    cdef list made = PyList_New(n)
    values[2] = <PyObject*>None
    for at in range(n):
        rule, row = rules[at], rows[at]
        code = row[CODE]
        allowed = True if code != _DENIED and code != _NEVER else rule.shadow
        values[0] = <PyObject*>rule
        values[1] = <PyObject*>row
        values[3] = <PyObject*>allowed
        decision = ringfence_instance(Decision, slots, values, FIELDS)
        Py_INCREF(decision)
        PyList_SET_ITEM(made, at, decision)
    return made
