"""Signal handlers that raise an error, or use the limiter, while a thread waits for it."""

import os
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import inf

import pytest

from ringfence import runtime
from ringfence.blocking import local
from ringfence.runtime.caller_loop import CallerLoop
from ringfence.transport.udp.icmp_errors import read_icmp_errors
from ringfence.transport.udp.udp_socket import UdpSocket
from tests.ringfence.client.blocking.background import RULES, threads


def test_an_interrupted_wait_cancels_and_undoes_its_call():
    started, ended = threading.Event(), threading.Event()

    async def wait_long(limiter):
        started.set()
        try:
            return await limiter.acquire_limit("1/hour queue burst 2", "a", max_wait=1e6)
        finally:
            ended.set()

    def interrupt():
        started.wait(5)
        os.kill(os.getpid(), signal.SIGUSR1)

    def raise_interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    with local(RULES) as limiter:
        assert limiter.check_limit("1/hour queue burst 2", "a")
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                limiter.run(wait_long)
        finally:
            interrupter.join()
            signal.signal(signal.SIGUSR1, before)
        assert ended.wait(5)
        assert limiter.check_limit("1/hour queue burst 2", "a", cost=0).remaining == 1


class Alarm(Exception):
    """Error of a signal handler, like the soft time limit of Celery."""


@pytest.fixture
def alarm():
    """Return a function that makes a signal handler raise an error at once."""

    def raise_error(*_):
        raise error

    def ring(kind):
        nonlocal error
        error = kind
        os.kill(os.getpid(), signal.SIGUSR1)

    error = None
    before = signal.signal(signal.SIGUSR1, raise_error)
    yield ring
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Alarm])
def test_a_signal_that_interrupts_the_event_loop_reaches_the_caller(alarm, kind):
    async def interrupt(limiter):
        await runtime.sleep(0.001)
        alarm(kind)

    with local(RULES) as limiter:
        with pytest.raises(kind):
            limiter.run(interrupt)

        assert limiter.check("d", {"user": "a"})
        assert limiter.acquire("d", {"job": "x"}, max_wait=30)


@pytest.mark.parametrize("error", [TimeoutError("deadline"), OSError("deadline")])
def test_an_error_like_those_of_sockets_reaches_the_caller(error):
    """The signal arrives inside a call of the socket."""

    class Interrupted:
        def __init__(self, raw):
            self._raw = raw

        def __getattr__(self, name):
            return getattr(self._raw, name)

        def sendto(self, *_):
            raise error

        def recvfrom(self, *_):
            raise error

        recvmsg = recvfrom

    refusals = Counter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
        sock = UdpSocket(Interrupted(raw), refusals, print)
        with pytest.raises(type(error)):
            sock.send(b"x", ("127.0.0.1", 9))
        with pytest.raises(type(error)):
            list(read_icmp_errors(Interrupted(raw)))
    assert not refusals


def test_a_signal_in_code_that_catches_errors_reaches_the_caller(alarm):
    async def catch(_):
        try:
            alarm(Alarm)
        except Alarm as error:
            runtime.current_runtime().on_caught(error)
        await runtime.sleep(inf)

    with local(RULES) as limiter:
        with pytest.raises(Alarm):
            limiter.run(catch)
        assert limiter.check("d", {"user": "a"})


def test_a_signal_after_the_start_of_the_thread_ends_the_thread(monkeypatch):
    start = CallerLoop.start

    def start_and_raise(loop, main):
        start(loop, main)
        raise Alarm

    monkeypatch.setattr(CallerLoop, "start", start_and_raise)
    with pytest.raises(Alarm):
        local(RULES).check("d", {"user": "a"})

    for thread in threading.enumerate():
        if thread.name.startswith("ringfence"):
            thread.join(10)
    assert threads() == 0


def test_calls_of_other_threads_go_on_when_a_signal_interrupts_the_event_loop(alarm):
    begun = []

    async def wait(limiter):
        begun.append(threading.current_thread())
        if len(begun) == 1:
            await runtime.sleep(inf)
        return await limiter.check("d", {"user": "a"})

    async def interrupt(_):
        waiting.append(pool.submit(limiter.run, wait))
        while not begun:
            await runtime.sleep(0.001)
        alarm(KeyboardInterrupt)

    waiting = []
    with local(RULES) as limiter, ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            limiter.run(interrupt)

        assert waiting[0].result(10)
        assert len(begun) == 2


def test_a_signal_handler_may_use_the_limiter_that_it_interrupts():
    found = []

    def check(*_):
        found.append(limiter.acquire("d", {"user": "b"}).remaining)

    async def interrupt(inner):
        if not found:
            os.kill(os.getpid(), signal.SIGUSR1)
        return await inner.peek("d", {"user": "a"})

    before = signal.signal(signal.SIGUSR1, check)
    try:
        with local(RULES) as limiter:
            assert limiter.run(interrupt).remaining == 5
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [4]
