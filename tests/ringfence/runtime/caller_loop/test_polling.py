import errno
import select
import socket
from math import inf

import pytest

from ringfence.runtime.caller_loop.interrupts import suppress_system_errors
from ringfence.runtime.caller_loop.polling import Waker, new_poll


@pytest.fixture(params=["poll", "select"])
def poll_kind(request, monkeypatch):
    """Use `select.poll`, or `select.select` as on systems without it."""
    if request.param == "select":
        monkeypatch.delattr(select, "poll")


@pytest.mark.usefixtures("poll_kind")
def test_a_wait_returns_the_files_that_are_readable():
    ours, theirs = socket.socketpair()
    waker = Waker()
    poll = new_poll(ours.fileno(), waker.fileno)

    assert list(poll(-1.0)) == []
    theirs.send(b"a")
    assert list(poll(inf)) == [ours.fileno()]
    ours.recv(1)
    waker.wake()
    waker.wake()
    assert list(poll(inf)) == [waker.fileno]
    waker.clear()
    assert list(poll(0.0)) == []
    for end in (ours, theirs, waker):
        end.close()


@pytest.mark.parametrize("error", [TimeoutError("deadline"), OSError("deadline"), ValueError()])
def test_an_error_of_a_signal_handler_is_not_taken_for_one_of_the_socket(error):
    with pytest.raises(type(error)) as raised, suppress_system_errors():
        raise error
    assert raised.value is error

    with suppress_system_errors():
        raise OSError(errno.EPIPE, "broken pipe")


def test_a_waker_that_is_full_or_closed_wakes_without_an_error():
    waker = Waker()
    for _ in range(100_000):
        waker.wake()
    waker.close()
    waker.wake()
    waker.clear()
