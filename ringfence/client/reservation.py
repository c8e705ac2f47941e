"""Reservations: units that a request spends in advance, because its real cost is known later."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from ringfence import runtime
from ringfence.client.decider import Decider
from ringfence.client.decision import NO_RULE, Decision, Status, decide
from ringfence.client.requests.descriptors import checked_cost
from ringfence.client.requests.dispatcher import Dispatcher, require_chargeable
from ringfence.client.requests.targets import Target
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.errors import ConfigError, RingfenceError
from ringfence.rules import Match, RuleSet
from ringfence.wire import BY_POLICY, Op

__all__ = ["Reservation", "is_uncounted", "reserve"]


class Reservation:
    """Reserved units of a request. It is true in a condition when the request is allowed.

    Set `cost` as soon as the real cost is known. Otherwise the reserved units stay spent.
    """

    __slots__ = ("_cost", "_is_over", "decision", "reserved", "settlement")

    decision: Decision
    """Decision on the reserved units."""
    reserved: int
    """Units that were spent in advance; 0 when the request is denied, or when neither a node nor
    this process has counted it."""
    settlement: Decision | None
    """Decision of the charge or refund at the end of the block. None before that, without a
    difference, or if an owner did not answer in time."""

    def __init__(self, decision: Decision, cost: int) -> None:
        self.decision = decision
        with_rule = [s for s in decision.statuses if s.rule is not None] or decision.statuses
        is_counted = not all(map(is_uncounted, with_rule))
        self.reserved = cost if decision.allowed and is_counted else 0
        self._cost: int | None = None
        self._is_over = False
        self.settlement = None

    def __repr__(self) -> str:
        return f"Reservation(reserved={self.reserved}, cost={self.cost}, {self.decision!r})"

    def __bool__(self) -> bool:
        return self.decision.allowed

    @property
    def cost(self) -> int:
        """Units that the request will have spent after the block. At first these are the reserved
        units. Raises `ConfigError` for a cost that is out of range, and after the block."""
        return self.reserved if self._cost is None else self._cost

    @cost.setter
    def cost(self, cost: int) -> None:
        if self._is_over:
            raise ConfigError(
                f"the cost of a reservation must be set inside its block, got {cost!r} after it; "
                "charge or refund the difference with `charge` or `refund`"
            )
        self._cost = checked_cost(cost, "the cost of a reservation")


def is_uncounted(status: Status) -> bool:
    """Return whether no node or process has counted the units of a request: the failure policy
    decided, or the owner does not know the rule."""
    return status.source in BY_POLICY or status.is_unknown


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
            None if is_uncounted(status) is self.is_counted else match for match, status in pairs
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

    A limit under which no node has counted the estimate is charged the whole real cost.
    """
    require_chargeable("reserve", [target.match(decider.rules)])
    asked_at = decider.time()
    decision = (await dispatcher.ask(Op.CHECK, [target], [cost], timeout))[0]
    reservation = Reservation(decision, cost)

    async def settle() -> None:
        reservation._is_over = True
        if reservation._cost is None:
            return
        counted = [not is_uncounted(status) for status in decision.statuses]
        more = {each: reservation.cost - reservation.reserved * each for each in counted}
        answers: dict[bool, Decision] = {}

        async def charge() -> None:
            parts = [each for each in more if more[each] > 0]
            targets = [_Part(target, decision, each) for each in parts]
            costs = [more[each] for each in parts]
            found = await dispatcher.ask(Op.CHARGE, targets, costs, timeout) if parts else []
            answers.update(zip(parts, found, strict=True))

        async def refund() -> None:
            age = decider.time() - asked_at
            answers[True] = await dispatcher.refund(target, decision, -more[True], age)

        errors: list[RingfenceError] = []

        async def attempt(step: Callable[[], Awaitable[None]]) -> None:
            try:
                await step()
            except RingfenceError as error:
                errors.append(error)

        with runtime.move_on_after(UNDO_WITHIN, shield=True):
            async with runtime.open_task_group() as tasks:  # A silent owner delays only its part.
                if more.get(True, 0) < 0:
                    tasks.start_soon(attempt, refund)
                await attempt(charge)
        if errors:
            raise errors[0]
        if answers and len(answers) == len([each for each in more.values() if each]):
            statuses = [
                answers[each].statuses[at] if each in answers else NO_RULE
                for at, each in enumerate(counted)
            ]
            reservation.settlement = decide(statuses)

    try:
        yield reservation
    except GeneratorExit:  # The limiter was closed in the block, so no node can be asked.
        raise
    except BaseException:
        with suppress(RingfenceError):  # The caller gets the error of the block.
            await settle()
        raise
    await settle()
