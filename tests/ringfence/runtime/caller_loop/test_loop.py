"""Threads of an application run the loop while they wait; a helper thread acts while none waits."""

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


class Mailbox:
    """Socket of a loop, with an event for each letter that arrives."""

    def __init__(self):
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.due = None
        self.readers = []
        """Name of the thread that read each letter."""
        self.arrived = {}
        self.on_letter = threading.Event()

    def send(self, letter):
        """Make a letter arrive at the loop."""
        self._theirs.send(letter.encode())

    async def wait(self, letter):
        """Wait for a letter; return the thread that continues."""
        await self.event_of(letter).wait()
        return threading.current_thread().name

    def event_of(self, letter):
        return self.arrived.setdefault(letter, runtime.Event())

    def fileno(self):
        return self._ours.fileno()

    def next_deadline(self):
        return self.due

    def receive(self):
        try:
            letters = self._ours.recv(100).decode()
        except BlockingIOError:
            return
        for letter in letters:
            self.readers.append(threading.current_thread().name)
            self.event_of(letter).set()
        self.on_letter.set()

    def tick(self):
        self.due = None
        self.readers.append(threading.current_thread().name)
        self.on_letter.set()

    def abandon(self):
        self.close()

    def close(self):
        self._ours.close()
        self._theirs.close()


@contextmanager
def running():
    """Run a loop that watches a mailbox."""
    loop, mailbox, stop = CallerLoop(), Mailbox(), runtime.Event()

    async def main():
        loop.admit_calls()
        loop.watch(mailbox)
        await stop.wait()
        await loop.wait_idle()
        loop.watch(None)

    loop.start(main)
    try:
        yield loop, mailbox
    finally:
        if not loop.is_lost:
            loop.call_from_thread(stop.set)
        loop.join()
        mailbox.close()


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
    with running() as (loop, mailbox):

        async def ask():
            mailbox.send("a")
            return me(), await mailbox.wait("a")

        assert loop.call(ask) == (me(), me())
        assert mailbox.readers == [me()]


def test_one_thread_reads_the_answers_of_all():
    with running() as (loop, mailbox):
        with (
            waiting_thread(loop, lambda: mailbox.wait("a"), "first"),
            waiting_thread(loop, lambda: mailbox.wait("b"), "second") as second,
        ):
            mailbox.send("b")
            assert second.result(30) == "first_0"
            mailbox.send("a")
        assert mailbox.readers == ["first_0", "first_0"]


def test_a_thread_with_its_answer_lets_another_one_read():
    with running() as (loop, mailbox):
        with (
            waiting_thread(loop, lambda: mailbox.wait("a"), "first") as first,
            waiting_thread(loop, lambda: mailbox.wait("b"), "second") as second,
        ):
            mailbox.send("a")
            first.result(30)
            mailbox.send("b")
            assert second.result(30) == "second_0"
        assert mailbox.readers == ["first_0", "second_0"]


def test_a_call_of_another_thread_can_be_due_before_that_of_the_reader():
    with running() as (loop, mailbox), waiting_thread(loop, lambda: mailbox.wait("a"), "first"):
        loop.call(lambda: runtime.sleep(0.001))
        mailbox.send("a")


def test_a_thread_can_end_the_call_of_the_reader():
    async def set_event():
        event.set()

    with running() as (loop, _):
        event = runtime.Event()
        with waiting_thread(loop, event.wait, "first") as first:
            loop.call(set_event)
            first.result(30)


def test_threads_that_call_while_others_wait_share_what_they_send(monkeypatch):
    """The leader sends what they have queued, as soon as no thread waits for an earlier answer."""

    async def ask(letter):
        queue.append(letter)
        if len(queue) == 1:
            loop.gather(send)
        await mailbox.wait(letter)

    def send():
        sent.append("".join(queue))
        queue.clear()
        reached[len(sent)].set()

    queue, sent, reached = [], [], [threading.Event() for _ in range(6)]
    with running() as (loop, mailbox), ExitStack() as stack:

        def begin(letter):
            return stack.enter_context(waiting_thread(loop, partial(ask, letter), letter))

        try:
            calls = {letter: begin(letter) for letter in "abc"}
            assert reached[3].wait(30)  # The leader sends, maybe after the call has begun to wait.
            assert sent == ["a", "b", "c"]  # The first thread does not expect others.
            # From here on, nothing is sent because of the time.
            monkeypatch.setattr("ringfence.runtime.caller_loop.gathering._LONGEST", inf)
            mailbox.send("b")
            calls["b"].result(30)
            calls.update({letter: begin(letter) for letter in "de"})
            mailbox.send("a")
            calls["a"].result(30)
            assert sent == ["a", "b", "c"]
            mailbox.send("c")
            assert reached[4].wait(30)  # The next leader sends, maybe after this call's return.
            assert sent == ["a", "b", "c", "de"]
        finally:
            mailbox.send("abcde")  # No thread waits forever after a failed assertion.


def test_what_a_thread_has_queued_is_sent_soon_while_others_wait():
    sent = threading.Event()

    async def ask():
        loop.gather(sent.set)
        await mailbox.wait("d")

    with running() as (loop, mailbox), ExitStack() as stack:
        first, second, third = [
            stack.enter_context(waiting_thread(loop, partial(mailbox.wait, letter), letter))
            for letter in "abc"
        ]
        mailbox.send("b")
        second.result(30)
        stack.enter_context(waiting_thread(loop, ask, "d"))
        assert sent.wait(30)
        assert not first.done()
        assert not third.done()
        mailbox.send("acd")


def test_a_lone_thread_sends_at_once_after_others_have_waited(monkeypatch):
    async def ask():
        loop.gather(partial(mailbox.send, "d"))
        await mailbox.wait("d")

    monkeypatch.setattr("ringfence.runtime.caller_loop.gathering._LONGEST", inf)
    with running() as (loop, mailbox):
        with ExitStack() as stack:
            for letter in "abc":
                stack.enter_context(waiting_thread(loop, partial(mailbox.wait, letter), letter))
            mailbox.send("ab")
            mailbox.send("c")
        loop.call(ask)


def test_the_helper_reads_what_arrives_while_no_thread_waits():
    with running() as (loop, mailbox):
        mailbox.send("a")
        assert mailbox.on_letter.wait(30)
        mailbox.on_letter.clear()
        loop.call(lambda: runtime.sleep(0.001))
        mailbox.send("b")
        assert mailbox.on_letter.wait(30)

    assert mailbox.readers == [HELPER, HELPER]


def test_the_helper_runs_timers_while_no_thread_waits():
    ran = threading.Event()

    async def plan():
        loop.call_at(runtime.current_time() + 0.001, ran.set)

    async def set_due():
        mailbox.due = runtime.current_time() + 0.001

    with running() as (loop, mailbox):
        loop.call(plan)
        assert ran.wait(30)
        loop.call(set_due)
        assert mailbox.on_letter.wait(30)

    assert mailbox.readers == [HELPER]


def test_a_future_receives_its_result_while_no_thread_waits():
    with running() as (loop, mailbox):
        future = Future()
        loop.submit(lambda: mailbox.wait("a"), future)
        mailbox.send("a")

        assert future.result(30) == HELPER


def test_a_future_receives_its_result_from_the_thread_that_waits():
    with running() as (loop, mailbox), waiting_thread(loop, lambda: mailbox.wait("a"), "first"):
        future = Future()
        loop.submit(lambda: mailbox.wait("b"), future)
        mailbox.send("b")

        assert future.result(30) == "first_0"
        mailbox.send("a")


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
        return loop.call(lambda: mailbox.wait("a"))

    with running() as (loop, mailbox):
        mailbox.send("a")
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

    with running() as (loop, mailbox), ExitStack() as stack:
        if not leads:
            stack.enter_context(waiting_thread(loop, lambda: mailbox.wait("a"), "first"))
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            loop.call(wait)
        interrupter.join()
        assert ended.wait(30)
        mailbox.send("a")
        assert loop.call(lambda: mailbox.wait("a"))


def test_a_call_inside_the_loop_ends_the_loop_and_rejects_its_calls():
    """A signal handler or finalizer that interrupts a thread in the loop makes such a call."""

    async def nest():
        loop.call(lambda: mailbox.wait("a"))

    with running() as (loop, mailbox):
        future = Future()
        loop.submit(lambda: mailbox.wait("a"), future)
        with waiting_thread(loop, lambda: mailbox.wait("a"), "first") as first:
            with pytest.raises(LoopLost):
                loop.call(nest)
            with pytest.raises(LoopLost):
                first.result(30)
        for use in (loop.call, lambda function: loop.submit(function, Future())):
            with pytest.raises(LoopLost):
                use(lambda: mailbox.wait("b"))
        with pytest.raises(LoopLost):
            future.result(30)
        assert mailbox.fileno() == -1
