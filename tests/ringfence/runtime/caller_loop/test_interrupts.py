import os
import signal
import threading
from functools import partial

import pytest

from ringfence.runtime.caller_loop.interrupts import is_interrupt


class Alarm(Exception):
    """Error of a signal handler."""


def raise_alarm(*_):
    raise Alarm


class Handler:
    def method(self, *_):
        raise Alarm

    def __call__(self, *_):
        raise Alarm


def error_of(function):
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "handler", [raise_alarm, Handler().method, Handler(), partial(raise_alarm, 1)]
)
def test_an_error_of_a_signal_handler_is_an_interrupt(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        error = error_of(lambda: os.kill(os.getpid(), signal.SIGUSR1))
        assert isinstance(error, Alarm)
        assert is_interrupt(error)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_interrupt(error)


def test_an_error_of_other_code_is_no_interrupt():
    assert not is_interrupt(error_of(raise_alarm))
    assert not is_interrupt(ValueError())


def test_an_exception_that_ends_programs_is_an_interrupt_in_any_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(is_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join()

    assert found == [True]
    assert is_interrupt(SystemExit())


def test_an_error_in_another_thread_is_no_interrupt():
    """Python runs signal handlers in the main thread only."""
    found = []

    def check():
        found.append(is_interrupt(error_of(raise_alarm)))

    before = signal.signal(signal.SIGUSR1, raise_alarm)
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    signal.signal(signal.SIGUSR1, before)

    assert found == [False]
