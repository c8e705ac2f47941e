cimport cython


cdef int _LAST_COUNTED, _CHARGED
cdef long long _MOST_UNITS


cdef class Charges:
    cdef public long long span, current, before, first, last, newest

    cpdef turn(self, long long span)


@cython.locals(charges=Charges)
cpdef add_units(dict known, object name, long long units, long long span, long long now)


@cython.locals(
    keys=list, costs=list, which=list, codes=list, slot_ids=list, sources=list, spans=dict,
    rule=bytes, key=bytes, row=cython.Py_ssize_t, cost=cython.longlong, code=cython.int,
    source=cython.int, limit=cython.int, last_limit=cython.int, span=cython.longlong,
)
cpdef add_batch(dict known, object batch, object results, long long now, object span_of)
