"""Reservations: units that a request spends in advance, because its real cost is known later."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from ringfence import runtime
from ringfence.client.decider import Decider
from ringfence.client.decision import Decision, decide
from ringfence.client.requests.descriptors import checked_cost
from ringfence.client.requests.dispatcher import Dispatcher, require_chargeable
from ringfence.client.requests.targets import Target
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.errors import RingfenceError
from ringfence.rules import Match, RuleSet
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
        is_counted = any([status.source not in BY_POLICY for status in decision.statuses])
        self.reserved = cost if decision.allowed and is_counted else 0
        self._cost: int | None = None
        self.settlement = None

    def __repr__(self) -> str:
        return f"Reservation(reserved={self.reserved}, cost={self.cost}, {self.decision!r})"

    def __bool__(self) -> bool:
        return self.decision.allowed

    @property
    def cost(self) -> int:
        """Units that the request will have spent after the block. At first these are the reserved
        units. Raises `ConfigError` for a cost that is out of range."""
        return self.reserved if self._cost is None else self._cost

    @cost.setter
    def cost(self, cost: int) -> None:
        self._cost = checked_cost(cost)


class _Part(Struct, frozen=True):
    """Those counters of a target that a decision has counted, or those that the failure policy has
    allowed without counting."""

    target: Target
    decision: Decision
    is_counted: bool

    def match(self, rules: RuleSet) -> Sequence[Match | None]:
        """Return the counters by the given rules; see `Target.match`."""
        pairs = zip(self.target.match(rules), self.decision.statuses, strict=False)
        return [
            match if (status.source not in BY_POLICY) is self.is_counted else None
            for match, status in pairs
        ]


@asynccontextmanager
async def reserve(
    decider: Decider,
    dispatcher: Dispatcher,
    target: Target,
    cost: int,
    timeout: float | None,  # noqa: ASYNC109 - a bound that ends in a decision
) -> AsyncIterator[Reservation]:
    """Spend `cost` before the block; after it, charge or refund the difference to the real cost.

    A counter that no node has counted is charged the whole real cost.
    """
    require_chargeable("reserve", [target.match(decider.rules)])
    asked_at = decider.time()
    decision = (await dispatcher.ask(Op.CHECK, [target], [cost], timeout))[0]
    reservation = Reservation(decision, cost)

    async def settle() -> None:
        if reservation._cost is None:
            return
        real = reservation.cost
        counted = [status.source not in BY_POLICY for status in decision.statuses]
        answers: dict[bool, Decision] = {}
        with runtime.move_on_after(UNDO_WITHIN, shield=True):
            for is_counted in sorted({*counted}, reverse=True):
                more = real - (reservation.reserved if is_counted else 0)
                if more > 0:
                    part = _Part(target, decision, is_counted)
                    [answers[is_counted]] = await dispatcher.ask(Op.CHARGE, [part], [more], timeout)
                elif more < 0:
                    age = decider.time() - asked_at
                    answers[is_counted] = await dispatcher.refund(target, decision, -more, age)
        if len(answers) > 1:
            statuses = [answers[each].statuses[at] for at, each in enumerate(counted)]
            reservation.settlement = decide(statuses)
        else:
            reservation.settlement = next(iter(answers.values()), None)

    try:
        yield reservation
    except GeneratorExit:  # The limiter was closed in the block, so no node can be asked.
        raise
    except BaseException:
        with suppress(RingfenceError):  # The caller gets the error of the block.
            await settle()
        raise
    await settle()
