"""Fast path of most checks: one limit, one store, no Python call per key.

Keys that the store cannot decide are passed one by one to `slow_verdict` of the subclass.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from ringfence.limiter.compiled._algorithms cimport LATEST, LOG, Answer
from ringfence.limiter.compiled._ring cimport is_expired
from ringfence.limiter.compiled._slots cimport ringfence_prefetch
from ringfence.limiter.compiled._states cimport state_numbers
from ringfence.limiter.compiled._store cimport DONE, FULL, Store

from ringfence.limiter.outcome import Code
from ringfence.limiter.outcome import Outcome as _OutcomeType
from ringfence.limiter.outcome import Outcomes as _OutcomesType
from ringfence.limiter.reference import columns

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyBytes_Check(PyObject* value) nogil
    object PySequence_Fast(object sequence, const char* message)
    PyObject** PySequence_Fast_ITEMS(object sequence) nogil
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence) nogil

cdef extern from *:
    """
    /* Make an instance of a class with slots and set the slots. A frozen dataclass would call
       object.__setattr__ for each slot. */
    static PyObject *ringfence_new(PyObject *cls, PyObject **fields, PyObject **values, int n) {
        PyTypeObject *type = (PyTypeObject *)cls;
        PyObject *made = type->tp_alloc(type, 0);
        if (made == NULL) return NULL;
        for (int i = 0; i < n; i++) {
            if (Py_TYPE(fields[i])->tp_descr_set(fields[i], made, values[i]) < 0) {
                Py_DECREF(made);
                return NULL;
            }
        }
        return made;
    }
    """
    object ringfence_new(object cls, PyObject** fields, PyObject** values, int n)

cdef enum:
    FRAME = 256
    FIELDS = 7
    PREFETCH_DISTANCE = 8  # keys whose bytes are prefetched before they are hashed

cdef int64_t MOST = 0x7FFFFFFFFFFFFFFF

cdef object Outcome = _OutcomeType
cdef object Outcomes = _OutcomesType
cdef object ZERO = 0
cdef tuple CODES = tuple(Code)
cdef tuple _NAMES = (
    "code", "limit", "remaining", "retry_after_ns", "reset_after_ns", "delay_ns", "slot_id"
)
cdef tuple _COLUMNS = (
    "codes", "limits", "remaining", "retry_after_ns", "reset_after_ns", "delay_ns", "slot_ids"
)
cdef tuple _ROW_SLOTS = tuple([getattr(Outcome, name) for name in _NAMES])
cdef tuple _COLUMN_SLOTS = tuple([getattr(Outcomes, name) for name in _COLUMNS])
cdef PyObject* row_slots[FIELDS]
cdef PyObject* column_slots[FIELDS]
for _at in range(FIELDS):
    row_slots[_at] = <PyObject*>_ROW_SLOTS[_at]
    column_slots[_at] = <PyObject*>_COLUMN_SLOTS[_at]

cdef object columns_of(list codes, list limits, list remaining, list retry, list reset, list delay,
                     list slot_ids):
    cdef PyObject* values[FIELDS]
    values[0] = <PyObject*>codes
    values[1] = <PyObject*>limits
    values[2] = <PyObject*>remaining
    values[3] = <PyObject*>retry
    values[4] = <PyObject*>reset
    values[5] = <PyObject*>delay
    values[6] = <PyObject*>slot_ids
    return ringfence_new(Outcomes, column_slots, values, FIELDS)


cdef int64_t cost_of(PyObject* cost) except -1:
    """Read a cost. A cost above 63 bits counts as the largest one, which is always denied."""
    cdef int overflow = 0
    cdef int64_t read = PyLong_AsLongLongAndOverflow(<object>cost, &overflow)
    if overflow > 0:
        return MOST
    if read < 0:
        raise ValueError(f"cost: {<object>cost} is negative; use refund to give back")
    return read


cdef class HotTable:
    """Stores of one table, and the checks that they can decide.

    The counter of a key is in one of the `stores` or in `overflow`, which uses the reference
    implementation. The subclass decides the checks that the store cannot decide.
    """

    def __len__(self):
        return self._size()

    def check(self, bytes key not None, cost, now, limit=None):
        """Spend `cost` units of a key if they are available; cost 0 peeks."""
        cdef int64_t units = cost_of(<PyObject*>cost)
        cdef Store store = self._ready(limit, now)
        cdef Answer answer
        cdef PyObject* values[FIELDS]
        cdef tuple row
        amount = self.own_amount if limit is None else limit.amount
        if store is None or not self._decide(
            store, store.identity(<PyObject*>key), <PyObject*>key, units, &answer
        ):
            row = self.slow_verdict(key, cost, now, limit)
            return Outcome(CODES[row[0]], amount, *row[1:])
        remaining = PyLong_FromLongLong(answer.remaining)
        retry_after = PyLong_FromLongLong(answer.retry_after)
        reset_after = PyLong_FromLongLong(answer.reset_after)
        delay = PyLong_FromLongLong(answer.delay)
        values[0] = <PyObject*>CODES[answer.code]
        values[1] = <PyObject*>amount
        values[2] = <PyObject*>remaining
        values[3] = <PyObject*>retry_after
        values[4] = <PyObject*>reset_after
        values[5] = <PyObject*>delay
        values[6] = <PyObject*>ZERO
        return ringfence_new(Outcome, row_slots, values, FIELDS)

    def state(self, bytes key not None, now):
        """Return what `Table.state` returns; counters of compiled stores need no Python object."""
        cdef PyObject* store = NULL
        cdef uint64_t[STATE_NUMBERS] numbers
        cdef int at, count = self.numbers_of(<PyObject*>key, 0, now, numbers, &store)
        if count < 0:
            return self.slow_state(key, now)
        if not count:
            return None
        return [numbers[at] for at in range(count)], (<Store>store).scheme.limit, {}

    def restore(self, bytes key not None, state, limit, remote, now):
        """Replace a counter as `Table.restore` does; compiled stores need no Python object."""
        cdef int64_t[STATE_NUMBERS] numbers
        cdef Py_ssize_t at, count = len(state)
        cdef int overflow = 0
        cdef Store store = None if remote or count > STATE_NUMBERS else self._ready(limit, now)
        if store is not None and self.is_only_store:
            for at in range(count):
                numbers[at] = PyLong_AsLongLongAndOverflow(state[at], &overflow)
                if overflow or numbers[at] < 0:
                    self.slow_restore(key, state, limit, remote, now)
                    return
            if store.restore_state(
                store.identity(<PyObject*>key), <PyObject*>key, numbers, count
            ):
                return
        self.slow_restore(key, state, limit, remote, now)

    def verdicts(self, keys, costs, now, limit=None):
        """Decide as `check_many` does, and return rows."""
        cdef Store store = self._ready(limit, now)
        cdef Answer answer
        cdef list rows = []
        for cost in costs:
            cost_of(<PyObject*>cost)
        if store is None and not self.stores:
            return self.slow_verdicts(keys, costs, now, limit)
        for key, cost in zip(keys, costs, strict=True):
            if not isinstance(key, bytes):
                raise TypeError(f"key: {key!r} is not bytes")
            if store is None or not self._decide(
                store, store.identity(<PyObject*>key), <PyObject*>key, cost_of(<PyObject*>cost),
                &answer,
            ):
                rows.append(self.slow_verdict(key, cost, now, limit))
                store = self._ready(limit, now)
            else:
                rows.append(
                    (answer.code, answer.remaining, answer.retry_after, answer.reset_after,
                     answer.delay, 0)
                )
        return rows

    def check_many(self, keys, costs, now, limit=None):
        """Decide checks in order, as `check` does; cost 0 peeks.

        Raises `ValueError` when a cost is negative or the lengths differ.
        """
        keys = PySequence_Fast(keys, b"keys: not a sequence")
        costs = PySequence_Fast(costs, b"costs: not a sequence")
        cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
        cdef Py_ssize_t first, last, at
        cdef PyObject** names = PySequence_Fast_ITEMS(keys)
        cdef PyObject** units = PySequence_Fast_ITEMS(costs)
        if n != PySequence_Fast_GET_SIZE(costs):
            raise ValueError(f"{n} keys, but {len(costs)} costs")
        for at in range(n if n > FRAME else 0):
            cost_of(units[at])  # Raises for an invalid cost before any check is charged.
        cdef uint64_t[FRAME] identities
        cdef int64_t[FRAME] amounts
        cdef Store store
        cdef Answer answer
        cdef tuple row
        amount = self.own_amount if limit is None else limit.amount
        store = self._ready(limit, now)
        if store is None and not self.stores:
            return columns(self.slow_verdicts(keys, costs, now, limit), [amount] * n)
        cdef list codes = [ZERO] * n
        cdef list remaining = [ZERO] * n
        cdef list retry = [ZERO] * n
        cdef list reset = [ZERO] * n
        cdef list delay = [ZERO] * n
        cdef list slot_ids = [ZERO] * n
        for first in range(0, n, FRAME):
            last = min(first + FRAME, n)
            store = self._ready(limit, now)
            for at in range(first, last):
                if at + PREFETCH_DISTANCE < last:
                    ringfence_prefetch(names[at + PREFETCH_DISTANCE])
                    ringfence_prefetch(<char*>names[at + PREFETCH_DISTANCE] + 48)
                amounts[at - first] = cost_of(units[at])
                if not PyBytes_Check(names[at]):
                    raise TypeError(f"key: {<object>names[at]!r} is not bytes")
                if store is not None:
                    identities[at - first] = store.identity(names[at])
                    store.prefetch(identities[at - first])
            for at in range(first, last):
                if store is None or not self._decide(
                    store, identities[at - first], names[at], amounts[at - first], &answer
                ):
                    row = self.slow_verdict(<object>names[at], <object>units[at], now, limit)
                    codes[at], remaining[at], retry[at], reset[at], delay[at], slot_ids[at] = row
                    if store is not None:
                        store = self._ready(limit, now)
                    continue
                if answer.code:
                    put_number(codes, at, answer.code)
                if answer.remaining:
                    put_number(remaining, at, answer.remaining)
                if answer.retry_after:
                    put_number(retry, at, answer.retry_after)
                if answer.reset_after:
                    put_number(reset, at, answer.reset_after)
                if answer.delay:
                    put_number(delay, at, answer.delay)
        return columns_of(codes, [amount] * n, remaining, retry, reset, delay, slot_ids)

    cdef Py_ssize_t _size(self):
        cdef Py_ssize_t size = len(self.overflow)
        cdef Store store
        for store in self.stores:
            size += store.now_in.count + store.moved_from.count
        return size

    cdef Store _ready(self, limit, now):
        """Return the store that decides by a limit now, or None."""
        cdef Store store
        cdef int64_t instant
        cdef Py_ssize_t size
        cdef int overflow = 0
        if limit is None or limit is self.own_limit:
            store = self.own
        elif limit is self.last_limit:
            store = self.last_store
        else:
            store = self.store_for(limit)
            self.last_limit = limit
            self.last_store = store
        if store is None:
            return None
        instant = PyLong_AsLongLongAndOverflow(now, &overflow)
        if overflow or not 0 <= instant < LATEST:
            return None
        if not store.set_instant(instant):
            store = self.renewed(store, now)
            self.last_limit = None
            if store is None or not store.set_instant(instant):
                return None
        size = self._size()
        store.room = self.most - size
        self.is_only_store = size == <Py_ssize_t>(store.now_in.count + store.moved_from.count)
        return store

    cdef bint _decide(
        self, Store store, uint64_t identity, PyObject* key, int64_t cost, Answer* answer
    ) except -1:
        """Decide one check; return False if only `slow_verdict` can."""
        cdef int decided = store.decide(identity, key, cost, self.is_only_store, answer)
        if decided == FULL:
            self.evict(1, store.instant.now)
            store.room = self.most - self._size()
            decided = store.decide(identity, key, cost, self.is_only_store, answer)
        return decided == DONE

    cdef int numbers_of(
        self, PyObject* key, uint64_t identity, now, uint64_t* numbers, PyObject** found
    ) except -2:
        """Write the state of a key, and the store that has it; return its length, 0 for an unused key.

        `identity` is that of the key in its stores, or 0. Returns -1 if only `slow_state` can read
        the counter.
        """
        cdef Store store
        cdef uint64_t* word
        cdef int overflow = 0
        cdef int64_t instant = PyLong_AsLongLongAndOverflow(now, &overflow)
        for store in self.stores:
            if not identity:
                identity = store.identity(key)  # Stores of a table share their secret.
            word = store._find(identity)
            if word == NULL:
                continue
            if (
                overflow or not 0 <= instant < LATEST or store.params.kind == LOG
                or not store.set_instant(instant)
            ):
                return -1
            if is_expired(&store.params, &store.instant, word + 1):
                return 0
            found[0] = <PyObject*>store
            return state_numbers(&store.params, &store.instant, word + 1, numbers)
        return -1 if self.overflow else 0

    cdef Store any_store(self):
        """Return a store to compute the identities of keys, which are equal in all stores."""
        return <Store>self.stores[0] if self.stores else None

    cdef Store hot_store(self, uint64_t frame, now):
        """Return the store of the table's own limit, which is looked up once per frame."""
        if self.frame != frame:
            self.frame = frame
            self.ready = self._ready(None, now)
        return self.ready

    cdef tuple decide_by_reference(self, PyObject* key, PyObject* cost, now):
        """Decide by the reference implementation. The store may be another one afterwards."""
        self.frame = 0
        return self.slow_verdict(<object>key, <object>cost, now, None)
