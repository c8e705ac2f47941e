"""Asks that wait for one member: which of them may leave together, and as what request.

Decides how full a frame gets and how the columns of several batches are laid behind each other.
When frames leave is the link's affair.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ringfence.peering.columns import Batch, Done, Results
from ringfence.wire import NO_ID, CheckId, Request

__all__ = ["MOST_ROWS", "Ask", "joined_batch", "request_of", "take_together"]

MOST_ROWS = 512
"""Asks are joined up to here, so that a member decides one frame while the next is being made. So
many fit into a message, however long their keys and limits are."""


@dataclass(slots=True, eq=False)
class Ask:
    """A batch to send to a member, and the callback for its answer."""

    batch: Batch
    hops: int
    stand_in: bool
    done: Done
    asked_at: float
    withdraw: Callable[["Ask"], None]
    """Removes the ask from the outbox."""
    on_rows: Callable[[list[int], Results], None] | None = None
    """Callback for rows that are answered before others; without it the ask waits for all rows."""
    id: CheckId | None = None
    """Identity of the first row, once the ask has been sent; further rows follow in order."""

    def identify(self) -> CheckId | None:
        """Return the identity of the first row; withdraw the ask when it has not been sent."""
        if self.id is None:
            self.withdraw(self)
        return self.id


def take_together(waiting: deque[Ask]) -> list[Ask]:
    """Take the first ask out of those that wait, and what follows it into the same frame."""
    first = waiting.popleft()
    together = [first]
    if not waiting:
        return together
    rows = len(first.batch)
    while waiting and _is_same_kind(waiting[0], first):
        rows += len(waiting[0].batch)
        if rows > MOST_ROWS:
            break
        together.append(waiting.popleft())
    return together


def request_of(together: list[Ask], seq: int, view: int, deadline_ms: int) -> Request:
    """Make the request that asks for all of them."""
    first = together[0]
    batch = first.batch if len(together) == 1 else joined_batch([ask.batch for ask in together])
    return Request(
        seq=seq,
        op=batch.op,
        view=view,
        deadline_ms=deadline_ms,
        hops=first.hops,
        stand_in=first.stand_in,
        keys=batch.keys,
        costs=batch.costs,
        groups=batch.groups,
        limits=batch.limits,
        which=batch.which,
        ages_ns=batch.ages_ns,
        leases=batch.leases,
        ids=batch.ids,
    )


def _is_same_kind(one: Ask, other: Ask) -> bool:
    return (
        one.batch.op is other.batch.op and one.hops == other.hops and one.stand_in == other.stand_in
    )


def joined_batch(batches: list[Batch]) -> Batch:
    """Lay batches of one kind behind each other."""
    grouped = any(batch.groups for batch in batches)
    limited = any(batch.limits for batch in batches)
    aged = any(batch.ages_ns for batch in batches)
    leased = any(batch.leases for batch in batches)
    named = any(batch.ids for batch in batches)
    joined = Batch(batches[0].op, [], [])
    places: dict[object, int] = {}
    for batch in batches:
        rows = len(batch)
        joined.keys.extend(batch.keys)
        joined.costs.extend(batch.costs)
        if grouped:
            joined.groups.extend(batch.groups or [1] * rows)
        if limited:
            for limit in batch.limits:
                if limit not in places:
                    joined.limits.append(limit)
                    places[limit] = len(joined.limits)
            numbers = [0, *(places[limit] for limit in batch.limits)]
            joined.which.extend([numbers[place] for place in batch.which or [0] * rows])
        if aged:
            joined.ages_ns.extend(batch.ages_ns or [0] * rows)
        if leased:
            joined.leases.extend(batch.leases or [0] * rows)
        if named:
            joined.ids.extend(batch.ids or [NO_ID] * rows)
    return joined
