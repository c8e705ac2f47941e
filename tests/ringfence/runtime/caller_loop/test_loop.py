"""Loop that waiting threads of an application run; a helper thread runs it at other times."""

import signal
import socket
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf

import pytest
import trio

from ringfence import runtime
from ringfence.runtime.caller_loop import CallerLoop, LoopLost

HELPER = "ringfence"


class FakeSocket:
    """Fake socket of a loop, with an event for each message that arrives."""

    def __init__(self):
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.due = None
        self.readers = []
        """Names of the threads that read the messages."""
        self.arrived = {}
        self.has_arrived = threading.Event()

    def send(self, message):
        """Send a message to the loop."""
        self._theirs.send(message.encode())

    async def wait(self, message):
        """Wait for a message; return the thread that continues."""
        await self.event_of(message).wait()
        return threading.current_thread().name

    def event_of(self, message):
        return self.arrived.setdefault(message, runtime.Event())

    def fileno(self):
        return self._ours.fileno()

    def next_deadline(self):
        return self.due

    def receive(self):
        try:
            messages = self._ours.recv(100).decode()
        except BlockingIOError:
            return
        for message in messages:
            self.readers.append(threading.current_thread().name)
            self.event_of(message).set()
        self.has_arrived.set()

    def tick(self):
        self.due = None
        self.readers.append(threading.current_thread().name)
        self.has_arrived.set()

    def abandon(self):
        self.close()

    def close(self):
        self._ours.close()
        self._theirs.close()


@contextmanager
def running():
    """Run a loop that watches a fake socket."""
    loop, inbox, stop = CallerLoop(), FakeSocket(), runtime.Event()

    async def main():
        loop.admit_calls()
        loop.watch(inbox)
        await stop.wait()
        await loop.wait_idle()
        loop.watch(None)

    loop.start(main)
    try:
        yield loop, inbox
    finally:
        if not loop.is_lost:
            loop.call_from_thread(stop.set)
        loop.join()
        inbox.close()


@contextmanager
def waiting_thread(loop, function, name):
    """Make a call in another thread, and wait until it has begun."""
    begun = threading.Event()

    async def begin():
        begun.set()
        return await function()

    with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
        result = pool.submit(loop.call, begin)
        assert begun.wait(30)
        with loop._lock:  # The thread waits now, and does not run the loop.
            pass
        yield result


def me():
    return threading.current_thread().name


def test_a_call_needs_no_other_thread():
    with running() as (loop, inbox):

        async def ask():
            inbox.send("a")
            return me(), await inbox.wait("a")

        assert loop.call(ask) == (me(), me())
        assert inbox.readers == [me()]


def test_one_thread_reads_the_answers_of_all():
    with running() as (loop, inbox):
        with (
            waiting_thread(loop, lambda: inbox.wait("a"), "first"),
            waiting_thread(loop, lambda: inbox.wait("b"), "second") as second,
        ):
            inbox.send("b")
            assert second.result(30) == "first_0"
            inbox.send("a")
        assert inbox.readers == ["first_0", "first_0"]


def test_a_thread_with_its_answer_lets_another_one_read():
    with running() as (loop, inbox):
        with (
            waiting_thread(loop, lambda: inbox.wait("a"), "first") as first,
            waiting_thread(loop, lambda: inbox.wait("b"), "second") as second,
        ):
            inbox.send("a")
            first.result(30)
            inbox.send("b")
            assert second.result(30) == "second_0"
        assert inbox.readers == ["first_0", "second_0"]


def test_a_call_of_another_thread_can_be_due_before_that_of_the_reader():
    with running() as (loop, inbox), waiting_thread(loop, lambda: inbox.wait("a"), "first"):
        loop.call(lambda: runtime.sleep(0.001))
        inbox.send("a")


def test_a_thread_can_end_the_call_of_the_reader():
    async def set_event():
        event.set()

    with running() as (loop, _):
        event = runtime.Event()
        with waiting_thread(loop, event.wait, "first") as first:
            loop.call(set_event)
            first.result(30)


def test_messages_of_threads_that_call_while_others_wait_are_sent_together(monkeypatch):
    """The leader sends all queued messages when no thread waits for an earlier answer."""

    async def ask(message):
        queue.append(message)
        if len(queue) == 1:
            loop.gather(send)
        await inbox.wait(message)

    def send():
        sent.append("".join(queue))
        queue.clear()
        reached[len(sent)].set()

    queue, sent, reached = [], [], [threading.Event() for _ in range(6)]
    with running() as (loop, inbox), ExitStack() as stack:

        def begin(message):
            return stack.enter_context(waiting_thread(loop, partial(ask, message), message))

        try:
            calls = {message: begin(message) for message in "abc"}
            assert reached[3].wait(30)  # The leader sends, maybe after the call has begun to wait.
            assert sent == ["a", "b", "c"]  # The first thread does not expect others.
            # From here on, nothing is sent because of the time.
            monkeypatch.setattr("ringfence.runtime.caller_loop.gathering._LONGEST", inf)
            inbox.send("b")
            calls["b"].result(30)
            calls.update({message: begin(message) for message in "de"})
            inbox.send("a")
            calls["a"].result(30)
            assert sent == ["a", "b", "c"]
            inbox.send("c")
            assert reached[4].wait(30)  # The next leader sends, maybe after this call's return.
            assert sent == ["a", "b", "c", "de"]
        finally:
            inbox.send("abcde")  # No thread waits forever after a failed assertion.


def test_messages_of_a_thread_are_sent_soon_while_others_wait():
    sent = threading.Event()

    async def ask():
        loop.gather(sent.set)
        await inbox.wait("d")

    with running() as (loop, inbox), ExitStack() as stack:
        first, second, third = [
            stack.enter_context(waiting_thread(loop, partial(inbox.wait, message), message))
            for message in "abc"
        ]
        inbox.send("b")
        second.result(30)
        stack.enter_context(waiting_thread(loop, ask, "d"))
        assert sent.wait(30)
        assert not first.done()
        assert not third.done()
        inbox.send("acd")


def test_a_lone_thread_sends_at_once_after_others_have_waited(monkeypatch):
    async def ask():
        loop.gather(partial(inbox.send, "d"))
        await inbox.wait("d")

    monkeypatch.setattr("ringfence.runtime.caller_loop.gathering._LONGEST", inf)
    with running() as (loop, inbox):
        with ExitStack() as stack:
            for message in "abc":
                stack.enter_context(waiting_thread(loop, partial(inbox.wait, message), message))
            inbox.send("ab")
            inbox.send("c")
        loop.call(ask)


def test_the_helper_reads_what_arrives_while_no_thread_waits():
    with running() as (loop, inbox):
        inbox.send("a")
        assert inbox.has_arrived.wait(30)
        inbox.has_arrived.clear()
        loop.call(lambda: runtime.sleep(0.001))
        inbox.send("b")
        assert inbox.has_arrived.wait(30)

    assert inbox.readers == [HELPER, HELPER]


def test_the_helper_runs_timers_while_no_thread_waits():
    ran = threading.Event()

    async def plan():
        loop.call_at(runtime.current_time() + 0.001, ran.set)

    async def set_due():
        inbox.due = runtime.current_time() + 0.001

    with running() as (loop, inbox):
        loop.call(plan)
        assert ran.wait(30)
        loop.call(set_due)
        assert inbox.has_arrived.wait(30)

    assert inbox.readers == [HELPER]


def test_a_future_receives_its_result_while_no_thread_waits():
    with running() as (loop, inbox):
        future = Future()
        loop.submit(lambda: inbox.wait("a"), future)
        inbox.send("a")

        assert future.result(30) == HELPER


def test_a_future_receives_its_result_from_the_thread_that_waits():
    with running() as (loop, inbox), waiting_thread(loop, lambda: inbox.wait("a"), "first"):
        future = Future()
        loop.submit(lambda: inbox.wait("b"), future)
        inbox.send("b")

        assert future.result(30) == "first_0"
        inbox.send("a")


def test_a_callback_of_a_future_may_call_the_loop():
    async def answer():
        return 1

    with running() as (loop, _):
        future, found = Future(), []
        future.add_done_callback(lambda _: found.append(loop.call(answer)))
        loop.submit(answer, future)

    assert found == [1]


def test_a_cancelled_future_cancels_its_call():
    ended = threading.Event()

    async def wait():
        try:
            await runtime.sleep(inf)
        finally:
            ended.set()

    with running() as (loop, _):
        future = Future()
        loop.submit(wait, future)
        future.cancel()
        assert ended.wait(30)


def test_a_thread_that_runs_trio_can_call():
    async def main():
        return loop.call(lambda: inbox.wait("a"))

    with running() as (loop, inbox):
        inbox.send("a")
        assert trio.run(main) == HELPER


def test_a_call_of_a_thread_that_runs_trio_is_rejected_after_the_end_of_the_loop():
    async def end():
        pass

    async def main():
        loop.call(end)

    loop = CallerLoop()
    loop.start(end)
    loop.join()

    with pytest.raises(LoopLost):
        trio.run(main)


def test_errors_reach_the_caller():
    async def fail():
        raise ZeroDivisionError

    def fail_at_once():
        raise ZeroDivisionError

    with running() as (loop, _):
        for function in (fail, fail_at_once):
            with pytest.raises(ZeroDivisionError):
                loop.call(function)
            future = Future()
            loop.submit(function, future)
            with pytest.raises(ZeroDivisionError):
                future.result(30)


def test_the_end_of_the_tasks_around_a_call_cancels_it():
    loop = CallerLoop()

    async def main():
        with runtime.move_on_after(inf) as scope:
            loop.admit_calls()
            loop.call_at(runtime.current_time() + 0.001, scope.cancel)
            await runtime.sleep(inf)

    loop.start(main)
    with pytest.raises(CancelledError):
        loop.call(lambda: runtime.sleep(inf))
    loop.join()
    assert not loop.is_running


@pytest.fixture
def alarm():
    """Return a function that sends this process a signal, whose handler raises an error."""

    def raise_error(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_error)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("leads", [True, False])
def test_a_thread_that_is_interrupted_while_it_waits_cancels_its_call(alarm, leads):
    begun, ended = threading.Event(), threading.Event()

    async def wait():
        begun.set()
        try:
            await runtime.sleep(inf)
        finally:
            ended.set()

    def interrupt():
        begun.wait(30)
        with loop._lock:  # So the thread does not run the loop now.
            alarm()

    with running() as (loop, inbox), ExitStack() as stack:
        if not leads:
            stack.enter_context(waiting_thread(loop, lambda: inbox.wait("a"), "first"))
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            loop.call(wait)
        interrupter.join()
        assert ended.wait(30)
        inbox.send("a")
        assert loop.call(lambda: inbox.wait("a"))


def test_a_call_inside_the_loop_ends_the_loop_and_rejects_its_calls():
    """A signal handler or finalizer can make a call in the thread that runs the loop."""

    async def nest():
        loop.call(lambda: inbox.wait("a"))

    with running() as (loop, inbox):
        future = Future()
        loop.submit(lambda: inbox.wait("a"), future)
        with waiting_thread(loop, lambda: inbox.wait("a"), "first") as first:
            with pytest.raises(LoopLost):
                loop.call(nest)
            with pytest.raises(LoopLost):
                first.result(30)
        for use in (loop.call, lambda function: loop.submit(function, Future())):
            with pytest.raises(LoopLost):
                use(lambda: inbox.wait("b"))
        with pytest.raises(LoopLost):
            future.result(30)
        assert inbox.fileno() == -1
