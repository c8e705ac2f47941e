"""Long requests are decided in steps, and callers take turns."""

from collections.abc import Iterator

import pytest

from node.requests.sessions.request_scheduler import STEP_COST, RequestScheduler, steps_of
from node.requests.sessions.sent_answers import Sender, SentAnswers
from ringfence.wire import Role

SENDERS: SentAnswers[object] = SentAnswers()


def sender(name: str, session: int = 1, role: Role = Role.CLIENT) -> Sender[object]:
    return SENDERS.of(role, name, session)


def steps(log: list[str], name: str, count: int) -> Iterator[None]:
    """Return a request with this many steps."""
    for number in range(count):
        if number:
            yield
        log.append(name)


def all_steps(scheduler: RequestScheduler[object]) -> None:
    while scheduler:
        scheduler.step()


def test_tokens_are_served_in_turn_for_any_number_of_connections() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler()
    log: list[str] = []
    for session in range(8):
        scheduler.add(sender("attacker", session), steps(log, "attacker", 2), 10)
    scheduler.add(sender("app"), steps(log, "app", 3), 10)

    all_steps(scheduler)

    assert log[:6] == ["attacker", "app"] * 3
    assert log.count("attacker") == 16


def test_the_senders_of_one_token_are_served_in_turn() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler()
    log: list[str] = []
    busy, other = sender("app", 1), sender("app", 2)
    for _ in range(3):
        scheduler.add(busy, steps(log, "busy", 2), 10)
    scheduler.add(other, steps(log, "other", 1), 10)

    all_steps(scheduler)

    assert log == ["busy", "other", *["busy"] * 5]


def test_requests_of_one_sender_are_done_in_order() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler()
    log: list[str] = []
    for name in ("first", "second"):
        scheduler.add(sender("app"), steps(log, name, 2), 10)

    all_steps(scheduler)

    assert log == ["first", "first", "second", "second"]


def test_one_token_fills_half_of_the_places() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler(most=100)
    flooding, app = sender("attacker"), sender("app")
    scheduler.add(flooding, steps([], "", 1), 50)

    assert not scheduler.has_room(flooding, 1)
    assert not scheduler.has_room(sender("attacker", 2), 1)
    assert scheduler.has_room(app, 50)
    assert not scheduler.has_room(app, 51)

    all_steps(scheduler)

    assert scheduler.rows == 0
    assert flooding.waiting == 0
    assert scheduler.has_room(flooding, 50)


def test_one_token_fills_half_of_the_bytes() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler(most_bytes=100)
    flooding, app = sender("attacker"), sender("app")
    scheduler.add(flooding, steps([], "", 1), 1, 20)
    scheduler.add(flooding, steps([], "", 1), 1, 30)

    assert scheduler.has_room(flooding, 1)
    assert not scheduler.has_room(flooding, 1, 1)
    assert scheduler.has_room(app, 1, 50)
    assert not scheduler.has_room(app, 1, 51)
    scheduler.add(app, steps([], "", 1), 1, 45)
    assert scheduler.has_room(sender("third"), 1, 5)
    assert not scheduler.has_room(sender("third"), 1, 6)

    all_steps(scheduler)

    assert scheduler.size == 0
    assert scheduler.has_room(flooding, 1, 50)


def test_the_places_of_three_tokens_are_no_more_than_those_of_all() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler(most=100)
    for name, rows in (("one", 50), ("two", 45)):
        scheduler.add(sender(name), steps([], "", 1), rows)

    assert scheduler.has_room(sender("three"), 5)
    assert not scheduler.has_room(sender("three"), 6)


def test_16384_checks_and_16_mib_of_requests_may_wait() -> None:
    scheduler: RequestScheduler[object] = RequestScheduler()
    app = sender("app")

    assert [scheduler.has_room(app, rows) for rows in (8192, 8193)] == [True, False]
    assert [scheduler.has_room(app, 1, size) for size in (8 << 20, (8 << 20) + 1)] == [True, False]


@pytest.mark.parametrize("rows", [1, 64, 65, 4096])
def test_steps_cover_all_rows_and_cost_no_more_than_one_step_may(rows: int) -> None:
    each = 16
    found = list(steps_of([], rows, each * rows))

    assert [row for step in found for row in step] == list(range(rows))
    assert max(map(len, found)) * each <= STEP_COST


def test_a_group_is_never_cut() -> None:
    groups = [3, 60, 2, 100, 1]

    found = list(steps_of(groups, sum(groups), 16 * sum(groups)))

    assert found == [range(63), range(63, 65), range(65, 165), range(165, 166)]
