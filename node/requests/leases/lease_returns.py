"""Return of leases before their keys are reset, or are transferred to another node.

Only clients know how many units of a lease they have spent. So the owner recalls the leases of the
keys, and waits until clients have returned them before it resets or transfers the counters. So a
reset removes all units that were spent before, and no client holds units of the old counter. A
transferred counter contains unspent units only of leases that were not returned in time, or that
were granted meanwhile.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import compress

from hashring import SHARDS, pick
from node.requests.leases.lease_grants import Lender
from node.requests.sessions.caller import Caller
from ringfence import runtime
from ringfence.limiter import NS_PER_SECOND
from ringfence.wire import Batch, Op

__all__ = ["LeaseReturns"]


class LeaseReturns:
    """Leases of one node that clients return before the node resets or transfers their keys."""

    def __init__(self, lender: Lender[Caller], now: Callable[[], int]) -> None:
        self._lender = lender
        self._now = now

    def must_precede(self, batch: Batch) -> bool:
        """Return whether a batch resets keys of which clients hold leases."""
        return batch.op is Op.RESET and bool(self._lender.lent_keys(batch.keys, self._now()))

    def keys_of(self, shards: Iterable[int]) -> list[bytes]:
        """Return the keys of shards of which clients hold leases."""
        keys = self._lender.all_lent_keys(self._now())
        if not keys:
            return []
        is_asked = bytearray(SHARDS)
        for shard in shards:
            is_asked[shard] = 1
        return [*compress(keys, pick(keys, is_asked))]

    @asynccontextmanager
    async def awaited(self, keys: Sequence[bytes], within: float) -> AsyncIterator[None]:
        """Wait until clients have returned their leases of keys; lend no units of these keys until
        the block ends.

        A lease that is not returned `within` this number of seconds stays open.
        """
        lender, returned = self._lender, runtime.Event()
        lent_keys = lender.lent_keys(keys, self._now())
        if not lent_keys:
            yield
            return
        missing = {*lent_keys}

        def on_returned(key: bytes) -> None:
            missing.discard(key)
            if not missing:
                returned.set()

        with lender.withheld(lent_keys, on_returned):
            longest = lender.time_left(lent_keys, self._now()) / NS_PER_SECOND
            with runtime.move_on_after(min(within, longest)):
                await returned.wait()
            yield
