"""Back-off before the restart of a member that has died."""

from node.supervisor.backoff import BackOff


def test_the_back_off_doubles_with_each_death_up_to_half_a_minute() -> None:
    back_off = BackOff()

    assert [back_off.after(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_the_back_off_is_reset_for_a_member_that_has_run_for_a_minute() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.after(1.0)

    assert [back_off.after(60.0), back_off.after(1.0)] == [0.5, 1]
