"""Memory of borrowed units: which loans are given back, and its bounds."""

from node.cross_dc.borrowed_units import BorrowedUnits, Loan

NS = 1_000_000_000
EVERY = ("dc2", "dc3")


def loan(units: int, lender: str = "dc2", at: int = 0, ends_at: int = 100) -> Loan:
    return Loan(lender, units, at * NS, ends_at * NS)


def taken(borrowed: BorrowedUnits, units: int, now: int = 10) -> list[tuple[str, int, int]]:
    """Return lender, time in seconds and units of the loans that are given back."""
    found = borrowed.take(b"key", units, EVERY, now * NS)
    return [(each.datacenter, each.asked_at // NS, part) for each, part in found]


def test_the_newest_loans_are_given_back_first_and_only_once() -> None:
    borrowed = BorrowedUnits()
    for each in (loan(5, at=1), loan(6, "dc3", at=2), loan(7, at=3)):
        borrowed.add(b"key", each, each.asked_at)

    assert taken(borrowed, 10) == [("dc2", 3, 7), ("dc3", 2, 3)]
    assert taken(borrowed, 100) == [("dc3", 2, 3), ("dc2", 1, 5)]
    assert taken(borrowed, 100) == []
    assert b"key" not in borrowed


def test_loans_of_other_keys_and_of_unreachable_lenders_stay() -> None:
    borrowed = BorrowedUnits()
    for key, lender in ((b"key", "dc2"), (b"key", "dc3"), (b"other", "dc2")):
        borrowed.add(key, loan(5, lender), 0)

    assert [part for _, part in borrowed.take(b"key", 100, ["dc3"], 0)] == [5]
    assert taken(borrowed, 100) == [("dc2", 0, 5)]
    assert b"other" in borrowed


def test_a_loan_is_not_given_back_in_its_last_second() -> None:
    borrowed = BorrowedUnits()
    borrowed.add(b"key", loan(5, ends_at=11), 0)
    borrowed.add(b"key", loan(6, ends_at=12), 0)

    assert taken(borrowed, 100, now=10) == [("dc2", 0, 6)]

    borrowed.add(b"key", loan(5, ends_at=11), 10 * NS)
    borrowed.add(b"key", loan(0), 0)
    assert b"key" not in borrowed


def test_a_loan_of_a_new_window_replaces_those_of_the_window_before() -> None:
    borrowed = BorrowedUnits()
    borrowed.add(b"key", loan(5, at=1, ends_at=100), NS)
    borrowed.add(b"key", loan(6, at=100, ends_at=200), 100 * NS)

    assert taken(borrowed, 100, now=101) == [("dc2", 100, 6)]


def test_the_oldest_loans_of_a_lender_are_merged_with_the_older_times() -> None:
    borrowed = BorrowedUnits()
    borrowed.add(b"key", loan(50, "dc3", at=0), 0)
    for number in range(1, 12):
        borrowed.add(b"key", loan(number, at=number, ends_at=100 + number), NS)

    newest = [("dc2", number, number) for number in range(11, 4, -1)]
    assert taken(borrowed, 1000) == [*newest, ("dc2", 1, 1 + 2 + 3 + 4), ("dc3", 0, 50)]


def test_the_number_of_keys_is_bounded() -> None:
    borrowed = BorrowedUnits()
    for number in range(10_000):
        borrowed.add(b"%d" % number, loan(1), 0)
    borrowed.add(b"0", loan(1), 0)
    borrowed.add(b"more", loan(1), 0)

    assert len(borrowed) == 10_000
    assert b"1" not in borrowed
    assert [key in borrowed for key in (b"0", b"2", b"more")] == [True] * 3


def test_a_lender_is_asked_for_the_first_time_once_for_each_check() -> None:
    borrowed = BorrowedUnits()

    assert [borrowed.is_first_ask("dc2", (1, 1, 0)) for _ in range(2)] == [True, False]
    assert borrowed.is_first_ask("dc3", (1, 1, 0))
    assert borrowed.is_first_ask("dc2", (1, 1, 1))
    assert [borrowed.is_first_ask("dc2", (0, 0, 0)) for _ in range(2)] == [True, True]


def test_the_number_of_known_checks_is_bounded() -> None:
    borrowed = BorrowedUnits()
    for seq in range(1, 16_386):
        borrowed.is_first_ask("dc2", (1, seq, 0))

    assert not borrowed.is_first_ask("dc2", (1, 2, 0))
    assert borrowed.is_first_ask("dc2", (1, 1, 0))
