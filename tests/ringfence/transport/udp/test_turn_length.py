"""Length of turns: a third of the time of other tasks, if these delay the rest of the work."""

import pytest

from ringfence.transport.udp.turn_length import MIN_TURN, TurnLength


@pytest.mark.parametrize(
    ("by_others", "expected"), [(0.0, MIN_TURN), (0.0003, MIN_TURN), (0.03, 0.01), (30.0, 0.02)]
)
def test_a_turn_after_an_interrupted_one_lasts_a_third_of_the_time_between(
    by_others: float, expected: float
) -> None:
    turn = TurnLength()
    turn.begin(1.0)
    turn.end(1.5, is_done=False)

    assert turn.begin(1.5 + by_others) == pytest.approx(expected)


def test_a_turn_is_short_when_the_last_one_has_done_all_work() -> None:
    turn = TurnLength()
    assert turn.begin(1.0) == MIN_TURN
    turn.end(1.5, is_done=False)
    turn.begin(4.5)

    assert turn.begin(10.0) == MIN_TURN


def test_time_without_work_is_no_time_of_other_tasks() -> None:
    turn = TurnLength()
    turn.begin(1.0)
    turn.end(1.5, is_done=True)

    assert turn.begin(4.5) == MIN_TURN
