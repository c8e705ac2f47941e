"""Fast path of most checks: one limit, one store, no Python call per key; and packed rows.

Keys that the store cannot decide are passed one by one to `slow_verdict` of the subclass.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from ringfence.limiter.compiled._algorithms cimport LATEST, Answer
from ringfence.limiter.compiled._ring cimport is_expired
from ringfence.limiter.compiled._slots cimport ringfence_prefetch
from ringfence.limiter.compiled._states cimport (
    LONGEST_PACKED_KEY, LONGEST_PACKED_NUMBER, MOST_NUMBERS, PackedRow, first_packed_row,
    next_packed_row, packed_number, put_packed_number, state_numbers,
)
from ringfence.limiter.compiled._store cimport DONE, FULL, Store

from ringfence.limiter.outcome import Code
from ringfence.limiter.outcome import Outcome as _OutcomeType
from ringfence.limiter.outcome import Outcomes as _OutcomesType
from ringfence.limiter.reference import columns

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 18446744073709551615
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

cdef uint64_t[MOST_NUMBERS] state_of_key  # during one call

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

    The counter of a key is in one of the `stores`, or in `overflow` or `cold`, which use the
    reference implementation. The subclass decides the checks that the store cannot decide.
    """

    def __cinit__(self, *args, **kwargs):
        self.cold = PackedMap()

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
        cdef int at, count = self.numbers_of(<PyObject*>key, 0, now, state_of_key, &store)
        if count < 0:
            return self.slow_state(key, now)
        if not count:
            return None
        return [state_of_key[at] for at in range(count)], (<Store>store).scheme.limit, {}

    def restore(self, bytes key not None, state, limit, remote, now):
        """Replace a counter as `Table.restore` does; compiled stores need no Python object."""
        if remote or not self.restore_state(<PyObject*>key, 0, state, limit, now):
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
        cdef Py_ssize_t size = len(self.overflow) + self.cold.count
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
                overflow or not 0 <= instant < LATEST or not store.set_instant(instant)
            ):
                return -1
            if is_expired(&store.params, &store.instant, word + 1):
                return 0
            found[0] = <PyObject*>store
            return state_numbers(&store.params, &store.instant, word + 1, numbers)
        return -1 if self.overflow or self.cold.count else 0

    cdef bint restore_state(
        self, PyObject* key, uint64_t identity, state, limit, now
    ) except -1:
        """Replace a counter by a state from another node; return False, without effect, if only
        `slow_restore` can.

        `identity` is that of the key in the stores, or 0.
        """
        cdef int64_t* numbers = <int64_t*>state_of_key
        cdef Py_ssize_t at, count = len(state)
        cdef int overflow = 0
        cdef Store store = self._ready(limit, now) if count <= MOST_NUMBERS else None
        if store is None or not self.is_only_store:
            return False
        for at in range(count):
            numbers[at] = PyLong_AsLongLongAndOverflow(state[at], &overflow)
            if overflow or numbers[at] < 0:
                return False
        return store.restore_state(identity or store.identity(key), key, numbers, count)

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


def check_rows(
    bytes packed not None, Py_ssize_t count, uint64_t limits, Py_ssize_t shortest_key,
    Py_ssize_t longest_key,
) -> None:
    """Validate packed rows as `ringfence.limiter.packed.packed_snapshot` does. Raises `ValueError`."""
    cdef PackedRow row
    cdef Py_ssize_t found = 0
    first_packed_row(&row, <uint8_t*><char*>packed, len(packed))
    while row.next < row.end:
        found += 1
        if not next_packed_row(&row):
            raise ValueError(f"row {found} is not a packed row")
        if found > count or not shortest_key <= row.key_size <= longest_key:
            raise ValueError(f"row {found} is one too many, or its key has a wrong length")
        if row.numbers and row.limit >= limits:
            raise ValueError(f"row {found} has a limit that does not exist")
    if found < count:
        raise ValueError(f"there must be {count} rows, got {found}")


def unpack_rows(bytes packed not None) -> tuple[list[bytes], list[int], list[list[int]]]:
    """Return packed rows in columns, as `ringfence.limiter.packed.packed_snapshot` does."""
    cdef PackedRow row
    cdef list keys = [], which = [], states = [], state
    cdef const uint8_t* place
    cdef uint64_t at, number
    first_packed_row(&row, <uint8_t*><char*>packed, len(packed))
    while row.next < row.end:
        if not next_packed_row(&row):
            raise ValueError(f"row {len(keys) + 1} is not a packed row")
        state, place = [], row.state
        for at in range(row.numbers):
            packed_number(&place, row.next, &number)
            state.append(number)
        keys.append(PyBytes_FromStringAndSize(<const char*>row.key, row.key_size))
        which.append(row.limit)
        states.append(state)
    return keys, which, states


def pack_rows(rows) -> bytes:
    """Pack keys, indexes of limits and states, as `ringfence.limiter.packed.packed_snapshot` does."""
    cdef RowPacker packer = RowPacker()
    cdef bytes key
    cdef list state
    cdef object last = None
    for key, limit, state in rows:
        if key is None or state is None:
            raise TypeError("a row must be a key, the index of a limit and a state")
        packer.add_key(<PyObject*>key, len(state))
        last = key  # The packer refers to its bytes.
        if state:
            packer.end = put_packed_number(packer.end, PyLong_AsUnsignedLongLong(limit))
        for number in state:
            packer.end = put_packed_number(packer.end, PyLong_AsUnsignedLongLong(number))
    return packer.packed()


cdef class RowPacker:
    """Writer of packed rows, see `ringfence.limiter.packed.packed_snapshot`."""

    def __cinit__(self):
        self.limits, self.indexes = [], {}

    def __dealloc__(self):
        free(self.rows)

    cdef int add_key(self, PyObject* name, size_t numbers) except -1:
        """Write a key, and make room for its limit and so many integers."""
        cdef const uint8_t* key = <uint8_t*>PyBytes_AS_STRING(<object>name)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(<object>name), shared = 0
        cdef size_t used = self.end - self.rows
        cdef size_t wanted = used + 2 + LONGEST_PACKED_KEY + (numbers + 2) * LONGEST_PACKED_NUMBER
        cdef uint8_t* longer
        if size > LONGEST_PACKED_KEY:
            raise ValueError(f"a key must have at most {LONGEST_PACKED_KEY} bytes, got {size}")
        if wanted > self.room:
            longer = <uint8_t*>realloc(self.rows, 2 * wanted)
            if longer == NULL:
                raise MemoryError
            self.rows, self.end, self.room = longer, longer + used, 2 * wanted
        while shared < min(size, self.last_size) and key[shared] == self.last[shared]:
            shared += 1
        self.end[0], self.end[1] = <uint8_t>shared, <uint8_t>(size - shared)
        memcpy(self.end + 2, key + shared, size - shared)
        self.end += 2 + size - shared
        self.last, self.last_size = key, size
        self.end = put_packed_number(self.end, numbers)
        return 0

    cdef bytes packed(self):
        return PyBytes_FromStringAndSize(<const char*>self.rows, self.end - self.rows)

    cdef int add_limit(self, limit) except -1:
        """Write the index of a limit."""
        if <PyObject*>limit != self.limit:  # Most keys have the limit of the key before them.
            index = self.indexes.setdefault(limit, len(self.limits))
            if index == len(self.limits):
                self.limits.append(limit)
            self.limit, self.index = <PyObject*>self.limits[index], index
        self.end = put_packed_number(self.end, self.index)
        return 0
