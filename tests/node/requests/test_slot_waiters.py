"""Tickets of forwarded checks that wait for a slot at another member."""

from typing import cast
from unittest.mock import patch

from node.requests.sessions.caller import Caller
from node.requests.sessions.sent_answers import Sender, SentAnswers
from node.requests.slot_waiters import ForwardedWaiters
from ringfence.wire import Role

A, B = cast(Caller, "session a"), cast(Caller, "session b")


def sender(name: str, session: Caller | None) -> Sender[Caller]:
    answers: SentAnswers[Caller] = SentAnswers()
    made = answers.of(Role.CLIENT, name, 1)
    made.session = session
    return made


def waiters() -> tuple[ForwardedWaiters, dict[Caller, list[int]]]:
    called: dict[Caller, list[int]] = {}
    return ForwardedWaiters(called.__setitem__), called


def test_each_client_receives_its_own_tickets_once() -> None:
    forwarded, called = waiters()
    forwarded.add(sender("a", A), [1, 0, 2])
    forwarded.add(sender("b", B), [3])

    forwarded.on_slots_free([2, 3, 1, 9])
    assert called == {A: [2, 1], B: [3]}

    called.clear()
    forwarded.on_slots_free([1, 2, 3])
    assert called == {}


def test_no_ticket_is_forwarded_to_a_disconnected_client() -> None:
    forwarded, called = waiters()
    gone = sender("a", A)
    forwarded.add(gone, [1])
    gone.session = None

    forwarded.on_slots_free([1])

    assert called == {}


def test_the_oldest_tickets_beyond_the_bound_are_forgotten() -> None:
    forwarded, called = waiters()
    with patch("node.requests.slot_waiters.MAX_WAITERS", 2):
        forwarded.add(sender("a", A), [1, 2])
        forwarded.add(sender("a", A), [1])  # Renewed, so 2 is the oldest.
        forwarded.add(sender("b", B), [3])

    forwarded.on_slots_free([1, 2, 3])

    assert called == {A: [1], B: [3]}
