"""Coalescing of single checks: one batch that grows until it is sent, and a waiting task or a
callback for each check.

Every `check` takes this path, so it makes as few objects as possible. The link decides when the
batch is sent.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from outcome import Outcome

from ringfence.errors import AccessDenied
from ringfence.limiter import Code
from ringfence.peering.target import (
    SHED,
    CheckAnswer,
    ResultCallback,
    SentBatch,
    Shed,
    SingleCheckRouter,
    StartedCheck,
    TimedOut,
)
from ringfence.runtime import Future, new_future, on_trio
from ringfence.wire import Batch, Op, OutcomeRow, Results, empty_results

__all__ = ["PendingBatch", "new_pending_batch"]

_LAST_CHARGED = Code.OVER_SOFT.value
_SHED = TimedOut(lambda done: done(SHED), is_shed=True)

_Answers: TypeAlias = Sequence[CheckAnswer] | Mapping[int, CheckAnswer]
"""Answers by row."""
_Yielded = TypeVar("_Yielded")


class PendingBatch(ABC):
    """Batch of single checks for one member, with a waiting task or a callback for each check.
    Only `join` adds checks."""

    __slots__ = (
        "_answer",
        "_answered",
        "_callbacks",
        "_cancelled",
        "_late",
        "_results",
        "asked_at",
        "batch",
        "costs",
        "is_answered",
        "is_late",
        "keys",
        "room",
        "sent",
    )

    def __init__(self, asked_at: float, room: int) -> None:
        self.asked_at = asked_at
        """Time at which the first check was made."""
        self.sent: SentBatch | None = None
        """The batch in the link's queue; None before the link has added it."""
        self.room = room
        """Maximum number of rows; the caller of `join` checks it."""
        self.keys: list[bytes] = []
        self.costs: list[int] = []
        self.batch = Batch(Op.CHECK, self.keys, self.costs)
        self.is_answered = False
        self.is_late = False
        """Whether the tasks no longer wait, so that no more checks should join."""
        self._results: Results | None = None
        """Results of all rows; those of unanswered rows charge nothing."""
        self._answer: Results | AccessDenied | Shed | None = None
        self._answered: set[int] = set()
        """Rows that were answered before others, or late."""
        self._callbacks: dict[int, StartedCheck] = {}
        """Checks without a task, by row."""
        self._cancelled: dict[int, tuple[SingleCheckRouter, bool]] = {}
        """Rows that were cancelled or shed before their answer, and whether only a slot is to be
        refunded."""
        self._late: list[tuple[int, ResultCallback]] = []
        """Rows whose task waits for other members, too."""

    def join(self, key: bytes, cost: int) -> None:
        """Add a check to the batch. Before another check is added, the caller must await `wait` or
        call `add_callback`."""
        self.keys.append(key)
        self.costs.append(cost)

    @abstractmethod
    async def wait(self, router: SingleCheckRouter, within: float | None) -> OutcomeRow:
        """Wait for the outcome of the check that was added last.

        When the member does not decide the check in time, `router` asks again, until `within`
        seconds have passed since the check. When the wait is cancelled, `router` refunds the charge
        of the check, even if the charge is reported later. Raises `AccessDenied` when the member
        refuses to decide.
        """

    def add_callback(
        self, check: StartedCheck, router: SingleCheckRouter, within: float | None
    ) -> None:
        """Pass the answer of the check that was added last to `check`, as `wait` returns it."""
        row = len(self.keys) - 1
        check.attach(self, row, router, within)
        if self.is_answered:
            check.on_answer(self._answer_at_once())
        else:
            self._callbacks[row] = check

    def cancel_callback(self, row: int, router: SingleCheckRouter) -> None:
        """Cancel a check that has a callback; see `StartedCheck.cancel`."""
        self._callbacks.pop(row, None)
        self._cancel(row, router)

    async def settle(
        self, at: int, answer: CheckAnswer, router: SingleCheckRouter, within: float | None
    ) -> OutcomeRow:
        """Return the row of a check, after the router has decided it if the member of this batch
        did not."""
        if isinstance(answer, tuple):
            return answer
        if isinstance(answer, AccessDenied):
            raise answer
        if answer is not _SHED:
            return await router.ask_again(self.keys[at], self.costs[at], self, answer, within)
        is_allowed = False
        try:
            row = await router.ask_again(self.keys[at], self.costs[at], self, answer, within)
            is_allowed = row[0] <= _LAST_CHARGED
        finally:  # The member may have decided the check, and its answer may come late.
            self._cancel(at, router, is_allowed=is_allowed)
        return row

    def _call_back_all(self, answers: _Answers, rows: Iterable[int]) -> None:
        """Pass the answers of some rows to the checks that have no task."""
        for row in rows:
            check = self._callbacks.pop(row, None)
            if check is not None:
                check.on_answer(answers[row])

    def resolve_rows(self, rows: list[int], results: Results) -> None:
        """Wake the tasks of some checks of the batch, whose answers arrived before the others,
        or late."""
        if self._results is None:
            self._results = empty_results(len(self.keys))
        self._results.scatter(rows, results)
        self._answered.update(rows)
        if not isinstance(self._answer, Shed):  # Otherwise no task waits.
            answers = dict(zip(rows, results.rows(), strict=True))
            self._wake_rows(answers)
            self._call_back_all(answers, rows)
        self._refund_cancelled(rows)
        late, self._late = self._late, []
        for at, done in late:
            if at in self._answered:
                done(self._results.slice(at, at + 1))
            else:
                self._late.append((at, done))
        self.is_answered = self.is_answered or len(self._answered) == len(self.keys)

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Wake every waiting task with the answer to its check. After None or `SHED`, a late answer
        is still processed."""
        self.is_answered = True
        if isinstance(answer, Results):
            self._results = answer
            self._wake_all(answer.rows())
        elif answer is None and self.sent is not None and self.sent.identify() is not None:
            self._wake_all(self._timed_out(is_given_up=True))
        elif isinstance(answer, Shed):
            self._wake_all([_SHED] * len(self.keys))
        else:
            self._wake_all([answer] * len(self.keys))
        self._answer = answer
        if self._cancelled and isinstance(answer, Results):
            self._refund_cancelled(range(len(answer.sources)))
        for at, done in self._late:
            self._call_back(at, done)

    def mark_late(self) -> None:
        """Wake every waiting task with a time-out, unless the batch was answered."""
        self.is_late = True
        if not self.is_answered:
            self._wake_all(self._timed_out(is_given_up=False))

    def _wake_all(self, answers: Sequence[CheckAnswer]) -> None:
        self._wake(answers)
        if self._callbacks:
            self._call_back_all(answers, list(self._callbacks))

    def _timed_out(self, *, is_given_up: bool) -> Sequence[CheckAnswer]:
        sent = self.sent
        return [
            TimedOut(partial(self._when_answered, at), sent, at, is_given_up)
            for at in range(len(self.keys))
        ]

    def _when_answered(self, at: int, done: ResultCallback) -> None:
        if at in self._answered and self._results is not None:
            done(self._results.slice(at, at + 1))
            return
        if self._answer is None or isinstance(self._answer, Shed):
            self._late.append((at, done))  # A real answer may follow.
        if self.is_answered:  # The answer arrived before `done` was registered.
            self._call_back(at, done)

    def _call_back(self, at: int, done: ResultCallback) -> None:
        answer = self._answer
        done(answer.slice(at, at + 1) if isinstance(answer, Results) else answer)

    @abstractmethod
    def _wake(self, answers: Sequence[CheckAnswer]) -> None:
        """Wake all waiting tasks, each with its answer."""

    @abstractmethod
    def _wake_rows(self, answers: Mapping[int, CheckAnswer]) -> None:
        """Wake the tasks that wait for the given rows of the batch, each with its answer."""

    def _cancel(self, at: int, router: SingleCheckRouter, *, is_allowed: bool = False) -> None:
        """Refund a check whose task no longer waits, now or when the answer to the check
        arrives. With `is_allowed`, refund only its slot."""
        self._cancelled[at] = router, is_allowed
        if at in self._answered or isinstance(self._answer, Results):
            self._refund_cancelled([at])

    def _refund_cancelled(self, answered: Iterable[int]) -> None:
        """Refund the charges of those answered rows that were cancelled, in one batch."""
        results, charged = self._results, dict[SingleCheckRouter, list[int]]()
        if results is None or not self._cancelled:
            return
        codes, slots = results.outcomes.codes, results.outcomes.slot_ids
        for at in answered:
            router, is_allowed = self._cancelled.pop(at, (None, False))
            if router is not None and codes[at] <= _LAST_CHARGED and (slots[at] or not is_allowed):
                charged.setdefault(router, []).append(at)
        for router, rows in charged.items():
            router.refund(self.batch, rows, results, self.asked_at)

    def _answer_at_once(self) -> CheckAnswer:
        """Return the answer to the check that was added last, if the batch was already answered."""
        if isinstance(self._answer, Results):
            return self._answer.row(len(self.keys) - 1)
        return _SHED if isinstance(self._answer, Shed) else None


def new_pending_batch(asked_at: float, room: int) -> PendingBatch:
    """Create an empty batch for the running event loop."""
    return (
        _TrioPendingBatch(asked_at, room)
        if on_trio.in_trio_run()
        else _FuturePendingBatch(asked_at, room)
    )


class _TrioPendingBatch(PendingBatch):
    __slots__ = ("_tasks",)

    def __init__(self, asked_at: float, room: int) -> None:
        super().__init__(asked_at, room)
        self._tasks: dict[int, on_trio.Task] = {}
        """Waiting tasks by row."""

    async def wait(self, router: SingleCheckRouter, within: float | None) -> OutcomeRow:
        at = len(self.keys) - 1
        if self.is_answered:
            answer = self._answer_at_once()
        else:
            self._tasks[at] = on_trio.current_task()
            answers: _Answers = await on_trio.wait_task_rescheduled(
                partial(self._on_cancel, at, router)
            )
            answer = answers[at]
        if isinstance(answer, tuple):
            return answer
        return await self.settle(at, answer, router, within)

    def _wake(self, answers: Sequence[CheckAnswer]) -> None:
        tasks, self._tasks = self._tasks, {}  # Each task is woken once.
        shared = _SharedAnswers(answers)
        for task in tasks.values():
            on_trio.reschedule(task, shared)

    def _wake_rows(self, answers: Mapping[int, CheckAnswer]) -> None:
        shared = _SharedAnswers(answers)
        for at in answers:
            task = self._tasks.pop(at, None)
            if task is not None:
                on_trio.reschedule(task, shared)

    def _on_cancel(
        self, at: int, router: SingleCheckRouter, _: on_trio.RaiseCancelT
    ) -> on_trio.Abort:
        del self._tasks[at]
        self._cancel(at, router)
        return on_trio.Abort.SUCCEEDED


class _SharedAnswers(Outcome[_Answers]):
    """Answers to the checks of a batch, shared by all waiting tasks; trio's `Value` serves only
    one task."""

    __slots__ = ("_answers",)

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    def unwrap(self) -> _Answers:
        return self._answers

    def send(self, gen: Generator[_Yielded, _Answers, object]) -> _Yielded:
        return gen.send(self._answers)

    async def asend(self, agen: AsyncGenerator[_Yielded, _Answers]) -> _Yielded:
        return await agen.asend(self._answers)


class _FuturePendingBatch(PendingBatch):
    __slots__ = ("_futures",)

    def __init__(self, asked_at: float, room: int) -> None:
        super().__init__(asked_at, room)
        self._futures: dict[int, Future[CheckAnswer]] = {}
        """Futures of the waiting tasks by row."""

    async def wait(self, router: SingleCheckRouter, within: float | None) -> OutcomeRow:
        at = len(self.keys) - 1
        if self.is_answered:
            answer = self._answer_at_once()
        else:
            future: Future[CheckAnswer] = new_future()
            self._futures[at] = future
            try:
                answer = await future
            except BaseException:
                self._cancel(at, router)
                raise
        if isinstance(answer, tuple):
            return answer
        return await self.settle(at, answer, router, within)

    def _wake(self, answers: Sequence[CheckAnswer]) -> None:
        futures, self._futures = self._futures, {}  # Each task is woken once.
        for at, future in futures.items():
            if not future.done():  # The task may have been cancelled.
                future.set_result(answers[at])

    def _wake_rows(self, answers: Mapping[int, CheckAnswer]) -> None:
        for at, answer in answers.items():
            future = self._futures.pop(at, None)
            if future is not None and not future.done():
                future.set_result(answer)
