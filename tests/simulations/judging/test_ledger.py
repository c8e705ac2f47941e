from ringfence.wire import Source
from simulations.judging.ledger import Answered, Ledger


def answered(
    asked, reported=None, *, allowed=True, cost=1, refund_done_at=float("inf"), datacenter="dc1"
):
    reported = asked + 0.001 if reported is None else reported
    return Answered(
        asked, reported, datacenter, "k", cost, allowed, Source.OWNER, refund_done_at=refund_done_at
    )


def ledger(*answers, passing=()):
    found = Ledger()
    for answer in answers:
        found.add("rule", answer)
    for answer in passing:
        found.add_refunded("rule", answer)
    return found


def test_a_refunded_charge_is_no_admission():
    column = ledger(answered(1.0), passing=[answered(2.0, refund_done_at=2.5)]).column("rule", "k")

    assert column.answered_within(0.0, 9.0) == 1


def test_a_request_is_open_until_it_is_answered():
    found = Ledger()
    first, second = found.ask("rule", "k", 1.0), found.ask("rule", "k", 1.0)

    found.answered(first)

    assert found.open == {second: ("rule=k", 1.0)}


def test_units_count_from_their_answer_on():
    column = ledger(answered(1.0, 1.5, cost=2), answered(2.0, 2.5, cost=3)).column("rule", "k")

    spans = [(0.0, 1.4), (1.0, 1.5), (1.5, 2.5), (1.6, 2.5), (2.6, 9.0)]
    assert [column.answered_within(*span) for span in spans] == [0, 2, 5, 3, 0]


def test_refunded_units_stay_in_their_data_center():
    column = ledger(
        answered(1.0),
        answered(1.0, datacenter="dc2"),
        passing=[answered(2.0, refund_done_at=2.5, datacenter="dc2")],
    ).column("rule", "k")

    assert [len(part.refunded) for part in column.by_datacenter()] == [0, 1]
