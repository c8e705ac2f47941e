"""Corrections of streamed responses that were never read."""

import gc
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.http import HttpRequest, StreamingHttpResponse

from ringfence.client.decision import UNLIMITED
from ringfence.integrations._core.effects import LimitCheckSpec
from ringfence.integrations._core.request_state import RequestState, Spent
from ringfence.integrations._core.settings import Response
from ringfence.integrations.django.integration import DjangoRequest
from ringfence.integrations.django.streams import UnreadStreams, settle_when_streamed
from ringfence.rules import parse_limit
from tests.ringfence.client.blocking.test_forks import forks, in_child
from tests.ringfence.integrations.django import site as django_site

assert django_site  # The import configures Django.


class Gate:
    """Limits whose corrections wait until the test opens the gate."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.settled: list[threading.Thread] = []

    def wait(self) -> None:
        assert self.opened.wait(30)

    def settle(self, state: RequestState, *_: object) -> None:
        state.spent.clear()
        self.wait()
        self.settled.append(threading.current_thread())


def fail() -> None:
    raise ZeroDivisionError


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()
    join()


def settling() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ringfence-settle"]


def join() -> None:
    for thread in settling():
        thread.join(30)


def never_read(limits: Any) -> None:
    spent = Spent(None, limits, LimitCheckSpec(parse_limit("1/hour"), ("k",)), 1, UNLIMITED, 0.0)
    state = RequestState(DjangoRequest(HttpRequest()), spent=[spent])
    response = StreamingHttpResponse([b"a"])
    assert settle_when_streamed(response, limits, state, Response(200, {}))


def test_one_thread_settles_all_streams_that_are_never_read(gate: Gate) -> None:
    for _ in range(20):
        never_read(gate)
    gc.collect()
    threads = settling()
    gate.opened.set()
    join()

    assert len(threads) == 1
    assert threads[0].daemon
    assert gate.settled == threads * 20


def test_a_stream_that_ends_unread_after_the_thread_has_ended_is_settled_too(gate: Gate) -> None:
    gate.opened.set()
    for expected in (1, 2):
        never_read(gate)
        gc.collect()
        join()
        assert len(gate.settled) == expected


def test_an_error_of_one_correction_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams, settled = UnreadStreams(), list[int]()
    for settle in (fail, partial(settled.append, 1)):
        streams.add(settle, has_slots=False)
    join()

    assert settled == [1]
    assert "was not corrected" in caplog.text


def test_when_too_many_streams_wait_only_slots_are_added(gate: Gate) -> None:
    streams = UnreadStreams(most=2)
    settled: list[str] = []
    for _ in range(3):  # The thread has taken the first one, or will take it.
        streams.add(gate.wait, has_slots=False)
    for _ in range(3):
        streams.add(partial(settled.append, "units"), has_slots=False)
        streams.add(partial(settled.append, "slots"), has_slots=True)
    gate.opened.set()
    join()

    assert settled.count("slots") == 3
    assert settled.count("units") <= 1


@forks
def test_a_forked_child_settles_its_own_streams_while_the_parent_settles(gate: Gate) -> None:
    never_read(gate)
    gc.collect()

    def settle_own() -> bool:
        own = Gate()
        own.opened.set()
        never_read(own)
        gc.collect()
        join()
        return len(own.settled) == 1

    assert in_child(settle_own)
