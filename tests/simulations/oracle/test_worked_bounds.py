"""Bounds of histories small enough to check by hand. Instants are in ns, periods of 100 ns."""

import pytest

from simulations.oracle import (
    Bound,
    Drain,
    Question,
    Reading,
    Refund,
    Spend,
    Terms,
    Verdict,
    bounds,
    narrowed,
)

FIXED = Terms("fixed_window", 3, 100)
SLIDING = Terms("sliding_window", 4, 100)
LOG = Terms("sliding_window_log", 3, 100)
BUCKET = Terms("token_bucket", 4, 100)
QUEUE = Terms("leaky_bucket", 4, 100, queue=True)
SLOTS = Terms("concurrency", 2, 100)
FIRST_HIT = Terms("fixed_window", 3, 100, first_hit=True)


def spent(*instants: int, blur: int = 0, units: int = 1) -> list[Spend]:
    return [Spend(at, at + blur, units, units) for at in instants]


def bound(terms: Terms, spends: list[Spend], question: Question) -> Bound:
    (found,) = bounds(terms, spends, [question])
    return found


def at(first: int, last: int | None = None, cost: int = 1) -> Question:
    return Question(first, first if last is None else last, cost)


@pytest.mark.parametrize("terms", [FIXED, LOG, FIRST_HIT])
def test_a_fourth_admission_of_three_must_be_denied(terms: Terms) -> None:
    found = bound(terms, spent(110, 120, 130, blur=5), at(140, 150))

    assert (found.least, found.most, found.verdict) == (3, 3, Verdict.MUST_DENY)


@pytest.mark.parametrize("terms", [FIXED, SLIDING, LOG, BUCKET, FIRST_HIT])
def test_a_denial_is_wrong_while_a_unit_is_certainly_left(terms: Terms) -> None:
    assert bound(terms, spent(110, 120, blur=5), at(140, 150)).verdict is Verdict.MUST_ALLOW


def test_a_check_that_overlaps_the_last_admission_may_be_decided_either_way() -> None:
    found = bound(FIXED, spent(110, 120) + spent(135, blur=10), at(140, 150))

    assert (found.least, found.most, found.verdict) == (2, 3, Verdict.EITHER)


def test_a_check_at_the_border_of_two_windows_belongs_to_either() -> None:
    found = bound(FIXED, spent(110, 120, 130), at(190, 210))

    assert (found.least, found.most, found.verdict) == (0, 3, Verdict.EITHER)
    assert (found.shortest_wait, found.longest_wait) == (1, 10)


def test_the_wait_of_a_fixed_window_ends_with_it() -> None:
    found = bound(FIXED, spent(110, 120, 130), at(150, 160))

    assert (found.shortest_wait, found.longest_wait) == (40, 50)


def test_the_wait_of_a_log_ends_when_enough_hits_have_left() -> None:
    found = bound(LOG, spent(110, 120, 130, blur=4), at(150, 160, cost=2))

    assert (found.shortest_wait, found.longest_wait) == (60, 74)


def test_an_older_window_counts_in_part() -> None:
    found = bound(SLIDING, spent(150, units=4), at(225))

    assert (found.least, found.most) == (3, 3)
    assert bound(SLIDING, spent(150, units=4), at(225, 226)).least == 2


def test_a_bucket_drains_by_the_limit_of_each_interval() -> None:
    poured, question = spent(100, units=4), at(200)
    half = [Drain(100, 150, 2, 2)]
    unknown = [Drain(100, 150, 2, 4)]

    [exact] = bounds(BUCKET, poured, [question], half)
    assert (exact.least, exact.most, exact.verdict) == (1, 1, Verdict.MUST_ALLOW)
    [early] = bounds(BUCKET, poured, [at(150)], half)
    assert (early.least, early.most, early.verdict) == (3, 3, Verdict.MUST_ALLOW)
    [full] = bounds(BUCKET, poured, [at(150, cost=2)], half)
    assert (full.verdict, full.shortest_wait, full.longest_wait) == (Verdict.MUST_DENY, 25, 25)
    [either] = bounds(BUCKET, poured, [at(150, cost=2)], unknown)
    assert (either.least, either.most, either.verdict) == (2, 3, Verdict.EITHER)


def test_a_bucket_drains_between_the_intervals() -> None:
    found = bound(BUCKET, spent(100, blur=10, units=4), at(120))

    assert (found.least, found.most, found.verdict) == (4, 4, Verdict.MUST_DENY)
    assert (found.shortest_wait, found.longest_wait) == (5, 15)
    assert bound(BUCKET, spent(100, blur=10, units=4), at(130)).verdict is Verdict.EITHER
    assert bound(BUCKET, spent(100, blur=10, units=4), at(135)).verdict is Verdict.MUST_ALLOW


def test_a_queue_delays_by_the_units_left_in_the_bucket() -> None:
    found = bound(QUEUE, spent(100, 100, blur=10), at(120))

    assert found.delays(QUEUE) == (25, 50)
    assert found.delays(BUCKET) == (0, 0)


def test_a_slot_is_in_use_until_its_release_or_its_end() -> None:
    held = [Spend(100, 105, 1, 1, refund=Refund(150, 155, 1, 1)), Spend(110, 112, 1, 1)]

    assert bound(SLOTS, held, at(140)).verdict is Verdict.MUST_DENY
    assert bound(SLOTS, held, at(152)).verdict is Verdict.EITHER
    assert bound(SLOTS, held, at(155)).verdict is Verdict.EITHER  # Before or after the release.
    assert bound(SLOTS, held, at(156)).verdict is Verdict.MUST_ALLOW
    assert bound(SLOTS, held[1:], at(209)).least == 1
    assert bound(SLOTS, held[1:], at(212)).most == 0
    assert bound(SLOTS, [Spend(110, 112, 1, 1, kept_until=(300, 310))], at(299)).least == 1


@pytest.mark.parametrize("terms", [FIXED, SLIDING, LOG, BUCKET])
def test_refunded_units_do_not_count_after_the_refund(terms: Terms) -> None:
    units = terms.ceiling
    refunded = [Spend(110, 110, units, units, refund=Refund(111, 112, units, units))]

    assert bound(terms, refunded, at(113)).verdict is Verdict.MUST_ALLOW
    assert bound(terms, refunded, at(111)).verdict is Verdict.EITHER
    lost = [Spend(110, 110, units, units, refund=Refund(111, 112, 0, units))]
    assert bound(terms, lost, at(113)).verdict is Verdict.EITHER


@pytest.mark.parametrize(
    ("refund", "question", "most"),
    [
        (Refund(120, 160, 1, 1), at(155), 4),
        (Refund(120, 160, 1, 1), at(170), 3),
        (Refund(110, 120, 1, 1), at(130), 3),
        (Refund(120, 160, 0, 1), at(170), 4),
    ],
)
def test_units_that_are_refunded_may_be_poured_until_the_refund(
    refund: Refund, question: Question, most: int
) -> None:
    poured = Spend(100, 150, 4, 4, refund=refund)

    assert bound(BUCKET, [poured], question).most == most


def test_units_that_may_be_lost_or_counted_twice_widen_the_bounds() -> None:
    found = bound(FIXED, [Spend(110, 112, 0, 2)], at(120))

    assert (found.least, found.most) == (0, 2)


def test_units_of_another_member_count_once_they_are_known() -> None:
    remote = [Spend(110, 112, 3, 3, known=150)]

    assert bound(FIXED, remote, at(140)).verdict is Verdict.EITHER
    assert bound(FIXED, remote, at(151)).verdict is Verdict.MUST_DENY
    assert bound(FIXED, remote, at(205)).most == 0
    assert bound(FIXED, [Spend(110, 140, 3, 3, known=120)], at(130)).least == 0


def test_the_own_units_of_a_check_do_not_count_before_it() -> None:
    own = Spend(140, 150, 1, 1)

    assert bound(FIXED, [*spent(110, 120), own], Question(140, 150, 1, own=1)).most == 2


def test_a_cost_above_the_limit_is_denied_for_good() -> None:
    found = bound(FIXED, [], at(110, cost=4))

    assert (found.verdict, found.is_permanent, found.longest_wait) == (Verdict.MUST_DENY, True, 0)


def test_a_window_that_begins_with_a_hit_may_begin_with_either_of_two() -> None:
    either = [Spend(110, 112, 0, 1), *spent(120, 130, units=2)]

    assert bound(FIRST_HIT, either, at(140)).least == 4
    assert bound(FIRST_HIT, either, at(209)).least == 4
    assert bound(FIRST_HIT, either, at(215)).verdict is Verdict.EITHER
    assert bound(FIRST_HIT, either, at(220)).verdict is Verdict.MUST_ALLOW


@pytest.mark.parametrize(
    ("spend", "question"),
    [
        (Spend(10, 9, 1, 1), at(1)),
        (Spend(9, 10, 2, 1), at(1)),
        (Spend(9, 10, 1, 1, refund=Refund(9, 8, 1, 1)), at(1)),
        (Spend(9, 10, 1, 1), at(5, 4)),
    ],
)
def test_intervals_that_end_before_they_begin_are_rejected(
    spend: Spend, question: Question
) -> None:
    with pytest.raises(ValueError, match="must"):
        bounds(FIXED, [spend], [question])


@pytest.mark.parametrize(
    ("used", "question", "found"),
    [
        (1, at(160), (1, 1, Verdict.MUST_ALLOW)),
        (3, at(160), (3, 3, Verdict.MUST_DENY)),
        (1, at(185), (2, 2, Verdict.MUST_ALLOW)),
        (2, at(185), (3, 3, Verdict.MUST_DENY)),
        (1, at(172), (1, 2, Verdict.MUST_ALLOW)),
        (2, at(193), (2, 4, Verdict.EITHER)),
    ],
)
def test_a_reading_ends_the_uncertainty_of_earlier_units(
    used: int, question: Question, found: tuple[int, int, Verdict]
) -> None:
    uncertain = Spend(110, 115, 0, 2)
    spends = [*spent(120), uncertain, *spent(170, blur=5)]
    reading = Reading(140, 145, used, used, until=190)

    [bound] = narrowed(FIXED, spends, [question], bounds(FIXED, spends, [question]), [reading])
    assert (bound.least, bound.most, bound.verdict) == found


def test_a_reading_does_not_hold_in_the_next_window() -> None:
    spends = [*spent(120, 130), Spend(190, 195, 0, 2), Spend(205, 206, 0, 3)]
    open_ = bounds(FIXED, spends, [at(210)])

    assert open_[0].verdict is Verdict.EITHER
    assert narrowed(FIXED, spends, [at(210)], open_, [Reading(196, 197, 2, 2, until=900)]) == open_


@pytest.mark.parametrize(
    ("levels", "question", "found"),
    [
        ((100, 100), at(145), (1, 1, Verdict.MUST_ALLOW)),
        ((300, 310), at(150, cost=2), (3, 3, Verdict.MUST_DENY)),
        ((300, 400), at(150, cost=2), (3, 4, Verdict.MUST_DENY)),
        ((250, 300), at(160, cost=2), (2, 3, Verdict.EITHER)),
        ((100, 100), at(190), (2, 3, Verdict.MUST_ALLOW)),
    ],
)
def test_a_bucket_continues_from_the_level_of_a_reading(
    levels: tuple[int, int], question: Question, found: tuple[int, int, Verdict]
) -> None:
    spends = [Spend(100, 105, 0, 4), *spent(170, blur=10, units=2), Spend(172, 175, 0, 1)]
    reading = Reading(140, 140, 1, 1, until=200, levels=levels)

    base = bounds(BUCKET, spends, [question])
    [after] = narrowed(BUCKET, spends, [question], base, [reading], others=[0])

    assert (after.least, after.most, after.verdict) == found
    assert narrowed(BUCKET, spends, [at(201)], base, [reading], others=[0]) == base


def test_a_reading_of_a_bucket_is_less_certain_with_wrong_clocks_and_refunds() -> None:
    reading = Reading(140, 140, 3, 3, until=200, levels=(300, 300), error_ns=5, drift_ppm=10**5)
    question, base = at(150, cost=2), bounds(BUCKET, spent(100, units=4), [at(150)])

    [blurred] = narrowed(BUCKET, spent(100, units=4), [question], base, [reading], others=[0])
    assert (blurred.least, blurred.most) == (3, 3)  # 2.6 minus 0.24, and 2.6 plus 0.24.
    refunded = [Spend(100, 100, 4, 4, refund=Refund(130, 145, 1, 1))]
    [lower] = narrowed(BUCKET, refunded, [question], base, [reading], others=[0])
    assert (lower.least, lower.most) == (2, 3)


def test_a_reading_makes_the_level_of_the_next_one_more_certain() -> None:
    """The first reading states the level 2.5, so the second one, of at most 3, states 2.7."""
    own = Spend(120, 120, 1, 1)
    spends = [Spend(90, 95, 0, 9), own]
    denied = Reading(100, 100, 3, 3, until=200, levels=(250, 250))
    allowed = Reading(120, 120, 3, 3, until=200, own=own, levels=(200, 300))
    question = at(125, cost=2)  # One unit drains in 25 ns.
    base = bounds(BUCKET, spends, [question])

    [coarse] = narrowed(BUCKET, spends, [question], base, [allowed])
    [fine] = narrowed(BUCKET, spends, [question], base, [denied, allowed])
    [changed] = narrowed(BUCKET, spends, [question], base, [denied._replace(until=110), allowed])

    assert (coarse.least, coarse.most, coarse.verdict) == (2, 3, Verdict.EITHER)
    assert (fine.least, fine.most, fine.verdict) == (3, 3, Verdict.MUST_DENY)
    assert changed == coarse


@pytest.mark.parametrize("terms", [SLIDING, LOG, FIRST_HIT])
def test_a_denial_holds_until_its_retry_time(terms: Terms) -> None:
    uncertain = [Spend(100, 105, 0, 9), *spent(120)]
    denial = Reading(140, 141, 9, 9, until=195, denied=(2, 180))

    def verdict(question: Question, *more: Spend) -> Verdict:
        spends = [*uncertain, *more]
        base = [each._replace(verdict=Verdict.EITHER, least=0)
                for each in bounds(terms, spends, [question])]  # fmt: skip
        reading = denial._replace(earliest=339, latest=341, until=395, denied=(2, 380))
        far = Question(question.earliest + 200, question.latest + 200, question.cost)
        [found] = narrowed(terms, spends, [far], base, [reading])
        return found.verdict

    assert verdict(at(150, cost=2)) is Verdict.MUST_DENY
    assert verdict(at(170, 179, cost=3)) is Verdict.MUST_DENY
    assert verdict(at(150)) is Verdict.EITHER  # A smaller cost may pass.
    assert verdict(at(175, 180, cost=2)) is Verdict.EITHER
    refunded = Spend(130, 131, 1, 1, refund=Refund(142, 345, 1, 1))
    assert verdict(at(150, cost=2), refunded) is Verdict.EITHER


@pytest.mark.parametrize("terms", [FIXED, BUCKET], ids=["window", "bucket"])
def test_checks_at_the_same_instants_as_a_reading_may_come_after_it(terms: Terms) -> None:
    three = [Spend(140, 145, 0, 1)] * 3
    spends = [Spend(110, 115, 0, 2), *three]
    reading = Reading(140, 145, 1, 1, until=190, own=three[0], levels=(100, 100))
    question = at(160)

    base = bounds(terms, spends, [question])
    [bound] = narrowed(terms, spends, [question], base, [reading], others=[0])

    assert bound.most == 3


@pytest.mark.parametrize("terms", [FIXED, BUCKET], ids=["window", "bucket"])
def test_repeats_of_a_denied_check_may_add_units_after_its_reading(terms: Terms) -> None:
    repeated = Spend(140, 145, 0, 2)
    spends = [Spend(110, 115, 0, 3), repeated]
    reading = Reading(140, 145, 1, 1, until=190, own=repeated, levels=(100, 100), has_own=False)
    question = at(146)

    base = bounds(terms, spends, [question])
    [bound] = narrowed(terms, spends, [question], base, [reading], others=[0])

    assert (bound.least, bound.most) == (1, 3)
