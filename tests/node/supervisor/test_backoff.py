"""How long a member that has died waits."""

from node.supervisor.backoff import BackOff


def test_each_death_waits_twice_as_long_up_to_half_a_minute() -> None:
    back_off = BackOff()

    assert [back_off.after(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_member_that_has_lived_for_a_minute_is_started_at_once_again() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.after(1.0)

    assert [back_off.after(60.0), back_off.after(1.0)] == [0.5, 1]
