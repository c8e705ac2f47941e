"""Decisions for a frame of checks under many rules, single checks and groups, in one call.

The checks of a frame are decided in order, as `ringfence.limiter.groups` defines. This module finds
their tables, and undoes the charges of denied groups.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from ringfence.limiter.compiled._hot cimport (
    HotTable, RowPacker, columns_of, cost_of, put_number,
)
from ringfence.limiter.compiled._algorithms cimport LOG, OVER_SOFT, Answer
from ringfence.limiter.compiled._slots cimport ringfence_prefetch
from ringfence.limiter.compiled._states cimport MOST_NUMBERS, put_packed_number
from ringfence.limiter.compiled._store cimport Store

cdef extern from "Python.h":
    bint PyBytes_Check(PyObject* value) nogil
    const char* PyBytes_AS_STRING(PyObject* name) nogil
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 18446744073709551615
    object PyBytes_FromStringAndSize(const char* text, Py_ssize_t size)
    Py_ssize_t PyBytes_GET_SIZE(PyObject* name) nogil
    object PySequence_Fast(object sequence, const char* message)
    PyObject** PySequence_Fast_ITEMS(object sequence) nogil
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence) nogil

cdef enum:
    BLOCK = 256
    ID_BYTES = 8
    PREFETCH_DISTANCE = 8  # keys whose bytes are prefetched before they are hashed
    UNCHARGED = 4
    UNKNOWN_RULE = 5

cdef int64_t MOST = 0x7FFFFFFFFFFFFFFF

cdef object ZERO = 0

cdef uint64_t[MOST_NUMBERS] state_of_key  # during one call


cdef struct Asked:
    # One check of a block, and the state that undoes it.
    PyObject* key
    PyObject* cost
    int64_t units
    uint64_t identity
    PyObject* table  # NULL when the rule is unknown
    bint denies_group
    bint existed
    uint64_t before[2]
    Answer answer


cdef class Frames:
    """Tables of the rules of an engine, by the first 8 bytes of their keys.

    `slow_group` decides a group of keys and costs, as `ringfence.limiter.groups` does.
    `bounds` are those of the keys, see `ringfence.limiter.backends`.
    """

    cdef object _slow_group, _bounds
    cdef dict _places
    cdef list _tables
    cdef list _denies_group
    cdef uint64_t _frame
    cdef Asked _asked[BLOCK]
    cdef list _codes, _limits, _remaining, _retry, _reset, _delay, _slot_ids

    def __init__(self, slow_group, bounds):
        self._slow_group, self._bounds = slow_group, bounds
        self.set_tables(())

    def set_tables(self, tables) -> None:
        """Set the tables: prefix, table, and whether its denials deny the group."""
        self._places = {prefix: place for place, (prefix, _, _) in enumerate(tables)}
        self._tables = [table for _, table, _ in tables]
        self._denies_group = [denies_group for _, _, denies_group in tables]

    def decide(self, keys, costs, groups, now, list instants=None):
        """Decide a frame whose checks carry no limits; return None, without effect, if it cannot.

        `instants`, one per check, replace `now`; the members of a group share one. Raises
        `ValueError` when a cost is negative.
        """
        keys = PySequence_Fast(keys, b"keys: not a sequence")
        costs = PySequence_Fast(costs, b"costs: not a sequence")
        cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
        cdef PyObject** names = PySequence_Fast_ITEMS(keys)
        cdef PyObject** units = PySequence_Fast_ITEMS(costs)
        cdef Py_ssize_t first = 0, last, at, begin, end, group = 0
        cdef list sizes = None
        if n != PySequence_Fast_GET_SIZE(costs) or (instants is not None and len(instants) != n):
            return None
        if groups:
            if sum(groups) != n or not 1 <= min(groups) <= max(groups) <= BLOCK:
                return None
            if len(groups) != n:
                sizes = list(groups)
        for at in range(n if n > BLOCK else 0):
            cost_of(units[at])  # Raises for an invalid cost before any check is charged.
        self._frame += 1
        self._codes = [ZERO] * n
        self._limits = [ZERO] * n
        self._remaining = [ZERO] * n
        self._retry = [ZERO] * n
        self._reset = [ZERO] * n
        self._delay = [ZERO] * n
        self._slot_ids = [ZERO] * n
        while first < n:
            last = min(first + BLOCK, n)
            if sizes is not None:
                last, end = first, group
                while end < len(sizes) and last + <Py_ssize_t>sizes[end] <= first + BLOCK:
                    last += <Py_ssize_t>sizes[end]
                    end += 1
            if instants is not None:
                now = instants[first]
                self._frame += 1  # Tables look up their stores again at each instant.
            self._read(names + first, units + first, last - first, now)
            at = 0
            while at < last - first:
                end = at + 1
                if instants is not None and instants[first + at] != now:
                    now = instants[first + at]
                    self._frame += 1
                if sizes is not None:
                    end = at + <Py_ssize_t>sizes[group]
                    group += 1
                if end == at + 1:
                    if self._charge(&self._asked[at], self._asked[at].units, now):
                        self._write(first + at, &self._asked[at])
                    else:
                        self._write_row(first + at, self._decide_by_reference(&self._asked[at], now))
                elif self._decide_group(&self._asked[at], end - at, now):
                    begin = at
                    for at in range(begin, end):
                        self._write(first + at, &self._asked[at])
                else:
                    rows = self._slow_group(
                        keys[first + at : first + end], costs[first + at : first + end], now
                    )
                    self._frame += 1
                    begin = at
                    for at in range(begin, end):
                        self._write_row(first + at, rows[at - begin])
                at = end
            for at in range(last - first):
                if self._asked[at].table != NULL:
                    self._limits[first + at] = (<HotTable>self._asked[at].table).own_amount
            first = last
        return columns_of(
            self._codes, self._limits, self._remaining, self._retry, self._reset, self._delay,
            self._slot_ids,
        )

    def decide_lone(self, key, cost, now, source):
        """Decide a check that carries no limit; return the fields of its `Outcome`, then `source`.

        Bounds are tested only after a check that may have added a key or hits. Raises `ValueError`
        when the cost is negative.
        """
        cdef PyObject* name = <PyObject*>key
        cdef PyObject* units = <PyObject*>cost
        cdef Asked* asked = &self._asked[0]
        self._frame += 1
        cdef Store store = None
        cdef int64_t room = 0
        cdef bint has_grown = True
        self._read(&name, &units, 1, now)
        amount = ZERO
        if asked.table != NULL:
            amount, store = (<HotTable>asked.table).own_amount, (<HotTable>asked.table).ready
        if store is not None:
            room = store.room
        if not self._charge(asked, asked.units, now):
            code, remaining, retry_after, reset_after, delay, slot_id = self._decide_by_reference(
                asked, now
            )
            fields = code, amount, remaining, retry_after, reset_after, delay, slot_id, source
        else:
            has_grown = store is not None and (store.room != room or store.params.kind == LOG)
            fields = (
                asked.answer.code, amount, asked.answer.remaining, asked.answer.retry_after,
                asked.answer.reset_after, asked.answer.delay, 0, source,
            )
        if has_grown:
            left = self._bounds.room - 1
            self._bounds.room = left
            if left < 0:
                self._bounds.evict_to_bounds(0, now)
        return fields

    def pack(self, keys, now, bint with_unused):
        """Return packed rows with the states of keys, their number and limits; None if it cannot.

        It cannot pack keys without a known rule, and counts of other data centers. Unused keys are
        omitted unless `with_unused` is true.
        """
        keys = PySequence_Fast(keys, b"keys: not a sequence")
        cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
        cdef PyObject** names = PySequence_Fast_ITEMS(keys)
        cdef PyObject* store
        cdef Asked* asked
        cdef RowPacker packer = RowPacker()
        cdef Py_ssize_t first, at, count = 0
        cdef int size, number
        for first in range(0, n, BLOCK):
            self._read(names + first, NULL, min(n - first, BLOCK), now)
            for at in range(min(n - first, BLOCK)):
                asked = &self._asked[at]
                if asked.table == NULL:
                    return None
                size = (<HotTable>asked.table).numbers_of(
                    asked.key, asked.identity, now, state_of_key, &store
                )
                if size < 0:
                    found = (<HotTable>asked.table).slow_state(<object>asked.key, now)
                    state, limit, remote = ([], None, None) if found is None else found
                    if remote:
                        return None
                    if not state and not with_unused:
                        continue
                    count += 1
                    packer.add_key(asked.key, len(state))
                    if state:
                        packer.add_limit(limit)
                    for each in state:
                        packer.end = put_packed_number(packer.end, PyLong_AsUnsignedLongLong(each))
                    continue
                if not size and not with_unused:
                    continue
                count += 1
                packer.add_key(asked.key, size)
                if size:
                    packer.add_limit((<Store>store).scheme.limit)
                    for number in range(size):
                        packer.end = put_packed_number(packer.end, state_of_key[number])
        return packer.packed(), count, packer.limits

    def restore(self, keys, states, limits, which, now, slow) -> None:
        """Replace counters by states from another node, whose limits are `limits[which[at]]`.

        Calls `slow` with the place of each row that it cannot restore, such as an empty state.
        """
        keys = PySequence_Fast(keys, b"keys: not a sequence")
        cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
        cdef PyObject** names = PySequence_Fast_ITEMS(keys)
        cdef Asked* asked
        cdef Py_ssize_t first, at
        for first in range(0, n, BLOCK):
            self._read(names + first, NULL, min(n - first, BLOCK), now)
            for at in range(first, min(n, first + BLOCK)):
                asked = &self._asked[at - first]
                state = states[at]
                if asked.table == NULL or not state or not (<HotTable>asked.table).restore_state(
                    asked.key, asked.identity, state, limits[which[at]], now
                ):
                    slow(at)

    def forget(self, keys) -> list[bytes]:
        """Remove the counters of keys; return the keys that only the engine can remove."""
        keys = PySequence_Fast(keys, b"keys: not a sequence")
        cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(keys)
        cdef PyObject** names = PySequence_Fast_ITEMS(keys)
        cdef list left = []
        cdef Asked* asked
        cdef Store store
        cdef Py_ssize_t first, at
        for first in range(0, n, BLOCK):
            self._read(names + first, NULL, min(n - first, BLOCK), None)
            for at in range(min(n - first, BLOCK)):
                asked = &self._asked[at]
                if (
                    asked.table == NULL or (<HotTable>asked.table).overflow
                    or (<HotTable>asked.table).cold.count
                ):
                    left.append(<object>asked.key)
                    continue
                for store in (<HotTable>asked.table).stores:
                    store.remove(asked.identity)
        return left

    cdef int _read(
        self, PyObject** names, PyObject** units, Py_ssize_t count, object now
    ) except -1:
        """Find the tables of a block, and prefetch the memory of their keys.

        Without `units`, the keys are not checked, but their states are read.
        """
        cdef Py_ssize_t at, place
        cdef Asked* asked
        cdef Store store
        cdef uint64_t prefix, known = 0
        cdef bint knows = False
        cdef PyObject* table = NULL
        cdef bint denies_group = True
        for at in range(count):
            if at + PREFETCH_DISTANCE < count:
                ringfence_prefetch(names[at + PREFETCH_DISTANCE])
                ringfence_prefetch(<char*>names[at + PREFETCH_DISTANCE] + 48)
            if not PyBytes_Check(names[at]):
                raise TypeError(f"key: {<object>names[at]!r} is not bytes")
            asked = &self._asked[at]
            asked.key = names[at]
            if units != NULL:
                asked.cost = units[at]
                asked.units = cost_of(units[at])
            if PyBytes_GET_SIZE(names[at]) < ID_BYTES:
                asked.table = NULL
                asked.denies_group = True
                continue
            memcpy(&prefix, PyBytes_AS_STRING(names[at]), ID_BYTES)
            if not knows or prefix != known:
                known, knows = prefix, True
                found = self._places.get(
                    PyBytes_FromStringAndSize(PyBytes_AS_STRING(names[at]), ID_BYTES)
                )
                place = -1 if found is None else found
                table = NULL if place < 0 else <PyObject*>self._tables[place]
                denies_group = True if place < 0 else self._denies_group[place]
            asked.table = table
            asked.denies_group = denies_group
            asked.identity = 0
            if table != NULL:
                if units != NULL:
                    store = (<HotTable>table).hot_store(self._frame, now)
                else:
                    store = (<HotTable>table).any_store()
                if store is not None:
                    asked.identity = store.identity(names[at])
                    store.prefetch(asked.identity)
        return 0

    cdef bint _charge(self, Asked* asked, int64_t units, object now) except -1:
        """Decide a check; return False if only the reference implementation can."""
        cdef HotTable table
        cdef Store store
        if asked.table == NULL:
            asked.answer.code = UNKNOWN_RULE
            asked.answer.remaining = asked.answer.retry_after = 0
            asked.answer.reset_after = asked.answer.delay = 0
            return True
        table = <HotTable>asked.table
        store = table.hot_store(self._frame, now)
        if store is None:
            return False
        if not asked.identity:
            asked.identity = store.identity(asked.key)
        return table._decide(store, asked.identity, asked.key, units, &asked.answer)

    cdef tuple _decide_by_reference(self, Asked* asked, object now):
        return (<HotTable>asked.table).decide_by_reference(asked.key, asked.cost, now)

    cdef bint _decide_group(self, Asked* asked, Py_ssize_t count, object now) except -1:
        """Charge all members, or none if a denied member denies the group.

        Returns False, without effect, if only the reference implementation can decide a member.
        """
        cdef Py_ssize_t at
        cdef bint is_blocked = False
        cdef Store store
        for at in range(count):
            if asked[at].table != NULL:
                store = (<HotTable>asked[at].table).hot_store(self._frame, now)
                if store is not None:
                    if not asked[at].identity:
                        asked[at].identity = store.identity(asked[at].key)
                    asked[at].existed = store.save(asked[at].identity, asked[at].before)
            if not self._charge(&asked[at], asked[at].units, now):
                self._undo(asked, at, now)
                return False
            if asked[at].denies_group and asked[at].answer.code > OVER_SOFT:
                is_blocked = True
        if is_blocked:
            self._undo(asked, count, now)
            self._explain(asked, count, now)
        return True

    cdef int _undo(self, Asked* asked, Py_ssize_t count, object now) except -1:
        """Undo the charges of members in reverse order."""
        cdef Py_ssize_t at
        cdef HotTable table
        cdef Store store
        for at in range(count - 1, -1, -1):
            if asked[at].table == NULL or not asked[at].units or asked[at].answer.code > OVER_SOFT:
                continue
            table = <HotTable>asked[at].table
            store = table.hot_store(self._frame, now)
            if store.params.kind == LOG:
                table.refund_only(<object>asked[at].key, asked[at].units, now)
            else:
                store.restore_saved(asked[at].identity, asked[at].existed, asked[at].before)
        return 0

    cdef int _explain(self, Asked* asked, Py_ssize_t count, object now) except -1:
        """Fill the answers of a group whose charges were undone, as `groups` does."""
        cdef Py_ssize_t at, earlier
        cdef int64_t wanted, retry_after
        cdef int code
        for at in range(count):
            if asked[at].table == NULL:
                continue
            code, retry_after = asked[at].answer.code, asked[at].answer.retry_after
            if code <= OVER_SOFT or not asked[at].units:
                self._check(&asked[at], 0, now)
                asked[at].answer.code = UNCHARGED if code <= OVER_SOFT else code
                asked[at].answer.retry_after = retry_after
                asked[at].answer.delay = 0
                continue
            wanted = asked[at].units
            for earlier in range(at):
                if (
                    asked[earlier].answer.code == UNCHARGED
                    and asked[earlier].table == asked[at].table
                    and asked[earlier].identity == asked[at].identity
                ):
                    wanted = min(wanted, MOST - asked[earlier].units) + asked[earlier].units
            self._check(&asked[at], wanted, now)
        return 0

    cdef int _check(self, Asked* asked, int64_t units, object now) except -1:
        """Decide a check of a key whose charge was just undone."""
        if self._charge(asked, units, now):
            return 0
        # The entry was removed by the undo, so other stores would have to be searched.
        cdef object cost = units
        row = (<HotTable>asked.table).decide_by_reference(asked.key, <PyObject*>cost, now)
        asked.answer.code = row[0]
        asked.answer.remaining = row[1]
        asked.answer.retry_after = row[2]
        asked.answer.reset_after = row[3]
        asked.answer.delay = row[4]
        return 0

    cdef int _write(self, Py_ssize_t at, Asked* asked) except -1:
        if asked.answer.code:
            put_number(self._codes, at, asked.answer.code)
        if asked.answer.remaining:
            put_number(self._remaining, at, asked.answer.remaining)
        if asked.answer.retry_after:
            put_number(self._retry, at, asked.answer.retry_after)
        if asked.answer.reset_after:
            put_number(self._reset, at, asked.answer.reset_after)
        if asked.answer.delay:
            put_number(self._delay, at, asked.answer.delay)
        return 0

    cdef int _write_row(self, Py_ssize_t at, tuple row) except -1:
        self._codes[at] = row[0]
        self._remaining[at] = row[1]
        self._retry[at] = row[2]
        self._reset[at] = row[3]
        self._delay[at] = row[4]
        self._slot_ids[at] = row[5]
        return 0
