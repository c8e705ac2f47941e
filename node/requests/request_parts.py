"""Parts of a request: sets of its checks (rows) that are answered together, immediately or
later.
"""

from collections.abc import Sequence

from msgspec import Struct

from ringfence.wire import Batch, Results, empty_results

__all__ = ["Part"]


class Part(Struct):
    """Set of the checks (rows) of one request that are answered together."""

    rows: list[int] | None
    """Their places in the request; None for all rows."""
    batch: Batch
    results: Results | None = None
    """Outcomes decided here; None while the rows wait for another member or for a shard."""
    is_short: bool = False
    """Whether they were denied and another data center may still allow them."""

    @property
    def is_decided(self) -> bool:
        """Whether the checks of this part of a request have results and can be answered now."""
        return self.results is not None and not self.is_short

    def split(self, short: Sequence[int]) -> "list[Part]":
        """Separate the denied checks that another data center may still allow from the other checks
        of this part."""
        if not short:
            return [self]
        chosen = {*short}
        final = [at for at in range(len(self.batch)) if at not in chosen]
        parts = [self._cut(final, is_short=False)] if final else []
        return [*parts, self._cut(short, is_short=True)]

    def _cut(self, chosen: Sequence[int], *, is_short: bool) -> "Part":
        assert self.results is not None
        results = empty_results(len(chosen))
        for at, row in enumerate(chosen):
            results.scatter([at], self.results.slice(row, row + 1))
        rows = range(len(self.batch)) if self.rows is None else self.rows
        return Part([rows[row] for row in chosen], self.batch.take(chosen), results, is_short)
