"""Retry after a stale view, or after an owner's failure: which member is asked next.

When the members changed during a request, rows with a new owner are sent to that owner. The other
rows are sent to the standby of the owner that did not answer.
"""

from collections.abc import Sequence

from ringfence.peering.routing.pending_request import Part, PendingRequest
from ringfence.peering.routing.routes import Routes, split_by_member
from ringfence.wire import Batch

__all__ = ["owner_parts", "retry_parts"]


def owner_parts(routes: Routes, pending: PendingRequest) -> list[Part]:
    """Split the rows without results into parts, each with the owner to ask."""
    return _parts(routes, pending.batch, pending.without_shed(pending.missing), as_standby=False)


def retry_parts(routes: Routes, previous: Routes | None, pending: PendingRequest) -> list[Part]:
    """Split the rows without results into parts, each with the new owner or the standby to ask.

    `previous` are the routes by which the owners were asked; None when none was asked.
    """
    batch, missing = pending.batch, pending.missing
    rerouted: Sequence[int] = ()
    if previous is not None and routes is not previous:
        rerouted = _rerouted_rows(previous, routes, batch, missing)
    rest = sorted({*missing} - {*rerouted}) if rerouted else missing
    return [
        *_parts(routes, batch, rerouted, as_standby=False),
        *_parts(routes, batch, pending.without_shed(rest), as_standby=True),
    ]


def _parts(routes: Routes, batch: Batch, rows: Sequence[int], *, as_standby: bool) -> list[Part]:
    split = split_by_member(routes, batch, rows, as_standby=as_standby)
    return [(its_rows, target, as_standby) for its_rows, target in split]


def _rerouted_rows(
    previous: Routes, routes: Routes, batch: Batch, rows: Sequence[int]
) -> list[int]:
    """Return the rows of a batch whose key's owner has changed to a reachable member."""
    keys = [batch.keys[row] for row in rows]
    owners = zip(rows, previous.owners(keys), routes.owners(keys), strict=True)
    return [row for row, old, new in owners if old != new and new in routes.targets]
