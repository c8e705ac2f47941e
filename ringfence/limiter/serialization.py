"""Conversion of counters to numbers and back, for transfers between nodes.

Defines the layout of a batch, and bounds that hold for all numbers. Each algorithm defines the
meaning of its numbers: durations, window numbers and counts, but no instants, because the clocks of
two hosts differ.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from ringfence.limiter.limit import Limit

__all__ = [
    "BadState",
    "MAX_NUMBERS",
    "MAX_UNITS",
    "Snapshot",
    "checked",
    "fitting",
    "flatten_pairs",
    "pairs_of",
    "units_in",
]

MAX_UNITS: Final = 2**60
"""Maximum units in a counter, also after charges, so that sums fit into 64 bits."""
MAX_NUMBERS: Final = 2**14
"""Maximum numbers in one state. Algorithms that need more reduce the resolution."""
_LARGEST: Final = 2**63 - 1


class BadState(ValueError):
    """Error for a received counter whose numbers no counter of the algorithm could have written."""


class Snapshot(Struct):
    """States of several counters in columns."""

    keys: list[bytes]
    states: list[list[int]]
    """Numbers of each key's counter; empty for a key that is not in use."""
    limits: list[Limit]
    which: list[int]
    """Index into `limits` of the limit that counted each key."""
    remote_counts: list[dict[str, list[int]]]
    """Counts of other data centers for each key, by writer: alternating window numbers and counts.
    Empty when there are none for any key."""


def checked(state: Sequence[int], length: int | None = None) -> Sequence[int]:
    """Validate a counter state of `length` numbers, each from 0 to 2**63 - 1. Raises `BadState`."""
    if length is not None and len(state) != length:
        raise BadState(f"state must have {length} numbers, got {len(state)}")
    if state and not 0 <= min(state) <= max(state) <= _LARGEST:
        raise BadState(f"state must have numbers of 63 bits, got {min(state)} to {max(state)}")
    return state


def units_in(counts: Sequence[int]) -> Sequence[int]:
    """Validate that counts add up to at most `MAX_UNITS`. Raises `BadState`."""
    if sum(counts) > MAX_UNITS:
        raise BadState(f"counter must have at most {MAX_UNITS} units, got {sum(counts)}")
    return counts


def fitting(units: int, held: int) -> int:
    """Return how many of `units` can be added to a counter that has `held` units."""
    return max(0, min(units, MAX_UNITS - held))


def pairs_of(cells: Sequence[int]) -> Mapping[int, int]:
    """Parse alternating window numbers and counts; for repeated numbers the larger count is used.

    Raises `BadState`.
    """
    if len(cells) % 2:
        raise BadState(f"cells must be pairs, got {len(cells)} numbers")
    checked(cells)
    pairs: dict[int, int] = {}
    for number, count in zip(cells[::2], cells[1::2], strict=True):
        pairs[number] = max(count, pairs.get(number, 0))
    units_in(list(pairs.values()))
    return pairs


def flatten_pairs(cells: Mapping[int, int]) -> list[int]:
    """Return one list of alternating window numbers and counts, the oldest window first."""
    return [number for cell in sorted(cells.items()) for number in cell]
