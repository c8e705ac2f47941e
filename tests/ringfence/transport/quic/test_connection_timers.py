"""Heap of the deadlines of connections."""

from math import inf
from typing import cast

from ringfence.transport.quic.connection import QuicConnection
from ringfence.transport.quic.connection_table import ConnectionTimers


class Fake:
    """Connection that has only a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.timer_at = inf

    def next_deadline(self) -> float:
        return self.deadline


def timers_of(*fakes: Fake) -> ConnectionTimers:
    connections = [cast("QuicConnection", fake) for fake in fakes]
    timers = ConnectionTimers(dict.fromkeys(connections))
    for connection in connections:
        timers.schedule(connection, connection.next_deadline())
    return timers


def test_a_deadline_that_became_later_is_found_only_when_it_is_soon() -> None:
    fake = Fake(1.0)
    timers = timers_of(fake)
    fake.deadline = 5.0

    assert [timers.next_deadline(soon) for soon in (-inf, 0.9, 1.0)] == [1.0, 1.0, 5.0]
    assert timers.take_due(4.9) is None
    assert timers.take_due(5.0) is fake


def test_the_earliest_deadline_that_still_holds_ends_the_search() -> None:
    moved, due = Fake(1.0), Fake(2.0)
    timers = timers_of(moved, due)
    moved.deadline = 3.0

    assert timers.next_deadline(10.0) == 2.0
    assert timers.take_due(2.5) is due
    assert timers.next_deadline() == 3.0


def test_entries_of_deadlines_that_became_earlier_are_dropped() -> None:
    fake = Fake(4.0)
    timers = timers_of(fake)
    timers.schedule(cast("QuicConnection", fake), 1.0)
    fake.deadline = 9.0

    assert timers.next_deadline(6.0) == 9.0
    assert len(timers) == 1


def test_a_connection_without_a_deadline_waits_forever() -> None:
    fake = Fake(1.0)
    timers = timers_of(fake)
    fake.deadline = inf

    assert timers.next_deadline(2.0) == inf
    assert timers.take_due(1e9) is None
