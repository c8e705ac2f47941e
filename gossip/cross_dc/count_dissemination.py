"""Which counts the other data centers should hear of next.

Keys near their limit go first and at once; a key far from it may wait until enough has changed, or
a second has passed. What was sent and confirmed is remembered as long as its windows count, so that
digests can be compared and only what was lost is sent again. Reading counts and sending them are
the caller's.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

__all__ = ["Fact", "CountDissemination", "cells_sum"]

_NS = 1_000_000_000
_MOST_AGE_NS = _NS
"""What has changed is told after so long, however little it is."""
_SHARE = 100
"""What has changed by 1 / 100 of the limit is told in the next round."""
_NEAR = 5
"""From 4 / 5 of the limit on, every change is told in the next round."""
_MOST_KEYS = 1_000_000
_LOOK_AT = 4000
"""Keys that are looked at in one call of `clear_out`."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What the caller knows of one key."""

    cells: list[int]
    """Own counts: window number and count in turns."""
    used: int
    """Units of all data centers in use."""
    ceiling: int


class CountDissemination:
    """What one other data center has been told and what it lacks."""

    def __init__(self, most_keys: int = _MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._changed: dict[bytes, int] = {}
        """Keys with news, and since when."""
        self._told: dict[bytes, tuple[int, ...]] = {}
        """Cells by key as they were confirmed."""

    def __len__(self) -> int:
        return len(self._changed)

    def changed(self, key: bytes, now: int) -> None:
        """Note that a key's count has risen."""
        self._changed.setdefault(key, now)
        if len(self._changed) > self._most_keys:
            # Whatever counts in it still is told when it changes again: cells are whole counts.
            del self._changed[next(iter(self._changed))]

    def choose(
        self, read: Callable[[Sequence[bytes]], Sequence[Fact]], most: int, now: int
    ) -> list[tuple[bytes, list[int], int]]:
        """Take the keys that must be told now, the most important first: key, cells, since when.

        The rest waits. Give each to `confirmed` or `lost` when that is known.
        """
        keys = list(self._changed)
        found: list[tuple[float, bytes, list[int], int]] = []
        for key, fact in zip(keys, read(keys), strict=True):
            since = self._changed[key]
            if not fact.cells:
                del self._changed[key]
                continue
            unsent = sum(fact.cells[1::2]) - self._told_units(key, fact.cells)
            ceiling = max(1, fact.ceiling)
            is_near = fact.used * _NEAR >= ceiling * (_NEAR - 1)
            is_due = is_near or unsent * _SHARE >= ceiling or now - since >= _MOST_AGE_NS
            if is_due:
                found.append((-fact.used / ceiling, key, fact.cells, since))
        found.sort(key=lambda each: each[:2])
        chosen = [(key, cells, since) for _, key, cells, since in found[:most]]
        for key, _, _ in chosen:
            del self._changed[key]
        return chosen

    def clear_out(self, read: Callable[[Sequence[bytes]], Sequence[Sequence[int]]]) -> None:
        """Drop what there is nothing left to tell of, a part at each call.

        For a data center that cannot be told: `choose` does so by the way for those that can.
        `read` takes keys and returns their cells.
        """
        keys = list(islice(self._changed, _LOOK_AT))
        for key, cells in zip(keys, read(keys), strict=True):
            since = self._changed.pop(key)
            if cells:
                self._changed[key] = since  # Behind those that were not looked at yet.

    def confirmed(self, key: bytes, cells: Sequence[int]) -> None:
        """The other side has these cells."""
        self._told.pop(key, None)
        self._told[key] = tuple(cells)
        if len(self._told) > self._most_keys:
            del self._told[next(iter(self._told))]

    def lost(self, key: bytes, since: int) -> None:
        """The other side has not confirmed: tell it again."""
        self._changed[key] = min(since, self._changed.get(key, since))

    def forget(self, is_over: Callable[[bytes, int], bool]) -> None:
        """Drop what was told of windows that count no more; `is_over` takes key and number."""
        for key, cells in list(self._told.items()):
            if is_over(key, cells[-2]):
                del self._told[key]

    def again(self, keys: Iterable[bytes] | None, now: int) -> None:
        """Tell these keys again, all when None: the other side has lost them."""
        for key in list(self._told) if keys is None else keys:
            if self._told.pop(key, None) is not None:
                self._changed.setdefault(key, now)

    def told(self) -> dict[bytes, tuple[int, ...]]:
        """Cells by key as they were confirmed."""
        return self._told

    def _told_units(self, key: bytes, cells: Sequence[int]) -> int:
        told = self._told.get(key, ())
        known = dict(zip(told[::2], told[1::2], strict=True))
        return sum(known.get(number, 0) for number in cells[::2])


def cells_sum(key: bytes, cells: Sequence[int]) -> int:
    """A number of 64 bits for the cells of one key; those of many keys are added up."""
    text = key + b"".join([number.to_bytes(8, "big") for number in cells])
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
