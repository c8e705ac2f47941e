"""Renewal of held slots by requests to their owners."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from ringfence import runtime
from ringfence.client.slots.held_slots import RENEWALS_PER_PERIOD, Held, HeldSlots
from ringfence.limiter import Code
from ringfence.peering.link.outgoing import join_batches
from ringfence.wire import Batch, Results, Source

__all__ = ["SlotRenewer"]

logger = logging.getLogger("ringfence.client")

_COUNTED = (Source.OWNER, Source.STANDBY)
"""Sources that have the counters. If they do not know a slot, it has ended."""


class SlotRenewer:
    """Task that renews slots. One request renews all slots that are due."""

    def __init__(
        self,
        decide: Callable[[Batch, float | None], Awaitable[Results]],
        now: Callable[[], float],
        report_error: Callable[[Exception], None],
    ) -> None:
        """`decide` sends a batch of renewals, and takes a time-out in seconds."""
        self._decide = decide
        self._now = now
        self._report_error = report_error
        self._held = HeldSlots()
        self._changed = runtime.Event()

    def keep(self, slots: Batch, period: float) -> None:
        """Start to renew acquired concurrency slots periodically."""
        self._held.keep(slots, period, self._now())
        self._changed.set()

    def stop_renewing(self, slots: Batch) -> Batch:
        """Stop renewing acquired concurrency slots; return the request that releases them."""
        return self._held.stop_renewing(slots, self._now())

    def held(self) -> list[Batch]:
        """Return the requests that would release the concurrency slots which this process still
        renews."""
        return self._held.origins()

    async def run(self) -> None:
        """Renew slots periodically until cancelled."""
        while True:
            due = self._held.next_due()
            self._changed = runtime.Event()
            with runtime.move_on_after(math.inf if due is None else max(0.0, due - self._now())):
                await self._changed.wait()
            held = self._held.due(self._now())
            if held:
                try:
                    await self._renew(held)
                except Exception as error:  # noqa: BLE001 - other slots must be renewed
                    self._report_error(error)
                    for each in held:
                        each.on_unanswered(self._now())

    async def _renew(self, held: Sequence[Held]) -> None:
        for each in held:
            each.on_unanswered(self._now())
        timeout = min([each.period for each in held]) / RENEWALS_PER_PERIOD
        results = await self._decide(join_batches([each.renewal() for each in held]), timeout)
        start = 0
        for each in held:
            rows = range(start, start + len(each.release))
            start += len(each.release)
            codes = {results.outcomes.codes[row] for row in rows}
            if not all([results.sources[row] in _COUNTED for row in rows]):
                continue
            if Code.DENIED in codes and not each.is_released:
                await self._take_again(each, timeout)
            else:
                each.on_renewed(self._now())

    async def _take_again(self, held: Held, timeout: float) -> None:  # noqa: ASYNC109
        """Acquire slots again that were lost, for example because their owner failed before
        replication."""
        results = await self._decide(held.new_check(), timeout)
        was_lost = held.is_lost
        held.on_renewed(self._now())
        if all(results.outcomes.slot_ids):
            held.release = replace(held.release, slot_ids=list(results.outcomes.slot_ids))
            if held.is_released:
                await self._decide(held.release, None)
            return
        held.is_lost = True
        if not was_lost:
            logger.warning(
                "slot lost: it was not renewed in time and no other is free, period=%g s",
                held.period,
            )
