"""Interface between a limiter and its counters: nodes of a cluster, or an engine in this
process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import RingfenceError
from ringfence.rules import RuleSet
from ringfence.wire import Batch, OutcomeRow, Results

__all__ = ["Decider", "is_never_denying"]


class Decider(Protocol):
    """Interface that decides the checks of a limiter. Time-outs are seconds."""

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""

    @property
    def knows_rules(self) -> bool:
        """Whether `rules` are the cluster's; False until a node has sent them."""

    async def decide(
        self,
        batch: Batch,
        denies_group: Callable[[int], bool],
        timeout: float | None,  # noqa: ASYNC109
    ) -> Results:
        """Decide every row; rows that no node decides in time get the rule's `on_failure`.

        `denies_group` returns whether the denial of a row denies the other rows of its group.
        """

    def ask(self, key: bytes, cost: int, timeout: float | None) -> Awaitable[OutcomeRow]:
        """Decide a single check by its rule's own limit; await the result at once.

        After `timeout` seconds the rule's `on_failure` decides. Raises `AccessDenied` when a node
        rejects the token.
        """

    def time(self) -> float:
        """Return seconds of the clock that `refund` uses for `asked_at`."""

    async def refresh_rules(self) -> None:
        """Fetch the rules again, after a node did not know the rule of a check."""

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Give back the cost of rows that were charged, without waiting for an answer."""

    def outage(self) -> RingfenceError | None:
        """Return why no node decides, if a node has sent a reason."""

    @property
    def slot_waits(self) -> SlotWaits:
        """Tasks of this process that wait for slots."""

    def new_ticket(self) -> int:
        """Make the identity, from 1 to 2**64 - 1, under which a task waits for a slot."""

    def slot_pause(self) -> float:
        """Return seconds after which a task that waits for a slot asks again."""

    def keep(self, slots: Batch, period: float) -> None:
        """Renew slots from now on. `slots` is the request that releases them."""

    def let_go(self, slots: Batch) -> Batch:
        """Stop the renewal; return the request that releases the slots as they are now."""

    def held(self) -> list[Batch]:
        """Return the release requests of all slots that are renewed."""

    async def aclose(self) -> None:
        """Report the local decisions, and close all connections."""


def is_never_denying(row: int) -> bool:
    """Return False: the `denies_group` argument of batches without groups."""
    return False
