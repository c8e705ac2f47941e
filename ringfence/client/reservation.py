"""Reservations: units that a request spends in advance, because its real cost is known later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from ringfence import runtime
from ringfence.client.decider import Decider
from ringfence.client.decision import Decision
from ringfence.client.requests.descriptors import checked_cost
from ringfence.client.requests.dispatcher import Dispatcher, require_chargeable
from ringfence.client.requests.targets import Target
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.errors import RingfenceError
from ringfence.wire import BY_POLICY, Op

__all__ = ["Reservation", "reserve"]


class Reservation:
    """Reserved units of a request. It is true in a condition when the request is allowed.

    Set `cost` as soon as the real cost is known. Otherwise the reserved units stay spent.
    """

    __slots__ = ("_cost", "decision", "reserved", "settlement")

    decision: Decision
    """Decision on the reserved units."""
    reserved: int
    """Units that were spent in advance; 0 when the request is denied or no node has counted it."""
    settlement: Decision | None
    """Decision of the charge or refund at the end of the block. None before that, without a
    difference, or without an answer in time."""

    def __init__(self, decision: Decision, cost: int) -> None:
        self.decision = decision
        is_counted = decision.allowed and decision.source not in BY_POLICY
        self.reserved = self._cost = cost if is_counted else 0
        self.settlement = None

    def __repr__(self) -> str:
        return f"Reservation(reserved={self.reserved}, cost={self.cost}, {self.decision!r})"

    def __bool__(self) -> bool:
        return self.decision.allowed

    @property
    def cost(self) -> int:
        """Units that the request will have spent after the block. At first these are the reserved
        units. Raises `ConfigError` for a cost that is out of range."""
        return self._cost

    @cost.setter
    def cost(self, cost: int) -> None:
        self._cost = checked_cost(cost)


@asynccontextmanager
async def reserve(
    decider: Decider,
    dispatcher: Dispatcher,
    target: Target,
    cost: int,
    timeout: float | None,  # noqa: ASYNC109 - a bound that ends in a decision
) -> AsyncIterator[Reservation]:
    """Spend `cost` before the block; after it, charge or refund the difference to the real cost."""
    require_chargeable("reserve", [target.match(decider.rules)])
    asked_at = decider.time()
    decision = (await dispatcher.ask(Op.CHECK, [target], [cost], timeout))[0]
    reservation = Reservation(decision, cost)

    async def settle() -> None:
        more = reservation.cost - reservation.reserved
        with runtime.move_on_after(UNDO_WITHIN, shield=True):
            if more > 0:
                charged = await dispatcher.ask(Op.CHARGE, [target], [more], timeout)
                reservation.settlement = charged[0]
            elif more < 0:
                age = decider.time() - asked_at
                reservation.settlement = await dispatcher.refund(target, decision, -more, age)

    try:
        yield reservation
    except GeneratorExit:  # The limiter was closed in the block, so no node can be asked.
        raise
    except BaseException:
        with suppress(RingfenceError):  # The caller gets the error of the block.
            await settle()
        raise
    await settle()
