from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Code, Limit, Table

KEY = b"key"
TWO = Limit.of_ns(2, 100, Algorithm.CONCURRENCY)


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


def test_a_lease_that_is_renewed_lives_for_another_period_however_often_it_is_asked() -> None:
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
