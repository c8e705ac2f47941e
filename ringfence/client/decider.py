"""Interface between a limiter and the counters, in the nodes of a cluster or in this process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ringfence.client.requests.check_ops import LocalChecks, Matches
from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import RingfenceError
from ringfence.rules import OnFailure, RuleSet
from ringfence.transport.interface import Address
from ringfence.wire import Batch, OutcomeRow, Results

__all__ = ["Decider", "is_never_denying"]


class Decider(Protocol):
    """Interface that decides the checks of a limiter. Time-outs are in seconds."""

    @property
    def rules(self) -> RuleSet:
        """Rules against which the limiter matches its requests."""

    @property
    def knows_rules(self) -> bool:
        """Whether `rules` come from the cluster; False until a node has sent them."""

    @property
    def on_failure(self) -> OnFailure:
        """Policy for checks of which no rule is known."""

    async def decide(
        self,
        batch: Batch,
        denies_group: Callable[[int], bool],
        timeout: float | None,  # noqa: ASYNC109
    ) -> Results:
        """Decide every check of a batch; the rule's `on_failure` decides checks that no node
        decides in time.

        `denies_group` returns whether the denial of a row (one check) denies the other rows of its
        group.
        """

    def local_checks(self, matches: Matches) -> LocalChecks | None:
        """Return what decides single checks without waiting; None when a node must be asked."""

    def ask(self, key: bytes, cost: int, timeout: float | None) -> Awaitable[OutcomeRow]:
        """Decide a single check by the limit of its rule; the caller must await the result
        immediately.

        After `timeout` seconds the rule's `on_failure` decides. Raises `AccessDenied` when a node
        rejects the token.
        """

    def time(self) -> float:
        """Return the current seconds of the clock by which the age of a charge is measured."""

    async def refresh_rules(self) -> None:
        """Fetch the rules again, because a node did not know the rule of a check."""

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Refund the cost of some checks of a batch that were charged, without waiting for an
        answer."""

    def outage(self) -> RingfenceError | None:
        """Return the error that explains why no node decides, if a node has sent one."""

    def addresses_of(self, keys: Sequence[bytes]) -> list[Address]:
        """Return the addresses of the nodes that decide keys, or of all known nodes; for errors."""

    @property
    def slot_waits(self) -> SlotWaits:
        """Tasks of this process that wait for slots of concurrency limits."""

    def new_ticket(self) -> int:
        """Return a new ticket, from 1 to 2**64 - 1, which identifies a task that waits for a
        slot."""

    def slot_pause(self) -> float:
        """Return the seconds after which a task that waits for a slot asks again."""

    def keep(self, slots: Batch, period: float) -> None:
        """Start to renew acquired concurrency slots periodically. `slots` is the request that
        releases them."""

    def stop_renewing(self, slots: Batch) -> Batch:
        """Stop renewing acquired concurrency slots; return an updated request that releases
        them."""

    def held(self) -> list[Batch]:
        """Return the requests that would release the concurrency slots which this process still
        renews."""

    async def aclose(self) -> None:
        """Report the decisions that were made in this process, and close all connections."""


def is_never_denying(row: int) -> bool:
    """Return False for every row; argument `denies_group` for batches without all-or-nothing
    groups."""
    return False
