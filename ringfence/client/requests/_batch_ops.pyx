"""Compiled steps of `check_many` for each request; `batch_ops_plain` defines them."""

cimport cython
from cpython.dict cimport PyDict_CheckExact, PyDict_Size
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from ringfence.wire import CODE as _CODE
from ringfence.client.decision import Decision as _DecisionType
from ringfence.limiter import Code

cdef extern from "Python.h":
    object PySequence_Fast(object sequence, const char* message)
    PyObject** PySequence_Fast_ITEMS(object sequence)
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL

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
cdef tuple _SLOTS = (Decision._rule, Decision._row, Decision._data, Decision.allowed)
cdef long _DENIED = Code.DENIED.value
cdef long _NEVER = Code.NEVER.value
cdef PyObject* slots[FIELDS]
for _at in range(FIELDS):
    slots[_at] = <PyObject*>_SLOTS[_at]


def find_lone(dict known not None, name, requests):
    """See `batch_ops_plain.find_lone`."""
    requests = PySequence_Fast(requests, b"requests must be a sequence")
    cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(requests)
    cdef PyObject** each = PySequence_Fast_ITEMS(requests)
    cdef Py_ssize_t at
    cdef PyObject* value
    cdef PyObject* match
    cdef list rules = []
    cdef list keys = []
    for at in range(n):
        request = <object>each[at]
        if not PyDict_CheckExact(request) or PyDict_Size(request) != 1:
            return None
        value = PyDict_GetItemWithError(request, name)
        if value == NULL:
            return None
        match = PyDict_GetItemWithError(known, <object>value)
        if match == NULL:
            return None
        rule, key = <tuple?>match
        rules.append(rule)
        keys.append(key)
    return rules, keys


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
