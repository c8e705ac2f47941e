"""Counters as plain numbers, so that they can move from one node to another.

Decides how a batch of them is laid out and which numbers are absurd whatever they mean. What the
numbers of one counter mean is its algorithm's: durations, window numbers and counts, never
instants, since no two hosts' clocks agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ringfence.limiter.limit import Limit

__all__ = [
    "BadState",
    "MOST_NUMBERS",
    "MOST_UNITS",
    "Snapshot",
    "checked",
    "fitting",
    "in_turns",
    "pairs_of",
    "units_in",
]

MOST_UNITS: Final = 2**60
"""Most units that a counter holds, by whatever was charged: then sums still fit into 64 bits."""
MOST_NUMBERS: Final = 2**14
"""Most numbers in one state. Algorithms that would need more write less finely."""
_LARGEST: Final = 2**63 - 1


class BadState(ValueError):
    """Numbers that no counter of that algorithm could have written."""


@dataclass(slots=True)
class Snapshot:
    """The state of counters, column by column."""

    keys: list[bytes]
    states: list[list[int]]
    """Per key, its counter's numbers; empty for a key that is as new."""
    limits: list[Limit]
    which: list[int]
    """Per key, the index into `limits` of the limit it was counted by."""
    heard: list[dict[str, list[int]]]
    """Per key, what other data centers said of it: window number and count in turns. Empty when
    none said anything of any key."""


def checked(state: Sequence[int], length: int | None = None) -> Sequence[int]:
    """Return a state of `length` numbers, none negative or beyond 63 bits. Raises `BadState`."""
    if length is not None and len(state) != length:
        raise BadState(f"a state of {len(state)} numbers instead of {length}")
    if state and not 0 <= min(state) <= max(state) <= _LARGEST:
        raise BadState(f"a state with {min(state)} or {max(state)} in it")
    return state


def units_in(counts: Sequence[int]) -> Sequence[int]:
    """Return counts that together are no more than `MOST_UNITS`. Raises `BadState`."""
    if sum(counts) > MOST_UNITS:
        raise BadState(f"{sum(counts)} units in one counter")
    return counts


def fitting(units: int, held: int) -> int:
    """How many of `units` a counter takes that holds `held` already."""
    return max(0, min(units, MOST_UNITS - held))


def pairs_of(cells: Sequence[int]) -> Mapping[int, int]:
    """Read window numbers and counts that stand in turns; the larger count of a number stands.

    Raises `BadState`.
    """
    if len(cells) % 2:
        raise BadState(f"{len(cells)} numbers are no pairs")
    checked(cells)
    pairs: dict[int, int] = {}
    for number, count in zip(cells[::2], cells[1::2], strict=True):
        pairs[number] = max(count, pairs.get(number, 0))
    units_in(list(pairs.values()))
    return pairs


def in_turns(cells: Mapping[int, int]) -> list[int]:
    """Write window numbers and counts in turns, the oldest window first."""
    return [number for cell in sorted(cells.items()) for number in cell]
