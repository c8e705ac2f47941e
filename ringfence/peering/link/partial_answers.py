"""Partial answers: answers to some rows of a frame, before the rest is answered.

Finds the rows that each partial answer adds. Most frames get one complete answer and need no
instance.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ringfence.peering.link.outgoing import QueuedBatch
from ringfence.wire import Results, empty_results

__all__ = ["AnsweredRows", "PartialAnswers"]


class AnsweredRows(Struct, frozen=True):
    """Answered rows of one batch, with their results."""

    queued: QueuedBatch
    rows: list[int]
    """Indexes of the rows in the batch."""
    results: Results
    """Results of these rows alone."""


class PartialAnswers:
    """Rows of one frame that have been answered so far."""

    def __init__(self, batches: Iterable[QueuedBatch]) -> None:
        self._spans: list[tuple[QueuedBatch, range]] = []
        start = 0
        for queued in batches:
            self._spans.append((queued, range(start, start + len(queued.batch))))
            start += len(queued.batch)
        self._missing = set(range(start))
        self._results = empty_results(start)

    @property
    def is_complete(self) -> bool:
        """Whether all rows of the frame have been answered."""
        return not self._missing

    def take(self, rows: Sequence[int], results: Results) -> list[AnsweredRows]:
        """Add the results of a partial answer; return the newly answered rows of each batch.

        A row that was already answered on an earlier connection is not returned.
        """
        new: set[int] = set()
        for at, row in enumerate(rows):
            if row in self._missing:
                self._results.scatter([row], results.slice(at, at + 1))
                new.add(row)
        self._missing -= new
        found = [self._select(queued, span, new) for queued, span in self._spans]
        return [each for each in found if each.rows]

    def complete(self, queued: QueuedBatch) -> Results | None:
        """Return the results of a batch of the frame; None unless all its rows have been
        answered."""
        span = next(span for each, span in self._spans if each is queued)
        return self._results.slice(span.start, span.stop) if self._has(span) else None

    def incomplete(self) -> list[QueuedBatch]:
        """Return the batches with unanswered rows."""
        return [queued for queued, span in self._spans if not self._has(span)]

    def _has(self, span: range) -> bool:
        return self._missing.isdisjoint(span)

    def _select(self, queued: QueuedBatch, span: range, chosen: set[int]) -> AnsweredRows:
        rows = [row for row in span if row in chosen]
        results = empty_results(len(rows))
        for at, row in enumerate(rows):
            results.scatter([at], self._results.slice(row, row + 1))
        return AnsweredRows(queued, [row - span.start for row in rows], results)
