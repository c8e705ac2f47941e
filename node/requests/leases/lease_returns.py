"""Return of leases before a reset: the owner first collects the units that clients have spent.

Only clients know how many units of a lease they spent before a reset. So the owner recalls the
leases of the keys and waits until clients have returned them. It decides the reset afterwards. The
reset then removes all units that were spent before, and no client holds units of the old counter.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from node.requests.leases.lease_grants import Lender
from node.requests.sessions.caller import Caller
from ringfence import runtime
from ringfence.limiter import NS_PER_SECOND
from ringfence.wire import Batch, Op

__all__ = ["LeaseReturns"]

_SHARE = 0.75
"""Share of the time until the caller's deadline for which a reset waits for leases."""


class LeaseReturns:
    """Leases of one node that clients return before the node resets their keys."""

    def __init__(self, lender: Lender[Caller], now: Callable[[], int]) -> None:
        self._lender = lender
        self._now = now

    def must_precede(self, batch: Batch) -> bool:
        """Return whether a batch resets keys of which clients hold leases."""
        return batch.op is Op.RESET and bool(self._lender.lent_keys(batch.keys, self._now()))

    @asynccontextmanager
    async def awaited(self, batch: Batch, within: float) -> AsyncIterator[None]:
        """Wait until clients have returned their leases of the keys that a batch resets; lend no
        units of these keys until the block ends.

        `within` are the seconds until the deadline of the caller. A lease that is not returned in
        time stays open: its units count as spent, also after the reset.
        """
        lender, returned = self._lender, runtime.Event()
        lent_keys = lender.lent_keys(batch.keys, self._now())
        missing = {*lent_keys}

        def on_returned(key: bytes) -> None:
            missing.discard(key)
            if not missing:
                returned.set()

        with lender.withheld(lent_keys, on_returned):
            longest = (lender.end_of(lent_keys) - self._now()) / NS_PER_SECOND
            with runtime.move_on_after(min(within * _SHARE, longest)):
                await returned.wait()
            yield
