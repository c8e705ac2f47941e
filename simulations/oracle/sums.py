"""Sums of units by position, with positions that are known beforehand (Fenwick tree)."""

from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["Sums"]


class Sums:
    """Units by position. Adding units, and each sum of a range, takes logarithmic time."""

    def __init__(self, positions: Iterable[int]) -> None:
        self._positions = sorted(set(positions))
        self._tree = [0] * (len(self._positions) + 1)
        self._rank = {position: rank for rank, position in enumerate(self._positions, 1)}
        self._top = 1 << len(self._positions).bit_length()
        self.total = 0

    def add(self, position: int, units: int) -> None:
        """Add units at one of the positions."""
        self.total += units
        tree, rank = self._tree, self._rank[position]
        while rank < len(tree):
            tree[rank] += units
            rank += rank & -rank

    def above(self, position: int) -> int:
        """Return the units at all higher positions."""
        if not self.total:
            return 0
        tree, rank = self._tree, bisect_right(self._positions, position)
        below = 0
        while rank:
            below += tree[rank]
            rank &= rank - 1
        return self.total - below

    def lowest_with(self, most: int) -> int | None:
        """Return the lowest position above which there are at most `most` units.

        Returns None when all units together are no more. Requires units that are not negative.
        """
        below = self.total - most
        if below <= 0:
            return None
        tree, rank, step = self._tree, 0, self._top
        while step:
            following = rank + step
            if following < len(tree) and tree[following] < below:
                rank = following
                below -= tree[following]
            step >>= 1
        return self._positions[rank]
