"""Lone checks that leave together: one batch that grows until it departs, and a task for each row.

Decides how a row finds the task that waits for it, with as few objects as possible: this is the
path of every `check`. When the batch departs is the link's affair.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from outcome import Outcome
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    current_task,
    in_trio_run,
    reschedule,
    wait_task_rescheduled,
)

from ringfence.errors import AccessDenied
from ringfence.limiter import Code
from ringfence.peering.target import (
    SHED,
    CheckAnswer,
    RefundFn,
    ResultCallback,
    SentBatch,
    Shed,
    TimedOut,
)
from ringfence.runtime import Future, new_future
from ringfence.wire import Batch, Op, Results

__all__ = ["PendingBatch", "new_pending_batch"]

_LAST_CHARGED = Code.OVER_SOFT.value
_SHED_LATE = TimedOut(lambda done: done(SHED), is_shed=True)

_Answers: TypeAlias = Sequence[CheckAnswer] | Mapping[int, CheckAnswer]
"""Answers by row."""
_Yielded = TypeVar("_Yielded")


class PendingBatch(ABC):
    """Checks of one member by tasks that each wait for one row; `batch` grows by `join` alone."""

    __slots__ = (
        "_answer",
        "_gone",
        "_late",
        "_parts",
        "_verdicts",
        "asked",
        "asked_at",
        "batch",
        "costs",
        "is_answered",
        "is_late",
        "keys",
        "room",
    )

    def __init__(self, asked_at: float, room: int) -> None:
        self.asked_at = asked_at
        """When the first of them asked."""
        self.asked: SentBatch | None = None
        """The batch as the link has it, once the link has opened this crowd."""
        self.room = room
        """How many may join; whoever lets them join heeds it."""
        self.keys: list[bytes] = []
        self.costs: list[int] = []
        self.batch = Batch(Op.CHECK, self.keys, self.costs)
        self.is_answered = False
        self.is_late = False
        """Those who joined so far wait no longer; whoever comes now should not join them."""
        self._verdicts: Results | None = None
        self._answer: Results | AccessDenied | Shed | None = None
        self._parts: dict[int, Results] = {}
        """Rows that were answered before others."""
        self._gone: list[tuple[int, RefundFn]] = []
        """Rows that nobody waits for any more."""
        self._late: list[tuple[int, ResultCallback]] = []
        """Rows that are waited for together with other answers by now."""

    def join(self, key: bytes, cost: int) -> None:
        """Add a row; whoever does calls `wait` at once, before anybody else joins."""
        self.keys.append(key)
        self.costs.append(cost)

    @abstractmethod
    async def wait(self, give_back: RefundFn) -> CheckAnswer:
        """Wait for the answer to the row that was added last.

        When the wait is cancelled, what the row was charged, or will be, is given back.
        """

    def resolve_rows(self, rows: list[int], verdicts: Results) -> None:
        """Wake the tasks of some rows, which are answered before others, or late."""
        for place, at in enumerate(rows):
            self._parts[at] = verdicts.slice(place, place + 1)
        self._wake_some({at: self._parts[at].row(0) for at in rows})
        gone, self._gone = self._gone, []
        late, self._late = self._late, []
        for at, give_back in gone:
            self._leave(at, give_back)
        for at, done in late:
            if at in self._parts:
                done(self._parts[at])
            else:
                self._late.append((at, done))
        self.is_answered = self.is_answered or len(self._parts) == len(self.keys)

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Wake every task that waits with its answer; after None, pass a late answer on."""
        self.is_answered = True
        if isinstance(answer, Results):
            self._verdicts = answer
            self._wake(answer.rows())
        elif answer is None and self.asked is not None and self.asked.identify() is not None:
            self._wake(self._lates(is_given_up=True))
        elif isinstance(answer, Shed):
            self._wake([_SHED_LATE] * len(self.keys))
        else:
            self._wake([answer] * len(self.keys))
        for at, give_back in self._gone:
            self._give_back(at, give_back)
        self._answer = answer
        for at, done in self._late:
            self._tell(at, done)

    def be_late(self) -> None:
        """Tell everybody who waits, unless there is an answer, that it takes too long."""
        self.is_late = True
        if not self.is_answered:
            self._wake(self._lates(is_given_up=False))

    def _lates(self, *, is_given_up: bool) -> Sequence[CheckAnswer]:
        asked = self.asked
        return [
            TimedOut(partial(self._hear, at), asked, at, is_given_up)
            for at in range(len(self.keys))
        ]

    def _hear(self, at: int, done: ResultCallback) -> None:
        if at in self._parts:
            done(self._parts[at])
            return
        if self._answer is None:
            self._late.append((at, done))  # After None an answer may come, too.
        if self.is_answered:  # It came before the late task could ask.
            self._tell(at, done)

    def _tell(self, at: int, done: ResultCallback) -> None:
        answer = self._answer
        done(answer.slice(at, at + 1) if isinstance(answer, Results) else answer)

    @abstractmethod
    def _wake(self, answers: Sequence[CheckAnswer]) -> None:
        """Let the tasks that wait go on, each with its answer."""

    @abstractmethod
    def _wake_some(self, answers: Mapping[int, CheckAnswer]) -> None:
        """Let those tasks that wait for some rows go on, each with its answer."""

    def _leave(self, at: int, give_back: RefundFn) -> None:
        """Nobody waits for this row any more."""
        if self.is_answered or at in self._parts:
            self._give_back(at, give_back)
        else:
            self._gone.append((at, give_back))

    def _give_back(self, at: int, give_back: RefundFn) -> None:
        part, verdicts = self._parts.get(at), self._verdicts
        if part is not None:
            if part.outcomes.codes[0] <= _LAST_CHARGED:
                give_back(self.batch.take([at]), [0], part, self.asked_at)
        elif verdicts is not None and verdicts.outcomes.codes[at] <= _LAST_CHARGED:
            give_back(self.batch, [at], verdicts, self.asked_at)

    def _answer_at_once(self) -> CheckAnswer:
        """What the row that was added last is told when the batch was answered as it joined."""
        if self._verdicts is None:
            return _SHED_LATE if isinstance(self._answer, Shed) else None
        return self._verdicts.row(len(self.keys) - 1)


def new_pending_batch(asked_at: float, room: int) -> PendingBatch:
    """Make one for the event loop that runs."""
    return (
        _TrioPendingBatch(asked_at, room) if in_trio_run() else _FuturePendingBatch(asked_at, room)
    )


class _TrioPendingBatch(PendingBatch):
    __slots__ = ("_tasks",)

    def __init__(self, asked_at: float, room: int) -> None:
        super().__init__(asked_at, room)
        self._tasks: list[Task | None] = []

    async def wait(self, give_back: RefundFn) -> CheckAnswer:
        if self.is_answered:
            return self._answer_at_once()
        at = len(self._tasks)
        self._tasks.append(current_task())
        answers: _Answers = await wait_task_rescheduled(partial(self._stand_up, at, give_back))
        return answers[at]

    def _wake(self, answers: Sequence[CheckAnswer]) -> None:
        tasks, self._tasks = self._tasks, [None] * len(self._tasks)  # Each is woken once.
        told = _Told(answers)
        for task in tasks:
            if task is not None:
                reschedule(task, told)

    def _wake_some(self, answers: Mapping[int, CheckAnswer]) -> None:
        told = _Told(answers)
        for at in answers:
            task = self._tasks[at]
            self._tasks[at] = None
            if task is not None:
                reschedule(task, told)

    def _stand_up(self, at: int, give_back: RefundFn, _: RaiseCancelT) -> Abort:
        """The task that waits at a row is cancelled."""
        self._tasks[at] = None
        self._leave(at, give_back)
        return Abort.SUCCEEDED


class _Told(Outcome[_Answers]):
    """What all tasks of a crowd wake with; trio's own `Value` serves but once."""

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
        self._futures: list[Future[CheckAnswer]] = []

    async def wait(self, give_back: RefundFn) -> CheckAnswer:
        if self.is_answered:
            return self._answer_at_once()
        at = len(self._futures)
        future: Future[CheckAnswer] = new_future()
        self._futures.append(future)
        try:
            return await future
        except BaseException:
            self._leave(at, give_back)
            raise

    def _wake(self, answers: Sequence[CheckAnswer]) -> None:
        for future, answer in zip(self._futures, answers, strict=False):
            if not future.done():  # The task may have been cancelled meanwhile, or told of Late.
                future.set_result(answer)

    def _wake_some(self, answers: Mapping[int, CheckAnswer]) -> None:
        for at, answer in answers.items():
            if not self._futures[at].done():
                self._futures[at].set_result(answer)
