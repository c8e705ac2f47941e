"""Bounds for fixed, calendar and sliding windows, which count units by numbered slots.

Each unit lies in the slot of its instant. A later instant never lowers the units in use, so the
earliest and the latest slot of each unit bound them.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from simulations.oracle.calendar_periods import calendar_period
from simulations.oracle.intervals import Bound, Question, Refund, Spend
from simulations.oracle.sweep import Item, Tally, lower_sweep, upper_sweep
from simulations.oracle.terms import Terms
from simulations.oracle.verdicts import bound_of

__all__ = ["window_bounds"]

_MOST_PIECES = 64
"""Slots that one interval is divided into; longer intervals get the widest bounds."""


class _Grid(Protocol):
    """Slots of a window: the unit in which it counts."""

    def slot(self, at: int) -> int:
        """Return the number of the slot that contains `at`; later slots have higher numbers."""

    def end(self, slot: int) -> int:
        """Return the first instant after a slot."""


class _EvenGrid:
    """Slots of equal length since 1970."""

    def __init__(self, length: int) -> None:
        self._length = length

    def slot(self, at: int) -> int:
        return at // self._length

    def end(self, slot: int) -> int:
        return (slot + 1) * self._length


class _CalendarGrid:
    """Calendar periods, each numbered by its first instant."""

    def __init__(self, calendar: str, timezone: str) -> None:
        self._unit, self._timezone = calendar, timezone
        self._ends: dict[int, int] = {}
        self._latest = (0, 0)

    def slot(self, at: int) -> int:
        begin, end = self._latest
        if not begin <= at < end:
            begin, end = self._latest = calendar_period(self._unit, self._timezone, at)
            self._ends[begin] = end
        return begin

    def end(self, slot: int) -> int:
        return self._ends[slot]


def window_bounds(
    terms: Terms, spends: Sequence[Spend], questions: Sequence[Question]
) -> list[Bound]:
    """Return the bounds of each question under a fixed or sliding window."""
    if terms.calendar is not None:
        window: _Window = _Window(terms, _CalendarGrid(terms.calendar, terms.timezone))
    elif terms.algorithm == "fixed_window":
        window = _Window(terms, _EvenGrid(terms.period_ns))
    else:
        window = _SlidingWindow(terms, _EvenGrid(terms.slot_ns))
    return window.bounds(spends, questions)


class _Window:
    """Window that counts the units of the present slot alone."""

    def __init__(self, terms: Terms, grid: _Grid) -> None:
        self.terms = terms
        self.grid = grid

    def bounds(self, spends: Sequence[Spend], questions: Sequence[Question]) -> list[Bound]:
        """Return the bounds of each question."""
        ceiling = self.terms.ceiling
        least, shortest = [0] * len(questions), [1] * len(questions)
        most, longest = [0] * len(questions), [0] * len(questions)
        deniable: list[list[tuple[int, int, int]]] = [[] for _ in questions]
        for at, tally in upper_sweep(questions, *self._upper_items(spends)):
            question = questions[at]
            room = ceiling - (question.cost or 1)
            pieces = self._pieces(question)
            if not pieces:
                most[at] = tally.spent.total - question.own
                longest[at] = 2 * self.terms.period_ns
            for piece in pieces:
                used = self.used(tally, piece[0], piece[1]) - question.own
                most[at] = max(most[at], used)
                if used > room:
                    deniable[at].append(piece)
                    wait = self.longest_wait(tally, piece, room + question.own)
                    longest[at] = max(longest[at], wait)
        for at, tally in lower_sweep(questions, *self._lower_items(spends)):
            question = questions[at]
            room = ceiling - (question.cost or 1)
            pieces = self._pieces(question)
            used_least = (self.used(tally, slot, end) for slot, _, end in pieces)
            least[at] = max(0, min(used_least, default=0))
            waits = [self.shortest_wait(tally, piece, room) for piece in deniable[at]]
            shortest[at] = max(1, min(waits, default=1))
        return [
            bound_of(self.terms, question, least[at], most[at], shortest[at], longest[at])
            for at, question in enumerate(questions)
        ]

    def used(self, tally: Tally, slot: int, at: int) -> int:
        """Return the units in use at an instant of the present slot."""
        return tally.above(slot - 1)

    def shortest_wait(self, tally: Tally, piece: tuple[int, int, int], room: int) -> int:
        """Return the shortest wait until at most `room` units are in use."""
        slot, _, latest = piece
        return self.grid.end(slot) - latest

    def longest_wait(self, tally: Tally, piece: tuple[int, int, int], room: int) -> int:
        """Return the longest wait until at most `room` units are in use."""
        slot, earliest, _ = piece
        return self.grid.end(slot) - earliest

    def _pieces(self, question: Question) -> list[tuple[int, int, int]]:
        """Divide an interval at the ends of slots: number, first and last instant of each part.

        Returns no parts for an interval that is much longer than a slot.
        """
        begin = question.earliest
        pieces: list[tuple[int, int, int]] = []
        while begin <= question.latest:
            slot = self.grid.slot(begin)
            end = self.grid.end(slot)
            if len(pieces) == _MOST_PIECES:
                return []
            pieces.append((slot, begin, min(end - 1, question.latest)))
            begin = end
        return pieces

    def _upper_items(self, spends: Sequence[Spend]) -> tuple[list[Item], list[Item]]:
        slot = self.grid.slot
        spent = [(each.earliest, slot(each.latest), each.most) for each in spends]
        returned = [
            (refund.latest, slot(spend.latest), min(refund.least, spend.most))
            for spend, refund in _refunded(spends)
            if slot(spend.earliest) == slot(spend.latest) == self._refunded_slot(refund)
        ]
        return spent, returned

    def _lower_items(self, spends: Sequence[Spend]) -> tuple[list[Item], list[Item]]:
        slot = self.grid.slot
        spent = [(each.counted_from, slot(each.earliest), each.least) for each in spends]
        returned = [
            (refund.earliest, slot(refund.latest - refund.age_least), refund.most)
            for _, refund in _refunded(spends)
        ]
        return spent, returned

    def _refunded_slot(self, refund: Refund) -> int | None:
        """Return the slot that a refund certainly concerns, or None."""
        oldest = self.grid.slot(refund.earliest - refund.age_most)
        return oldest if oldest == self.grid.slot(refund.latest - refund.age_least) else None


class _SlidingWindow(_Window):
    """Window that also counts full slots before the present one, and a part of the oldest one."""

    def used(self, tally: Tally, slot: int, at: int) -> int:
        """Return the estimated units in use at an instant of the present slot."""
        slots, length = self.terms.slots, self.terms.slot_ns
        full = tally.above(slot - slots)
        oldest = tally.above(slot - slots - 1) - full
        return full + oldest * (self.grid.end(slot) - at) // length

    def shortest_wait(self, tally: Tally, piece: tuple[int, int, int], room: int) -> int:
        """Return the shortest wait, as if all refunded units had never been counted."""
        slot, _, latest = piece
        refunded = tally.returned.above(slot - self.terms.slots - 1)
        return self._passes(tally, slot, latest, room + refunded) - latest

    def longest_wait(self, tally: Tally, piece: tuple[int, int, int], room: int) -> int:
        """Return a wait after which certainly at most `room` units are in use."""
        slot, earliest, _ = piece
        refunded = tally.returned.above(slot - self.terms.slots - 1)
        passes = self._passes(tally, slot, earliest, room + refunded)
        if refunded and self.used(tally, self.grid.slot(passes), passes) > room:
            passes = self._passes(tally, slot, earliest, room)
        return min(self.grid.end(slot + self.terms.slots), passes) - earliest

    def _passes(self, tally: Tally, slot: int, at: int, room: int) -> int:
        """Return the first instant from `at` at which no more than `room` units are in use."""
        slots, length, spent = self.terms.slots, self.terms.slot_ns, tally.spent
        lowest = spent.lowest_with(max(0, room))
        if lowest is not None:
            slot = max(slot, lowest + slots)
        full = spent.above(slot - slots)
        oldest = spent.above(slot - slots - 1) - full
        spare = max(0, room) - full
        if oldest <= spare:
            return max(at, self.grid.end(slot - 1))
        covered = ((spare + 1) * length - 1) // oldest
        return max(at, self.grid.end(slot) - covered)


def _refunded(spends: Sequence[Spend]) -> Iterator[tuple[Spend, Refund]]:
    return ((spend, spend.refund) for spend in spends if spend.refund is not None)
