"""Lending at the end of a run: clients borrow units of a limit, spend them, and reset its counter.

No other load and no fault is active, so each answer and the final count are known exactly.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import cycle
from random import Random

from ringfence import runtime
from ringfence.client.decision import Decision
from ringfence.errors import AccessDenied
from ringfence.wire import Source
from simulations.scenarios.generate_rules import LENT_RULE
from simulations.world.hosts import Client
from simulations.world.named_rules import DOMAIN
from simulations.world.operating.statistics import Published, Tally, wrong_decisions

__all__ = ["Lending"]

_REQUEST = {LENT_RULE: "k0"}
_LABEL = f"{DOMAIN} > {LENT_RULE}"
"""Name of the rule in the statistics of nodes."""
_COSTS = (1, 1, 2)
_BURST = (4, 12)
"""Fewest and most concurrent checks; four of them make a key hot."""
_LONGEST_PAUSE_S = 0.05
_SETTLED_S = 1.5
"""Seconds after which each lease has ended, and its client has reported what it spent."""
_RECALLED_S = 0.3
"""Seconds after a reset or a denial until all clients have returned their leases, and may borrow
units again."""
_FIRST, _SECOND, _LAST = 0.6, 0.4, 0.3
"""Parts of the limit that are requested: before and after the first reset, and at the end."""
_MORE = 20
"""Units beyond the limit that are requested."""


class Lending:
    """Requests of two clients that may borrow units, and of an operator who may not."""

    def __init__(
        self,
        borrowers: tuple[Client, Client],
        operator: Client,
        limit: int,
        random: Random,
        read_statistics: Callable[[], Awaitable[Published]],
        disconnect: Callable[[Client], None],
    ) -> None:
        self._borrowers = borrowers
        self._operator = operator
        self._limit = limit
        self._random = random
        self._read_statistics = read_statistics
        self._disconnect = disconnect
        self._tally = Tally()
        self._admitted: Counter[str] = Counter()
        """Units that were admitted since the last reset, by host of the client."""
        self._wrong: list[str] = []

    async def run(self, *, is_bounded: bool) -> list[str]:
        """Send all requests; return what was wrong.

        With `is_bounded`, the borrowers may only refund what they have spent, and may not reset.
        """
        one, other = self._borrowers
        await self._spend(_FIRST, *self._borrowers)
        if is_bounded:
            await self._try_to_reset(one)
        await self._reset()
        await runtime.sleep(_RECALLED_S)
        await self._spend(_SECOND, *self._borrowers)
        await runtime.sleep(_SETTLED_S)
        await self._expect_used("after all leases have ended")
        await self._refund(one)
        await self._use_up()
        await self._expect(other, is_allowed=False, when="when the limit is used up")
        await self._reset()
        await runtime.sleep(_RECALLED_S)
        for client in (other, self._operator):
            await self._expect(client, is_allowed=True, when="after a reset")
        await runtime.sleep(_SETTLED_S)
        await self._compare_statistics()
        await self._lose(one)
        return self._wrong

    async def _spend(self, part: float, *clients: Client) -> None:
        """Request a part of the limit in bursts of concurrent checks, all of which must pass."""
        requested, leased_before, turns = 0, self._leased, cycle(clients)
        while requested < part * self._limit:
            client = next(turns)
            costs = [self._random.choice(_COSTS) for _ in range(self._random.randint(*_BURST))]
            requested += sum(costs)
            async with runtime.open_task_group() as tasks:
                for cost in costs:
                    tasks.start_soon(self._expect_allowed, client, cost)
            await runtime.sleep(self._random.uniform(0.0, _LONGEST_PAUSE_S))
        if self._leased == leased_before:
            self._wrong.append("no client has borrowed units")

    @property
    def _leased(self) -> int:
        """Number of decisions by leases."""
        return self._tally.decisions[_LABEL, "allowed", str(Source.LEASE)]

    async def _expect_allowed(self, client: Client, cost: int) -> None:
        used = self._admitted.total()
        if not (await self._check(client, cost)).allowed:
            self._wrong.append(f"a check is denied although only {used} units are admitted")

    async def _expect(self, client: Client, *, is_allowed: bool, when: str) -> None:
        decision = await self._check(client, 1)
        if decision.allowed is not is_allowed:
            self._wrong.append(f"a check {when} is answered by {decision}")

    async def _check(self, client: Client, cost: int) -> Decision:
        decision = await client.limiter.check(DOMAIN, _REQUEST, cost)
        [status] = decision.statuses
        self._tally.add(_LABEL, "", status, is_admitted=decision.allowed)
        if decision.allowed:
            self._admitted[client.address[0]] += cost
        if self._admitted.total() > self._limit:
            self._wrong.append(f"{self._admitted.total()} of {self._limit} units are admitted")
        return decision

    async def _reset(self) -> None:
        """Reset the counter while clients hold leases; units spent before must not count."""
        decision = await self._operator.limiter.reset(DOMAIN, _REQUEST)
        if decision.source is not Source.OWNER:
            self._wrong.append(f"a reset is answered by {decision.source}")
        self._admitted.clear()
        await self._expect_used("after a reset")

    async def _try_to_reset(self, client: Client) -> None:
        """Reset with a token that lacks the scope; the node must refuse it."""
        try:
            await client.limiter.reset(DOMAIN, _REQUEST)
        except AccessDenied:
            return
        self._wrong.append("a client without the scope has reset a counter")

    async def _refund(self, client: Client) -> None:
        """Refund all units that a client has spent, most of them from leases."""
        name = client.address[0]
        cost = self._admitted[name]
        if cost:
            decision = await client.limiter.refund(DOMAIN, _REQUEST, cost)
            if decision.refunded != cost:
                self._wrong.append(f"{decision.refunded} of {cost} units are refunded")
            self._admitted[name] -= cost
        await self._expect_used("after a refund")

    async def _use_up(self) -> None:
        """Request more than the rest of the limit; exactly the rest must be admitted."""
        for _ in range(self._limit - self._admitted.total() + _MORE):
            await self._check(self._random.choice(self._borrowers), 1)
        await runtime.sleep(_RECALLED_S)
        while (await self._check(self._operator, 1)).allowed and not self._wrong:
            pass
        if self._admitted.total() != self._limit:
            self._wrong.append(f"only {self._admitted.total()} of {self._limit} units are admitted")

    async def _expect_used(self, when: str) -> None:
        """Compare the units that the owner counts with the admitted ones."""
        used, admitted = await self._used(), self._admitted.total()
        if used != admitted:
            self._wrong.append(f"the owner counts {used} units {when}, got {admitted}")

    async def _used(self) -> int:
        decision = await self._operator.limiter.peek(DOMAIN, _REQUEST)
        [status] = decision.statuses
        self._tally.add(_LABEL, "", status, is_admitted=True)
        return self._limit - (status.remaining or 0)

    async def _compare_statistics(self) -> None:
        """Compare the decisions that nodes have published, also by leases, with the answers."""
        published = (await self._read_statistics()).decisions
        of_rule = {each: count for each, count in published.items() if each[0] == _LABEL}
        self._wrong += wrong_decisions(self._tally.decisions, of_rule)

    async def _lose(self, client: Client) -> None:
        """Kill a client that holds a lease. Its owner must then count at least what it spent."""
        await self._spend(_LAST, client)
        self._disconnect(client)
        await runtime.sleep(_SETTLED_S)
        used, admitted = await self._used(), self._admitted.total()
        if not admitted <= used <= self._limit:
            self._wrong.append(f"the owner counts {used} units of a lost client, got {admitted}")
