from dataclasses import replace

from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit, Table

SECOND = NS_PER_SECOND
FOUR = Limit.of_ns(4, 60 * SECOND, Algorithm.FIXED_WINDOW, first_hit=True)


def test_a_window_begins_with_the_first_hit_and_later_ones_do_not_prolong_it() -> None:
    table = Table(FOUR, max_keys=10)

    assert table.check(b"key", 3, 50 * SECOND).reset_after_ns == 60 * SECOND
    assert table.check(b"key", 1, 100 * SECOND).reset_after_ns == 10 * SECOND
    assert table.check(b"key", 1, 109 * SECOND).retry_after_ns == SECOND
    assert table.check(b"key", 4, 110 * SECOND).reset_after_ns == 60 * SECOND


def test_denied_checks_and_peeks_begin_no_window() -> None:
    table = Table(FOUR, max_keys=10)
    table.check(b"key", 5, 0)
    table.peek(b"key", 10 * SECOND)

    assert table.check(b"key", 1, 50 * SECOND).reset_after_ns == 60 * SECOND


def test_a_peek_after_a_change_of_the_limit_begins_no_window() -> None:
    table = Table(Limit.of_ns(1, 120, slots=60), max_keys=10)
    table.check(b"key", 1, 0)

    table.change_limit(FOUR)
    table.peek(b"key", 121)

    assert table.check(b"key", 1, 50 * SECOND).reset_after_ns == 60 * SECOND


def test_another_amount_keeps_window_and_count() -> None:
    table = Table(FOUR, max_keys=10)
    table.check(b"key", 3, 50 * SECOND)

    table.change_limit(replace(FOUR, amount=9))

    assert table.peek(b"key", 100 * SECOND).remaining == 6
    assert table.peek(b"key", 100 * SECOND).reset_after_ns == 10 * SECOND


def test_another_length_begins_a_window_with_the_counted_units() -> None:
    table = Table(FOUR, max_keys=10)
    table.check(b"key", 3, 50 * SECOND)

    table.change_limit(replace(FOUR, period=10.0))

    assert table.peek(b"key", 100 * SECOND).remaining == 1
    assert table.peek(b"key", 100 * SECOND).reset_after_ns == 10 * SECOND


def test_remote_hits_count_in_the_open_window_or_begin_a_window_at_their_time() -> None:
    table = Table(FOUR, max_keys=10)

    table.charge(b"key", 1, 50 * SECOND, age_ns=20 * SECOND)
    assert table.peek(b"key", 50 * SECOND).reset_after_ns == 40 * SECOND
    table.charge(b"key", 2, 60 * SECOND, age_ns=50 * SECOND)
    assert table.peek(b"key", 60 * SECOND).remaining == 1
    table.charge(b"key", 1, 200 * SECOND, age_ns=60 * SECOND)
    assert table.peek(b"key", 200 * SECOND).remaining == 4
    table.charge(b"key", 3, 200 * SECOND, age_ns=10 * SECOND)
    assert table.peek(b"key", 200 * SECOND).reset_after_ns == 50 * SECOND


def test_other_data_centers_cannot_add_to_such_windows() -> None:
    table = Table(FOUR, max_keys=10, is_shared=True)

    assert table.merge_remote(b"key", "dc2", [0, 4], 10 * SECOND) == 1
    assert table.peek(b"key", 10 * SECOND).remaining == 4


def test_another_period_begins_a_window_with_the_units_in_use() -> None:
    for period_ns in (50, 99, 101, 200):
        table = Table(replace(FOUR, period=100 / SECOND), max_keys=1)
        table.check(b"key", 3, 10)

        table.change_limit(replace(FOUR, period=period_ns / SECOND))

        outcome = table.peek(b"key", 20)
        assert (outcome.remaining, outcome.reset_after_ns) == (1, period_ns)
