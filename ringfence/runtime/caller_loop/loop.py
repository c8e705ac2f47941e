"""Event loop that the threads of the application run while they wait for it.

A thread that makes a call runs the task of the call itself, up to the first wait. Then it waits at
the socket, as the leader, and processes what arrives. Other threads follow: each sleeps until its
call is done, or until the leader has its own answer and makes that thread the leader. So a lone
call needs no change of thread.

The helper thread acts while no thread waits: it runs the timers, and reads what nodes send without
a request. After calls it looks at the socket every few milliseconds, so calls need not wake it.

One lock protects tasks, timers and socket. No thread holds it while it waits. A signal handler may
raise an exception in the main thread at any point. While the thread waits, that only cancels its
call. While the thread runs the loop, the state may become incomplete. Then the loop is lost, calls
in progress raise `LoopLost`, and the application continues with a new loop.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from threading import get_ident
from typing import Any, TypeVar

from ringfence.runtime.caller_loop.agenda import Agenda, Source
from ringfence.runtime.caller_loop.call import Call
from ringfence.runtime.caller_loop.gathering import Gathering
from ringfence.runtime.caller_loop.helper import HelperWait
from ringfence.runtime.caller_loop.interrupts import is_interrupt
from ringfence.runtime.caller_loop.polling import Waker, new_poll
from ringfence.runtime.dispatch import Event, in_trio_run, swap_runtime
from ringfence.runtime.tasks import Cancelled, Scheduler, Scope, Task
from ringfence.runtime.timers import Planned

__all__ = ["CallerLoop", "LoopLost", "Source"]

_Result = TypeVar("_Result")

_LONGEST_WAIT = 1.0
"""Longest wait of a thread in seconds before it looks again. Python runs no signal handler for a
signal that arrives in the instant before a wait, until the wait ends."""
_LOST: list["CallerLoop"] = []
"""Loops that were given up. Their coroutines must not be finalized: the `finally` blocks would use
connections that belong to the parent process, after a fork."""


class LoopLost(Exception):
    """Exception of calls whose loop was lost: by a fork, or by an exception of a signal handler."""


class CallerLoop(Scheduler):
    """Runtime whose loop is run by the threads that wait for it."""

    def __init__(self, lost_error: Callable[[], Exception] = LoopLost) -> None:
        """`lost_error` creates the exception of futures whose calls were lost."""
        super().__init__()
        self.is_lost = False
        self._calls_scope = Scope(self)
        self._lost_error = lost_error
        self._lock = threading.Lock()
        self._holder = 0
        """Identifier of the thread that runs the loop now, 0 if none does."""
        self._agenda = Agenda()
        self._leader: Call[Any] | None = None
        self._followers: dict[Call[Any], None] = {}
        self._leads = 0
        """Number of times that a thread became the leader."""
        self._attended = 0
        """Number of calls in progress for which a thread waits."""
        self._unattended: dict[Call[Any], None] = {}
        """Calls in progress for which no thread waits."""
        self._idle: Event | None = None
        """Set when the last call ends, if a task waits for that."""
        self._finished: list[Call[Any]] = []
        """Calls whose futures must get their results."""
        self._interrupt: BaseException | None = None
        """Exception of a signal handler that the code of a task has caught."""
        self._waker = Waker()
        self._poll = new_poll(self._waker.fileno)
        self._poll_until = inf
        """Time at which the leader ends its wait."""
        self._gathering = Gathering()
        self._current: Call[Any] | None = None
        """Call of the thread that runs the loop now; None if it waits for none."""
        self._helper = HelperWait()
        self._has_ended = False
        self._thread = threading.Thread(target=self._help, name="ringfence", daemon=True)

    # -- from any thread -----------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether calls can be made."""
        return not self._has_ended and not self.is_lost

    def start(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start the main task and the helper thread. The loop ends with the main task."""
        task = Task(self, main(), Scope(self), self)
        self.call_from_thread(task.step)
        self._thread.start()

    def join(self) -> None:
        """Wait until the helper thread has ended, after the end of the main task."""
        self._thread.join()
        self._waker.close()
        self._helper.close()

    def call(self, function: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run a coroutine function, and wait for its result.

        When the wait is interrupted, the call is cancelled. Raises `LoopLost`.
        """
        if in_trio_run():  # Tasks of this loop cannot run in a thread that runs trio.
            return self._call_from_trio(function)
        call: Call[_Result] = Call(self, self._on_call_ended)
        try:
            self._enter(lambda: self._begin(call, function), call)
            while not call.is_done:
                if self.is_lost:
                    raise LoopLost
                if self._leader is call:
                    files = self._poll(min(_LONGEST_WAIT, self._poll_until - time.monotonic()))
                    self._enter(lambda: self._process(files), call)  # noqa: B023
                elif call.turn is not None:
                    call.turn.acquire(timeout=_LONGEST_WAIT)
        except BaseException:
            self._withdraw(call)
            raise
        return call.result()

    def submit(self, function: Callable[[], Awaitable[_Result]], future: Future[_Result]) -> None:
        """Run a coroutine function, whose result `future` receives. Cancelling the future cancels
        the call. Raises `LoopLost`."""
        call = Call(self, self._on_call_ended, future)

        def on_done(_: object) -> None:
            if future.cancelled() and not call.is_done:
                with suppress(LoopLost):
                    self.call_from_thread(call.scope.cancel)

        future.add_done_callback(on_done)
        if in_trio_run():
            self.call_from_thread(lambda: self._begin(call, function))
        else:
            self._enter(lambda: self._begin(call, function), None)

    def call_from_thread(self, call: Callable[[], object]) -> None:
        """Schedule a call from any thread; a thread of this loop makes it.

        Raises `LoopLost`, also after the end of the main task, because no thread would make it.
        """
        if self._holder == get_ident():
            self._ready.append(call)
            return
        with self._lock:
            if not self.is_running:
                raise LoopLost
            self._ready.append(call)
            self._settle(None)

    def abandon(self) -> None:
        """Give the loop up, without any further use of its connections and its lock.

        For a forked child process, where the other threads do not exist."""
        self.is_lost = True
        _LOST.append(self)
        if self._agenda.source is not None:
            self._agenda.source.abandon()

    # -- from tasks ----------------------------------------------------------------------------

    def current_time(self) -> float:
        """Return the time of the system's monotonic clock in seconds."""
        return time.monotonic()

    def call_at(self, when: float, call: Callable[[], object]) -> Planned:
        """Schedule a call for an instant, or for now if that instant has passed."""
        return self._agenda.timers.plan(when, call)

    def gather(self, call: Callable[[], object]) -> None:
        """Schedule a call that serves several threads, such as sending what they have queued.

        While several threads wait, the leader makes the call when all of them wait for it, or after
        a millisecond. So threads that call while others wait for an answer share a frame.
        """
        if self._gathering.is_open and self._leader not in (None, self._current):
            self._gathering.add(call)
        else:
            self._ready.append(call)

    def watch(self, source: Source | None) -> None:
        """Process what a socket receives, from now on; with None, watch no socket."""
        self._agenda.source = source
        file = None if source is None else source.fileno()
        waker = self._waker.fileno
        self._poll = new_poll(waker) if file is None else new_poll(file, waker)
        self._waker.wake()
        self._helper.set_file(file)

    def admit_calls(self) -> None:
        """Cancel all later calls when the scope of the current task is cancelled."""
        self._calls_scope = self.running().scope

    async def wait_idle(self) -> None:
        """Wait until no call is in progress."""
        while self._attended or self._unattended:
            self._idle = Event()
            await self._idle.wait()

    def is_interrupt(self, error: BaseException) -> bool:
        """Return whether an exception comes from a signal handler, so that the loop is lost."""
        if isinstance(error, Cancelled | GeneratorExit):
            return False
        if isinstance(error, BaseExceptionGroup):
            return any([self.is_interrupt(each) for each in error.exceptions])
        return is_interrupt(error)

    def on_caught(self, error: Exception) -> bool:
        """Receive an exception that the code of a task has caught; return whether it is an
        interrupt, which the loop raises in its thread."""
        if not self.is_interrupt(error):
            return False
        self._interrupt = error
        return True

    def ended(self, task: Task, failure: BaseException | None, value: object) -> None:
        """Record the end of the main task, which ends the helper."""
        self._has_ended = True

    # -- inside the lock -----------------------------------------------------------------------

    def _enter(
        self, act: Callable[[], object], call: Call[Any] | None, *, is_helper: bool = False
    ) -> None:
        """Lock the loop, call `act`, run the tasks that are ready, and let another thread wait.

        `call` is the call for which this thread waits, if any.
        """
        if self._holder == get_ident():
            # A signal handler or a finalizer has interrupted this thread inside the loop.
            self._give_up()
            raise LoopLost
        with self._lock:
            try:
                if self.is_lost:
                    raise LoopLost
                self._holder = get_ident()
                self._current = call
                before = swap_runtime(self)
                try:
                    act()
                    self._run_ready()
                    if self._leader in (None, call):
                        self._ready += self._gathering.take(self._attended)
                        self._run_ready()
                finally:
                    swap_runtime(before)
                    self._holder = 0
                if self._interrupt is not None:
                    raise self._interrupt
                if self.is_lost:
                    raise LoopLost
                self._settle(call)
                if is_helper:
                    self._plan_helper()
            except BaseException:
                self._give_up()
                raise
        if self._finished:
            self._deliver()

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            ready.popleft()()

    def _begin(self, call: Call[_Result], function: Callable[[], Awaitable[_Result]]) -> None:
        if call.is_unattended:
            self._unattended[call] = None
        else:
            self._attended += 1
        call.begin(function, self._calls_scope)
        if call.is_done or call.is_unattended:
            return
        if self._leader is None:
            self._leader = call
            self._leads += 1
        else:
            call.turn = threading.Lock()
            call.turn.acquire()
            self._followers[call] = None
            self._gathering.count_thread()

    def _on_call_ended(self, call: Call[Any]) -> None:
        if call.is_unattended:
            del self._unattended[call]
            if call.has_future:
                self._finished.append(call)
        else:
            self._attended -= 1
            if call in self._followers:
                del self._followers[call]
                assert call.turn is not None
                call.turn.release()
        if self._idle is not None and not self._attended and not self._unattended:
            self._idle.set()

    def _process(self, files: Collection[int]) -> None:
        """Process what the socket has received and the timers that are due."""
        if self._waker.fileno in files:
            self._waker.clear()
        elif files:
            self._agenda.receive()
        now = time.monotonic()
        if now >= self._poll_until:
            self._agenda.run_due(now)

    def _settle(self, call: Call[Any] | None) -> None:
        """Choose the thread that waits next, and wake it if it must act earlier than it would.

        `call` is that of this thread, if any.
        """
        leader = self._leader
        if leader is not None and leader is call and call.is_done:
            leader = self._leader = None
        deadline = -inf if self._ready or self._has_ended else self._agenda.next_deadline()
        if leader is None and self._followers:
            follower = next(iter(self._followers))
            del self._followers[follower]
            self._leader = follower
            self._leads += 1
            self._gathering.is_open = True
            self._poll_until = self._gathering.limit(deadline)
            assert follower.turn is not None
            follower.turn.release()
        elif leader is None:
            is_urgent = bool(self._unattended) or deadline == -inf
            self._helper.wake_by(deadline, is_urgent=is_urgent)
        elif leader is call:
            self._gathering.is_open = bool(self._followers)
            self._poll_until = self._gathering.limit(deadline)
        elif leader.is_done or deadline < self._poll_until:
            self._poll_until = deadline
            self._waker.wake()

    def _withdraw(self, call: Call[Any]) -> None:
        """Cancel the call of a thread that does not wait any longer."""
        if call.is_done or not call.has_begun or self.is_lost:
            return

        def cancel() -> None:
            if not call.is_done:
                self._attended -= 1
                call.is_unattended = True
                self._unattended[call] = None
                call.scope.cancel()
            self._followers.pop(call, None)
            if self._leader is call:
                self._leader = None

        with suppress(LoopLost):
            self._enter(cancel, None)

    def _deliver(self) -> None:
        finished, self._finished = self._finished, []
        for call in finished:
            call.deliver()

    def _give_up(self) -> None:
        """Give the loop up, and wake all threads that wait."""
        if self.is_lost:
            return
        self.abandon()
        followers, self._followers = self._followers, {}
        for call in followers:
            assert call.turn is not None
            call.turn.release()
        self._waker.wake()
        self._helper.wake()
        for call in [call for call in self._unattended if call.has_future]:
            call.lose(self._lost_error())
            self._finished.append(call)

    def _call_from_trio(self, function: Callable[[], Awaitable[_Result]]) -> _Result:
        future: Future[_Result] = Future()
        try:
            self.submit(function, future)
            return future.result()
        except BaseException:
            future.cancel()  # No effect if the call itself raised the exception.
            raise

    # -- the helper thread ---------------------------------------------------------------------

    def _help(self) -> None:
        """Act while no thread of the application waits, until the main task has ended."""
        try:
            with suppress(LoopLost):
                while not self._has_ended:
                    self._enter(self._look, None, is_helper=True)
                    self._helper.wait()
        finally:
            self._deliver()

    def _look(self) -> None:
        """Do what is due, unless a thread of the application waits and does that."""
        if self._leader is None:
            self._agenda.receive()
            self._agenda.run_due(time.monotonic())

    def _plan_helper(self) -> None:
        deadline = -inf if self._has_ended else self._agenda.next_deadline()
        self._helper.plan(
            deadline,
            self._leads,
            has_leader=self._leader is not None,
            is_urgent=bool(self._unattended) or self._has_ended,
        )
