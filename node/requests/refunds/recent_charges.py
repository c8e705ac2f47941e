"""Units that one token was charged recently, by key.

If a C compiler is present, this module is also built as a compiled module, from the same source.
`_recent_charges.pxd` declares the types.
"""

from collections.abc import Callable
from typing import TypeAlias

from ringfence.limiter import CHARGED_CODES
from ringfence.limiter.groups import ID_BYTES
from ringfence.wire import Batch, Results, Source

__all__ = ["Charges", "add_batch", "add_units"]

_Name: TypeAlias = bytes | tuple[bytes, int]
"""A key, with its lease under a concurrency limit."""

_NO_SPAN = -1
_LAST_COUNTED: int = Source.STANDBY.value
"""Sources that charge: owners and standbys."""
_CHARGED: int = sum(1 << code for code in CHARGED_CODES)
"""Bit mask of the codes of rows that were charged."""
_MOST_UNITS = 1 << 62
"""Most units of a span that are counted, so that they fit into 64 bits."""


class Charges:
    """Units charged to one key in the current span of time and in the span before it."""

    __slots__ = ("before", "current", "first", "last", "newest", "span")

    def __init__(self) -> None:
        self.span = 0
        """Number of the current span."""
        self.current = 0
        """Units charged in the current span."""
        self.before = 0
        """Units charged in the span before it."""
        self.first = 0
        """Instant of the first of these charges, in ns."""
        self.last = 0
        """Instant of the last charge, in ns."""
        self.newest = 0
        """Units of the last charge that were not refunded."""

    def turn(self, span: int) -> None:
        """Move to the span with this number; only the units of the span before it are kept."""
        if span != self.span:
            self.before = self.current if span == self.span + 1 else 0
            self.current = 0
            self.span = span


def add_units(known: dict[_Name, Charges], name: _Name, units: int, span: int, now: int) -> None:
    """Add units to the charges of a key; at its first charge in a span, the key moves to the end
    of `known`."""
    charges = known.get(name)
    if charges is None:
        charges = Charges()
        charges.span = span
        known[name] = charges
    elif charges.span != span:
        del known[name]
        charges.turn(span)
        known[name] = charges
    if not charges.current and not charges.before:
        charges.first = now
    charges.current = min(charges.current + units, _MOST_UNITS)
    charges.last = now
    charges.newest = units


def add_batch(
    known: dict[_Name, Charges],
    batch: Batch,
    results: Results,
    now: int,
    span_of: Callable[[Batch, int, int], int | None],
) -> None:
    """Add the rows of a batch that were charged at the instant `now`.

    `span_of(batch, row, now)` returns the number of the span of time that contains `now`, for the
    limit of a row; None for a row without a limit. It is called once for each limit.
    """
    keys, costs, which = batch.keys, batch.costs, batch.which
    codes, slot_ids, sources = results.outcomes.codes, results.outcomes.slot_ids, results.sources
    spans: dict[tuple[bytes, int], int] = {}
    rule, last_limit, span = b"", -1, _NO_SPAN
    for row in range(len(keys)):
        cost, code = costs[row], codes[row]
        if not cost or not _CHARGED >> code & 1 or sources[row] > _LAST_COUNTED:
            continue
        key, limit = keys[row], which[row] if which else 0
        if limit != last_limit or not key.startswith(rule):  # Most rows have the previous limit.
            rule, last_limit = key[:ID_BYTES], limit
            found = spans.get((rule, limit))
            if found is None:
                found = span_of(batch, row, now)
                found = spans[rule, limit] = _NO_SPAN if found is None else found
            span = found
        if span != _NO_SPAN:
            slot_id = slot_ids[row]
            add_units(known, (key, slot_id) if slot_id else key, cost, span, now)
