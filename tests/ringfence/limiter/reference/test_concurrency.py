import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Code, Limit, Outcome, Table

KEY = b"key"
TWO = Limit.of_ns(2, 100, Algorithm.CONCURRENCY)
ALLOWED, DENIED, NEVER = Code.ALLOWED, Code.DENIED, Code.NEVER


@settings(max_examples=100, deadline=None)
@given(
    amount=st.integers(1, 6),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3), st.booleans()), max_size=30),
)
def test_units_in_flight_never_exceed_the_limit(
    amount: int, steps: list[tuple[int, int, bool]]
) -> None:
    table = Table(Limit.of_ns(amount, 50, Algorithm.CONCURRENCY), max_keys=1)
    held: dict[int, tuple[int, int]] = {}
    now = 0
    for gap, cost, releases in steps:
        now += gap
        held = {slot_id: (ends, units) for slot_id, (ends, units) in held.items() if ends > now}
        if releases and held:
            slot_id, (_, units) = held.popitem()
            table.refund(KEY, units, now, slot_id=slot_id)
        outcome = table.check(KEY, cost, now)
        if outcome.is_admitted:
            assert outcome.slot_id not in held
            held[outcome.slot_id] = (now + 50, cost)
        assert outcome.remaining == amount - sum(units for _, units in held.values())
        assert outcome.is_admitted == (outcome.slot_id > 0)


def test_a_repeated_or_late_release_frees_no_other_slot() -> None:
    table = Table(TWO, max_keys=1)
    first = table.check(KEY, 1, 0).slot_id
    table.check(KEY, 1, 10)

    assert table.refund(KEY, 1, 20, slot_id=first).remaining == 1
    assert table.refund(KEY, 1, 20, slot_id=first).remaining == 1
    assert table.refund(KEY, 1, 20, age_ns=100).remaining == 1


def test_a_release_without_an_id_frees_the_units_that_end_first() -> None:
    table = Table(TWO, max_keys=1)
    table.check(KEY, 1, 0)
    table.check(KEY, 1, 10)

    table.refund(KEY, 1, 20, age_ns=20)

    assert table.peek(KEY, 20).reset_after_ns == 90


def test_holders_can_release_after_the_limit_has_changed() -> None:
    table = Table(TWO, max_keys=1)
    slot_id = table.check(KEY, 2, 0).slot_id

    table.change_limit(Limit.of_ns(3, 10, Algorithm.CONCURRENCY))

    assert table.peek(KEY, 50).remaining == 1, "the slot lives as long as it was granted for"
    assert table.refund(KEY, 2, 50, slot_id=slot_id).remaining == 3


def test_slot_ids_start_at_the_given_number() -> None:
    table = Table(TWO, max_keys=1, first_slot_id=7_000)

    assert [table.check(KEY, 1, 0).slot_id, table.check(KEY, 1, 0).slot_id] == [7_000, 7_001]
    assert table.next_slot_id == 7_002


def test_each_renewal_of_a_lease_lasts_for_another_period() -> None:
    table = Table(TWO, max_keys=1)
    first = table.check(KEY, 1, 0).slot_id
    second = table.check(KEY, 1, 10).slot_id

    for _ in range(2):
        code, remaining, *_, slot_id = table.renew(KEY, first, 90)
        assert (code, remaining, slot_id) == (Code.ALLOWED, 0, first)

    assert table.peek(KEY, 110).remaining == 1, "the second slot has ended"
    assert table.peek(KEY, 189).remaining == 1
    assert table.renew(KEY, second, 120)[0] == Code.DENIED
    assert table.peek(KEY, 189).remaining == 1, "what has ended is not granted again"
    assert table.peek(KEY, 190).remaining == 2
    assert table.renew(b"other", 5, 190)[0] == Code.DENIED


def test_a_slot_with_a_shorter_time_to_live_ends_before_older_slots() -> None:
    table = Table(Limit.of_ns(2, 1000, Algorithm.CONCURRENCY), max_keys=1)
    table.check(KEY, 1, 0)

    table.change_limit(TWO)
    slot_id = table.check(KEY, 1, 5).slot_id

    assert table.check(KEY, 1, 5).retry_after_ns == 100
    assert table.renew(KEY, slot_id, 10)[0] == Code.ALLOWED
    assert table.check(KEY, 1, 5).retry_after_ns == 105
    assert table.check(KEY, 1, 110).is_admitted
    assert not table.check(KEY, 1, 110).is_admitted


@pytest.mark.parametrize(
    ("slots", "cost", "now", "expected"),
    [
        ([], 0, 0, (ALLOWED, 5, 0, 0)),
        ([], 6, 0, (NEVER, 5, 0, 0)),
        ([(0, 2)], 0, 40, (ALLOWED, 3, 0, 60)),
        ([(0, 2)], 4, 40, (DENIED, 3, 60, 60)),
        ([(0, 2)], 6, 40, (NEVER, 3, 0, 60)),
        ([(0, 2), (10, 1), (20, 2)], 0, 40, (DENIED, 0, 60, 80)),
        ([(0, 2), (10, 1), (20, 2)], 1, 40, (DENIED, 0, 60, 80)),
        ([(0, 2), (10, 1), (20, 2)], 2, 40, (DENIED, 0, 60, 80)),
        ([(0, 2), (10, 1), (20, 2)], 3, 40, (DENIED, 0, 70, 80)),
        ([(0, 2), (10, 1), (20, 2)], 4, 40, (DENIED, 0, 80, 80)),
        ([(0, 2), (10, 1), (20, 2)], 5, 99, (DENIED, 0, 21, 21)),
        ([(0, 2), (10, 1), (20, 2)], 3, 100, (DENIED, 2, 10, 20)),
        ([(0, 2), (10, 1), (20, 2)], 0, 119, (ALLOWED, 3, 0, 1)),
        ([(0, 2), (10, 1), (20, 2)], 0, 120, (ALLOWED, 5, 0, 0)),
    ],
)
def test_a_check_waits_until_enough_slots_have_expired(
    slots: list[tuple[int, int]], cost: int, now: int, expected: tuple[Code, int, int, int]
) -> None:
    table = Table(Limit.of_ns(5, 100, Algorithm.CONCURRENCY), max_keys=1)
    for at, units in slots:
        table.check(KEY, units, at)

    outcome = table.check(KEY, cost, now)

    found = outcome.code, outcome.remaining, outcome.retry_after_ns, outcome.reset_after_ns
    assert found == expected
    assert (outcome.delay_ns, outcome.slot_id) == (0, 0)


def test_an_allowed_check_gets_a_slot_and_no_delay() -> None:
    table = Table(Limit.of_ns(3, 100, Algorithm.CONCURRENCY), max_keys=1, first_slot_id=7)

    outcomes = [table.check(KEY, cost, 5) for cost in (1, 2)]

    assert outcomes == [
        Outcome(ALLOWED, 3, 2, 0, 100, 0, 7),
        Outcome(ALLOWED, 3, 0, 0, 100, 0, 8),
    ]


def test_of_too_many_slots_for_a_state_the_first_to_expire_are_joined() -> None:
    table = Table(Limit.of_ns(10_000, 10_000, Algorithm.CONCURRENCY), max_keys=1)
    for now in range(5463):
        table.check(KEY, 1 + now % 2, now)

    found = table.state(KEY, 6000)

    assert found is not None
    state, _, _ = found
    assert len(state) == 3 * 5461
    assert state[:6] == [5464, 10_002 - 6000, 4, 4, 10_003 - 6000, 2]
    assert state[-3:] == [5463, 15_462 - 6000, 1]


def test_a_charge_of_no_units_or_of_an_expired_slot_holds_nothing() -> None:
    table = Table(Limit.of_ns(3, 100, Algorithm.CONCURRENCY), max_keys=2)
    table.charge(KEY, 1, 200, 99)
    table.charge(KEY, 0, 200, 0)
    table.charge(KEY, 2, 200, 100)

    found = table.state(KEY, 200)

    assert found is not None
    assert found[0] == [1, 1, 1]
    assert table.state(KEY, 201) is None


def test_a_refund_without_a_slot_releases_the_units_that_expire_first() -> None:
    table = Table(Limit.of_ns(5, 100, Algorithm.CONCURRENCY), max_keys=1, first_slot_id=7)
    for now, units in ((0, 2), (10, 3)):
        table.check(KEY, units, now)

    assert table.refund(KEY, 1, 20).remaining == 1
    assert table.refund(KEY, 2, 20).remaining == 3
    assert table.state(KEY, 20) == ([8, 90, 2], Limit.of_ns(5, 100, Algorithm.CONCURRENCY), {})
    assert table.refund(KEY, 2, 20, age_ns=100).remaining == 3
    assert table.refund(KEY, 2, 20, slot_id=9).remaining == 3
    assert table.refund(KEY, 0, 20, slot_id=8).remaining == 3
    assert table.refund(KEY, 1, 20, slot_id=8).remaining == 5


def test_a_renewal_extends_the_slot_by_a_period_and_returns_the_state() -> None:
    limit = Limit.of_ns(2, 100, Algorithm.CONCURRENCY, soft_permille=500)
    table = Table(limit, max_keys=1, first_slot_id=7)
    for now, units in ((0, 1), (10, 1), (20, 1)):
        table.check(KEY, units, now)

    assert table.renew(KEY, 7, 50) == (Code.OVER_SOFT, 0, 0, 100, 0, 7)
    assert table.renew(KEY, 9, 119) == (ALLOWED, 1, 0, 100, 0, 9)
    assert table.renew(KEY, 8, 119) == (DENIED, 1, 0, 100, 0, 0)
    assert table.state(KEY, 119) == ([7, 31, 1, 9, 100, 1], limit, {})
