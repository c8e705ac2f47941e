"""Batches that wait for one member: selection for one frame, and encoding as one request."""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from ringfence.peering.target import ResultCallback
from ringfence.wire import NO_ID, Batch, CheckId, Request, Results

__all__ = ["LARGE_ROWS", "MAX_ROWS", "QueuedBatch", "coalesce", "join_batches", "make_request"]

MAX_ROWS = 512
"""Maximum number of rows in a frame of several batches. A member can then decide one frame while
the next one is built. So many rows always fit into a message, for any length of keys and limits."""

LARGE_ROWS = 256
"""Rows from which a batch leaves at once: the member can decide it while the next one is built, and
more rows in its frame would save little for each row."""


class QueuedBatch(Struct, eq=False):
    """Batch that waits to be sent to a member, with the callbacks for its results."""

    batch: Batch
    hops: int
    as_standby: bool
    on_results: ResultCallback
    asked_at: float
    withdraw: Callable[["QueuedBatch"], None]
    """Removes the batch from the send queue."""
    on_rows: Callable[[list[int], Results], None] | None = None
    """Receives rows that are answered before others; without it the batch waits for all rows."""
    id: CheckId | None = None
    """Identity of the first row, once the batch has been sent; further rows follow in order."""

    def identify(self) -> CheckId | None:
        """Return the identity of the batch's first check. If the batch was not sent yet, remove
        it from the queue."""
        if self.id is None:
            self.withdraw(self)
        return self.id

    def drop_callbacks(self) -> None:
        """Forget who receives the results. The receivers refer to this batch, so memory would
        otherwise wait for garbage collection."""
        self.on_results, self.on_rows = _ignore_results, None


def _ignore_results(results: object) -> None:
    """Ignore results that arrive after all results."""


def coalesce(queue: deque[QueuedBatch]) -> list[QueuedBatch]:
    """Remove from a queue the first batch, and the following batches that fit into the same
    frame."""
    first = queue.popleft()
    together = [first]
    if not queue:
        return together
    rows = len(first.batch)
    while queue and _is_same_kind(queue[0], first):
        rows += len(queue[0].batch)
        if rows > MAX_ROWS:
            break
        together.append(queue.popleft())
    return together


def make_request(together: list[QueuedBatch], seq: int, view: int, deadline_ms: int) -> Request:
    """Create one request message for several batches of checks."""
    first = together[0]
    batch = first.batch if len(together) == 1 else join_batches([each.batch for each in together])
    return Request(seq, view, deadline_ms, first.hops, first.as_standby, batch)


def _is_same_kind(one: QueuedBatch, other: QueuedBatch) -> bool:
    return (
        one.batch.op is other.batch.op
        and one.hops == other.hops
        and one.as_standby == other.as_standby
    )


def join_batches(batches: list[Batch]) -> Batch:
    """Join several batches of one operation into one, in order."""
    has_groups = any(batch.groups for batch in batches)
    has_limits = any(batch.limits for batch in batches)
    has_ages = any(batch.ages_ns for batch in batches)
    has_slot_ids = any(batch.slot_ids for batch in batches)
    has_ids = any(batch.ids for batch in batches)
    joined = Batch(batches[0].op, [], [])
    places: dict[object, int] = {}
    for batch in batches:
        rows = len(batch)
        joined.keys.extend(batch.keys)
        joined.costs.extend(batch.costs)
        if has_groups:
            joined.groups.extend(batch.groups or [1] * rows)
        if has_limits:
            for limit in batch.limits:
                if limit not in places:
                    joined.limits.append(limit)
                    places[limit] = len(joined.limits)
            numbers = [0, *(places[limit] for limit in batch.limits)]
            joined.which.extend([numbers[place] for place in batch.which or [0] * rows])
        if has_ages:
            joined.ages_ns.extend(batch.ages_ns or [0] * rows)
        if has_slot_ids:
            joined.slot_ids.extend(batch.slot_ids or [0] * rows)
        if has_ids:
            joined.ids.extend(batch.ids or [NO_ID] * rows)
    return joined
