"""The columns a check travels in between the caller, the router and a connection.

A `Batch` is asked, a `Results` comes back; both keep the caller's order. `Target` is whoever can
decide a batch: a node behind a connection, or the engine in this very process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ringfence.errors import AccessDenied
from ringfence.wire import Batch, CheckId, OutcomeRow, Results

__all__ = [
    "SHED",
    "CheckAnswer",
    "SentBatch",
    "ResultCallback",
    "RefundFn",
    "TimedOut",
    "Shed",
    "Target",
    "PendingCheck",
    "age_ns_of",
]

_LATER_NS = 50_000_000
"""By so much longer than the check, at most, a refund is taken to be on its way."""


def age_ns_of(asked_at: float, now: float) -> int:
    """How long ago a check that was asked for at `asked_at` can have been charged, in ns, when a
    refund that leaves `now` arrives.

    It counts from the owner's clock at its arrival, so a refund that is a little slower than the
    check was must not seem to be about something later.
    """
    passed_ns = max(0, round((now - asked_at) * 1e9))
    return passed_ns + min(passed_ns, _LATER_NS)


@dataclass(frozen=True, slots=True)
class Shed:
    """Answer of an overloaded target: asking another member would add load."""


SHED = Shed()

ResultCallback: TypeAlias = Callable[[Results | AccessDenied | Shed | None], None]
"""Called once with the verdicts of a batch, with the reason why it may not be asked for, with
`SHED` when the target is overloaded, or with None when it did not answer in time. After None it is
called again if the answer comes late.
"""


class SentBatch(Protocol):
    """A batch that was handed to a target."""

    def identify(self) -> CheckId | None:
        """Return the identity of the first row, for asking elsewhere too; the others follow.

        None when the batch has not left yet: then it is withdrawn, and never will.
        """


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A lone check waits no longer for the answer alone, which may come all the same."""

    when_answered: Callable[[ResultCallback], None]
    """Registers a callback for the answer, called at most once; at once when it has come."""
    asked: SentBatch | None = None
    row: int = 0
    """Place of the check in its batch."""
    is_given_up: bool = False
    """Whether no answer is expected any more."""
    is_shed: bool = False
    """Whether the member is overloaded, so that no answer will come."""


CheckAnswer: TypeAlias = OutcomeRow | AccessDenied | TimedOut | None
"""What a lone check is told: its row, that we may not ask, that the answer takes too long, or that
nobody could be had."""

RefundFn: TypeAlias = Callable[[Batch, Sequence[int], Results, float], None]
"""Gives back what rows of a batch were charged by a check that began at an instant."""


class PendingCheck(Protocol):
    """Where a lone check that has joined others waits."""

    @property
    def asked_at(self) -> float:
        """When the first of them asked."""

    async def wait(self, give_back: RefundFn) -> CheckAnswer:
        """Wait for the answer to the check that joined last."""


class Target(Protocol):
    """Whoever decides a batch."""

    def answer_timeout(self, least: float, most: float) -> float:
        """Return the seconds within which an answer is expected, by observed round trips."""

    def is_alive(self) -> bool:
        """Whether it can be reached and has not been silent for a whole time-out."""

    def join(self, key: bytes, cost: int, within: float | None) -> PendingCheck | None:
        """Let a lone check leave with others; None when it must be asked for as a batch.

        After `within` seconds, when given, the wait ends as `TimedOut`.
        """

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback
    ) -> SentBatch | None:
        """Decide `batch` and call `done`, at once or later.

        None when the batch cannot be asked for twice: it was decided or refused at once, or here.
        """
