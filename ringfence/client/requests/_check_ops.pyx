"""Compiled operations of each check of a client; `check_ops_plain` defines them."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.long cimport PyLong_CheckExact
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

from time import monotonic_ns

from ringfence.client.decision import Decision as _DecisionType
from ringfence.client.requests.descriptors import MAX_COST as _MAX_COST
from ringfence.limiter import Code
from ringfence.peering.clock import SystemClock
from ringfence.rules.keys import MAX_KEY as _MAX_KEY
from ringfence.rules.keys import bounded, with_length
from ringfence.wire import CODE as _CODE
from ringfence.wire import Source

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
cdef object MAX_COST = _MAX_COST
cdef tuple _SLOTS = (Decision._rule, Decision._row, Decision._data, Decision.allowed)
cdef long _DENIED = Code.DENIED.value
cdef long _NEVER = Code.NEVER.value
cdef object OWNER = Source.OWNER.value
cdef PyObject* slots[FIELDS]
for _at in range(FIELDS):
    slots[_at] = <PyObject*>_SLOTS[_at]


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


cdef class Matches:
    """See `check_ops_plain.Matches`."""

    cdef public object rules
    cdef public dict known, of_any_value

    def __init__(self):
        self.known, self.of_any_value = {}, {}

    def find(self, rules, domain, descriptors):
        """See `check_ops_plain.Matches.find`."""
        return self._find(rules, domain, descriptors)

    def find_all(self, rules, domain, requests):
        """See `check_ops_plain.Matches.find_all`."""
        cdef list matched = [], keys = []
        for each in tuple(requests):  # A copy, because a key's code in Python could change it.
            found = self._find(rules, domain, each)
            if found is None:
                return None
            rule, key = <tuple?>found
            if rule is None:
                return None
            matched.append(rule)
            keys.append(key)
        return matched, keys

    cdef object _find(self, rules, domain, descriptors):
        if rules is self.rules and PyDict_CheckExact(descriptors):
            try:
                found = self._find_known(domain, <dict>descriptors)
            except (KeyError, TypeError):
                found = None  # Not known, or no text.
            if found is not None:
                return found
        return self.match(rules, domain, descriptors)

    cdef object _find_known(self, domain, dict entries):
        cdef PyObject* name = NULL
        cdef PyObject* value = NULL
        cdef PyObject* found
        cdef Py_ssize_t at = 0
        if PyDict_Size(entries) != 1:
            found = PyDict_GetItemWithError(self.known, (domain,))
            if found == NULL:
                return None
            known = <dict?><object>found
            found = PyDict_GetItemWithError(known, tuple(entries.items()))
            return None if found == NULL else <object>found
        PyDict_Next(entries, &at, &name, &value)
        key, sought = <object>name, <object>value  # Kept before other code can run.
        place = domain, key
        found = PyDict_GetItemWithError(self.of_any_value, place)
        if found == NULL:
            found = PyDict_GetItemWithError(self.known, place)
            if found == NULL:
                return None
            known = <dict?><object>found
            found = PyDict_GetItemWithError(known, sought)
            return None if found == NULL else <object>found
        rule, head = <tuple?><object>found
        key = _key(<bytes?>head, sought)
        return None if key is None else (rule, key)


cdef class LocalChecks:
    """See `check_ops_plain.LocalChecks`."""

    cdef Matches _matches
    cdef object _rules, _acquire, _release, _now, _offset, _decide_lone

    def __init__(self, Matches matches not None, rules, lock, clock, decide_lone):
        self._matches, self._rules = matches, rules
        self._acquire, self._release = lock.acquire, lock.release
        self._now, self._offset = clock.now, None
        if type(clock) is SystemClock:  # Read here, without a call of code in Python.
            self._now, self._offset = monotonic_ns, clock.offset
        self._decide_lone = decide_lone

    def check(self, domain, descriptors, cost):
        """See `check_ops_plain.LocalChecks.check`."""
        if not PyLong_CheckExact(cost) or not 0 <= cost <= MAX_COST:
            return None
        found = self._matches._find(self._rules, domain, descriptors)
        if found is None:
            return None
        rule, key = <tuple?>found
        return None if rule is None else self._decide(rule, key, cost)

    def decide(self, rule, key, cost):
        """See `check_ops_plain.LocalChecks.decide`."""
        return self._decide(rule, key, cost)

    cdef object _decide(self, rule, key, cost):
        cdef tuple row
        self._acquire()
        try:
            now = self._now()
            if self._offset is not None:
                now = now + self._offset
            row = self._decide_lone(key, cost, now, OWNER)
        finally:
            self._release()
        return _decision(rule, row[CODE], row)


cdef object _decision(rule, long code, row):
    cdef PyObject* values[FIELDS]
    allowed = (code != _DENIED and code != _NEVER) or (rule is not None and rule.shadow)
    values[0] = <PyObject*>rule
    values[1] = <PyObject*>row
    values[2] = <PyObject*>None
    values[3] = <PyObject*>allowed
    return ringfence_instance(Decision, slots, values, FIELDS)


@cython.boundscheck(True)
def decision_of(rule, row):
    """See `check_ops_plain.decision_of`."""
    return _decision(rule, row[CODE], row)


@cython.boundscheck(True)
def decisions_of(list rules not None, list rows not None):
    """See `check_ops_plain.decisions_of`."""
    cdef Py_ssize_t n = len(rows)
    cdef Py_ssize_t at
    if len(rules) != n:
        raise ValueError(f"{len(rules)} rules, but {n} rows")
    cdef list made = []
    for at in range(n):
        row = rows[at]
        made.append(_decision(rules[at], row[CODE], row))
    return made
