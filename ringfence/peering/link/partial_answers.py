"""Rows of one frame that were answered before others.

Decides what each answer to a part of a frame adds. Most frames are answered as a whole and never
get here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringfence.peering.columns import Results, empty_results
from ringfence.peering.link.outgoing import Ask

__all__ = ["Parts", "Rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one ask, answered."""

    ask: Ask
    rows: list[int]
    """Their places in the ask's batch."""
    verdicts: Results
    """Of these rows."""


class Parts:
    """The rows of one frame that have been answered so far."""

    def __init__(self, asks: Iterable[Ask]) -> None:
        self._spans: list[tuple[Ask, range]] = []
        start = 0
        for ask in asks:
            self._spans.append((ask, range(start, start + len(ask.batch))))
            start += len(ask.batch)
        self._left = set(range(start))
        self._verdicts = empty_results(start)

    @property
    def is_whole(self) -> bool:
        """Whether all rows have been answered."""
        return not self._left

    def take(self, rows: Sequence[int], verdicts: Results) -> list[Rows]:
        """Take the verdicts on some rows; returns what is new, ask by ask.

        A row that was answered before, on a connection that is lost, is not new.
        """
        new: set[int] = set()
        for at, row in enumerate(rows):
            if row in self._left:
                self._verdicts.spread([row], verdicts.slice(at, at + 1))
                new.add(row)
        self._left -= new
        found = [self._some(ask, span, new) for ask, span in self._spans]
        return [each for each in found if each.rows]

    def whole(self, ask: Ask) -> Results | None:
        """The verdicts on an ask; None unless all its rows have been answered."""
        span = next(span for each, span in self._spans if each is ask)
        return self._verdicts.slice(span.start, span.stop) if self._has(span) else None

    def unfinished(self) -> list[Rows]:
        """The asks of which rows are missing, each with the rows that have been answered."""
        answered = set(range(len(self._verdicts.sources))) - self._left
        return [self._some(ask, span, answered) for ask, span in self._spans if not self._has(span)]

    def _has(self, span: range) -> bool:
        return self._left.isdisjoint(span)

    def _some(self, ask: Ask, span: range, chosen: set[int]) -> Rows:
        rows = [row for row in span if row in chosen]
        verdicts = empty_results(len(rows))
        for at, row in enumerate(rows):
            verdicts.spread([at], self._verdicts.slice(row, row + 1))
        return Rows(ask, [row - span.start for row in rows], verdicts)
