"""Target: receiver of a batch that can decide it, and the values that its callbacks receive.

A target is a node behind a link, or the engine of this process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from ringfence.errors import AccessDenied
from ringfence.wire import Batch, CheckId, OutcomeRow, Results

__all__ = [
    "SHED",
    "CheckAnswer",
    "PendingCheck",
    "ResultCallback",
    "SentBatch",
    "Shed",
    "SingleCheckRouter",
    "SingleCheckTarget",
    "StartedCheck",
    "Target",
    "TimedOut",
]


class Shed(Struct, frozen=True):
    """Answer of an overloaded target, which decides nothing. No other member is asked then,
    because that would add load."""


SHED = Shed()

ResultCallback: TypeAlias = Callable[[Results | AccessDenied | Shed | None], None]
"""Called once with the results of a batch, with the reason why the target refuses to decide, with
`SHED` when the target is overloaded, or with None when it did not answer in time. After a time-out,
which gives None or `SHED`, it is called again if the answer comes late.
"""


class SentBatch(Protocol):
    """Batch that was passed to a target."""

    on_rows: Callable[[list[int], Results], None] | None
    """Receives rows that are answered before others; without it the batch waits for all rows."""

    def identify(self) -> CheckId | None:
        """Return the identity of the first check of the batch, for a request to a second target.

        The identities of the other checks follow in order. Returns None when the batch has not been
        sent yet: then it is withdrawn and will not be sent.
        """


class TimedOut(Struct, frozen=True):
    """Answer to a single check after its time-out; the actual answer may still arrive."""

    when_answered: Callable[[ResultCallback], None]
    """Registers a callback for the answer, called at once when it has come. After `SHED`, it may be
    called again with the results."""
    sent: SentBatch | None = None
    row: int = 0
    """Place of the check in its batch."""
    is_given_up: bool = False
    """Whether no answer is expected any more."""
    is_shed: bool = False
    """Whether the member or this process is overloaded, so that no other member is asked."""


CheckAnswer: TypeAlias = OutcomeRow | AccessDenied | TimedOut | None
"""Answer to a single check: its row, a refusal, a time-out, or None when the member failed."""


class SingleCheckRouter(Protocol):
    """Router that takes over a single check when the first target does not decide it."""

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Refund the charges of some rows of a batch, whose checks were made at the instant
        `asked_at`."""

    def ask_again(
        self,
        key: bytes,
        cost: int,
        asked: "PendingCheck | None",
        late: TimedOut | None,
        within: float | None,
    ) -> Coroutine[object, object, OutcomeRow]:
        """Decide a check whose owner has failed, or has not answered yet."""


class StartedCheck(ABC):
    """Single check whose answer is passed to `on_answer`, so that no task waits for it."""

    __slots__ = ("_pending", "_router", "_row", "_within")

    def __init__(self) -> None:
        self._pending: PendingCheck
        self._row: int
        self._router: SingleCheckRouter
        self._within: float | None

    def attach(
        self, pending: "PendingCheck", row: int, router: SingleCheckRouter, within: float | None
    ) -> None:
        """Set the batch that contains this check, its row, and what `settle` needs."""
        self._pending, self._row, self._router, self._within = pending, row, router, within

    @abstractmethod
    def on_answer(self, answer: CheckAnswer) -> None:
        """Receive the answer, once; must not raise. Only `settle` can use an answer that is no
        row."""

    def settle(self, answer: CheckAnswer) -> Coroutine[object, object, OutcomeRow]:
        """Return the outcome for an answer. When the member did not decide the check in time, the
        router asks again. Raises `AccessDenied`."""
        return self._pending.settle(self._row, answer, self._router, self._within)

    def cancel(self) -> None:
        """Drop the answer, and refund the charge of the check, even if it is reported later."""
        self._pending.cancel_callback(self._row, self._router)


class PendingCheck(Protocol):
    """Batch to which a single check was added, which waits for its answer."""

    @property
    def asked_at(self) -> float:
        """Time at which the first check of the batch was made."""

    def wait(
        self, router: SingleCheckRouter, within: float | None
    ) -> Coroutine[object, object, OutcomeRow]:
        """Wait for the outcome of the check that was added last; see `PendingBatch.wait`."""

    def add_callback(
        self, check: StartedCheck, router: SingleCheckRouter, within: float | None
    ) -> None:
        """Pass the answer of the check that was added last to a callback; see
        `PendingBatch.add_callback`."""

    def cancel_callback(self, row: int, router: SingleCheckRouter) -> None:
        """Cancel the check of a row that has a callback; see `StartedCheck.cancel`."""

    def settle(
        self, at: int, answer: CheckAnswer, router: SingleCheckRouter, within: float | None
    ) -> Coroutine[object, object, OutcomeRow]:
        """Return the outcome of a check for an answer; see `StartedCheck.settle`."""


class Target(Protocol):
    """Interface of a node or engine that decides batches."""

    def answer_timeout(self, margin: float, longest: float) -> float:
        """Return the seconds within which an answer is expected, computed from round-trip times.

        It is at least `margin` above the mean round trip, and at most `longest`.
        """

    def is_alive(self) -> bool:
        """Return whether the target is reachable and has sent something within the time-out."""

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback
    ) -> SentBatch | None:
        """Decide `batch` and call `done`, now or later.

        Returns None when no second target can be asked: the batch was decided or refused
        immediately, or it was decided in this process.
        """


@runtime_checkable
class SingleCheckTarget(Target, Protocol):
    """Target that sends several single checks in one frame."""

    def join(self, key: bytes, cost: int, within: float | None) -> PendingCheck | None:
        """Add a single check to the next frame; None when it must be sent as a batch instead.

        After `within` seconds, when given, the wait ends as `TimedOut`.
        """
