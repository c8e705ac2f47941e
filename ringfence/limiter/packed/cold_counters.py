"""Counters that were not checked recently, as packed rows of about 30 bytes with their keys.

A counter that compiled stores cannot represent is a Python object. It needs 300 to 600 bytes, and
the garbage collector visits it. So a compiled table keeps only the most recent ones as objects.
"""

from collections.abc import Iterator
from itertools import islice

from ringfence.limiter.packed._packed_dict import PackedMap, pack_numbers, unpack_numbers
from ringfence.limiter.packed.row_forms import Form, form_of
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
        """`rows` is an empty map."""
        self._rows = rows
        self._forms: dict[Scheme, Form | None] = {}
        self._by_number: list[Form] = []
        self._writers: list[str] = []
        """Names of other data centers."""

    def put(self, key: bytes, counter: Counter) -> bool:
        """Store a counter; return False, without effect, if it cannot be a row."""
        scheme = counter.scheme
        form = self._forms[scheme] if scheme in self._forms else self._add_form(scheme)
        numbers = None if form is None else form.numbers_of(counter)
        if numbers is None:
            return False
        try:
            self._rows[key] = pack_numbers(numbers)
        except (OverflowError, ValueError):  # A number above 64 bits, or a key above 255 bytes.
            return False
        return True

    def find(self, key: bytes) -> Counter | None:
        """Return a copy of the counter of a key; None if it has none."""
        row = self._rows.get(key)
        return None if row is None else self._counter(row)

    def take(self, key: bytes) -> Counter | None:
        """Remove and return the counter of a key; None if it has none."""
        row = self._rows.pop(key)
        return None if row is None else self._counter(row)

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
                self._rows.pop(key)

    def evict(self, now: int) -> Counter:
        """Evict, of a small sample, the counter with the smallest part of its limit in use."""
        rows = iter(self._rows.next_row, None)
        sample = {key: self._counter(row) for key, row in islice(rows, _SAMPLE)}
        victim = min(sample, key=lambda key: sample[key].share_in_use(now))
        self._rows.pop(victim)
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

    def _add_form(self, scheme: Scheme) -> Form | None:
        if not len(self._rows):
            self._forms.clear()
            self._by_number.clear()
        if len(self._forms) >= _MAX_FORMS:
            return None
        form = self._forms[scheme] = form_of(scheme, len(self._by_number), self._writers)
        if form is not None:
            self._by_number.append(form)
        return form
