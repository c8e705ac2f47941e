"""Counters that were not checked recently, as packed rows of about 30 bytes with their keys.

A counter that compiled stores cannot represent is a Python object. It needs 300 to 600 bytes, and
the garbage collector visits it. So a compiled table keeps only the most recent ones as objects.
"""

from collections.abc import Iterator
from itertools import islice

from ringfence.limiter.packed._packed_dict import PackedMap, pack_numbers, unpack_numbers
from ringfence.limiter.packed.row_forms import CAN_BE_ROWS, Form, form_of
from ringfence.limiter.reference import Counter, Scheme

__all__ = ["ColdCounters"]

_MAX_FORMS = 64
"""Schemes whose counters can be rows at the same time. Counters of further ones stay objects."""
_MAX_SCANNED = 2
"""Rows that each new key examines, as in a `CounterMap`."""
_MAX_EMPTY_BLOCKS = 64
"""Blocks without rows after which the search for the next row ends."""
_SAMPLE = 8
"""Rows from which one eviction chooses."""


class ColdCounters:
    """Counters by key in packed rows; those of concurrency limits and logs cannot be rows."""

    def __init__(self, rows: PackedMap) -> None:
        """`rows` is an empty map. Only this object changes it."""
        self._rows = rows
        self._forms: dict[Scheme, Form] = {}
        self._by_number: list[Form] = []
        self._unused_forms = 0
        """Number of forms without rows."""
        self._writers: list[str] = []
        """Names of other data centers."""

    def put(self, key: bytes, counter: Counter) -> bool:
        """Store the counter of a key without a row; return False, without effect, if it cannot be
        a row."""
        if type(counter) not in CAN_BE_ROWS:
            return False
        form = self._forms.get(counter.scheme) or self._add_form(counter.scheme)
        numbers = None if form is None else form.numbers_of(counter)
        if form is None or numbers is None:
            return False
        try:
            self._rows[key] = pack_numbers(numbers)
        except (OverflowError, ValueError):  # A number above 64 bits, or a key above 255 bytes.
            return False
        self._unused_forms -= not form.rows
        form.rows += 1
        return True

    def find(self, key: bytes) -> Counter | None:
        """Return a copy of the counter of a key; None if it has none."""
        row = self._rows.get(key)
        return None if row is None else self._counter(row)

    def take(self, key: bytes) -> Counter | None:
        """Remove and return the counter of a key; None if it has none."""
        row = self._pop(key)
        return None if row is None else self._counter(row)

    def drop(self, key: bytes) -> bool:
        """Remove the counter of a key; return whether it had one."""
        return self._pop(key) is not None

    def drop_expired(self, now: int) -> None:
        """Examine the next few counters, and remove those that have expired."""
        for _ in range(_MAX_SCANNED):
            found = self._rows.next_row(_MAX_EMPTY_BLOCKS)
            if found is None:
                break
            key, row = found
            numbers = unpack_numbers(row)
            form = self._by_number[numbers[0]]
            if form.may_have_expired(numbers, now) and form.counter_of(numbers).is_expired(now):
                self._pop(key)

    def evict(self, now: int) -> Counter:
        """Evict, of a small sample, the counter with the smallest part of its limit in use."""
        rows = iter(self._rows.next_row, None)
        sample = {key: self._counter(row) for key, row in islice(rows, _SAMPLE)}
        victim = min(sample, key=lambda key: sample[key].share_in_use(now))
        self._pop(victim)
        return sample[victim]

    def key_slices(self, size: int) -> Iterator[list[bytes]]:
        """Yield all keys, about `size` at a time. Keys that move meanwhile may occur twice."""
        place = 0
        while True:
            keys, place = self._rows.keys_from(place, size)
            if keys:
                yield keys
            if not place:
                break

    def _counter(self, row: bytes) -> Counter:
        numbers = unpack_numbers(row)
        return self._by_number[numbers[0]].counter_of(numbers)

    def _pop(self, key: bytes) -> bytes | None:
        row = self._rows.pop(key)
        if row is not None:
            form = self._by_number[row[0]]  # A number below `_MAX_FORMS` needs one byte.
            form.rows -= 1
            self._unused_forms += not form.rows
        return row

    def _add_form(self, scheme: Scheme) -> Form | None:
        """Create the form of a scheme, in place of one without rows if there are too many."""
        number = len(self._by_number)
        if number < _MAX_FORMS:
            unused = None
        elif self._unused_forms:
            unused = next(form for form in self._by_number if not form.rows)
            number = unused.number
        else:
            return None
        form = form_of(scheme, number, self._writers)
        if form is None:
            return None
        if unused is None:
            self._by_number.append(form)
            self._unused_forms += 1
        else:
            self._by_number[number] = form
            del self._forms[unused.scheme]
        self._forms[scheme] = form
        return form
