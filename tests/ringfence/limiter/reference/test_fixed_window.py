from ringfence.limiter import NS_PER_SECOND, Algorithm, Calendar, Limit, Table

HOUR = 3600 * NS_PER_SECOND
DAILY = Limit.of_ns(
    3, 24 * HOUR, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="Europe/Berlin"
)
MIDDAY = 1_711_882_800 * NS_PER_SECOND
"""2024-03-31 13:00 in Berlin. This day has 23 hours, because summer time begins."""


def test_a_calendar_window_returns_the_exact_time_until_local_midnight() -> None:
    table = Table(DAILY, max_keys=10)

    assert table.check(b"key", 3, MIDDAY - 12 * HOUR).reset_after_ns == 23 * HOUR
    assert table.check(b"key", 1, MIDDAY).retry_after_ns == 11 * HOUR
    assert table.check(b"key", 1, MIDDAY + 11 * HOUR).is_admitted


def test_a_refund_of_an_older_window_gives_nothing_to_the_current_one() -> None:
    table = Table(Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW), max_keys=10)
    table.check(b"key", 4, 8)
    table.check(b"key", 3, 12)

    assert table.refund(b"key", 4, 13, age_ns=5).remaining == 2
    assert table.refund(b"key", 3, 13, age_ns=1).remaining == 5


def test_another_amount_keeps_the_count_and_other_windows_carry_it_over() -> None:
    table = Table(DAILY, max_keys=10)
    table.check(b"key", 2, MIDDAY)

    table.change_limit(Limit.of_ns(9, 24 * HOUR, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY))

    assert table.peek(b"key", MIDDAY).remaining == 7
    assert table.peek(b"key", MIDDAY + 11 * HOUR).remaining == 7
    assert table.peek(b"key", MIDDAY + 13 * HOUR).remaining == 9


def test_another_amount_keeps_a_window_that_begins_after_the_clock_went_back() -> None:
    table = Table(Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW), max_keys=1)
    table.check(b"key", 3, 150)

    table.change_limit(Limit.of_ns(4, 100, Algorithm.FIXED_WINDOW))

    assert table.peek(b"key", 90).remaining == 1
    assert table.peek(b"key", 150).remaining == 1
    assert table.peek(b"key", 200).remaining == 4


def test_another_period_charges_the_units_in_use_to_the_current_window() -> None:
    for period_ns, reset_after in ((50, 40), (200, 40), (70, 50)):
        table = Table(Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW), max_keys=1)
        table.check(b"key", 3, 150)

        table.change_limit(Limit.of_ns(5, period_ns, Algorithm.FIXED_WINDOW))

        outcome = table.peek(b"key", 160)
        assert (outcome.remaining, outcome.reset_after_ns) == (2, reset_after)
