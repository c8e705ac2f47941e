"""Results of refunds that a node has refused."""

import pytest

from node.requests.request_dispatcher import mark_refused
from ringfence.limiter import Code
from ringfence.wire import Batch, Op, Results, empty_results


def results(*units: int) -> Results:
    found = empty_results(len(units))
    found.outcomes.codes[:] = [Code.ALLOWED] * len(units)
    found.outcomes.slot_ids[:] = units
    return found


def refunds(*costs: int) -> Batch:
    return Batch(Op.REFUND, [b"%8d" % number for number in range(len(costs))], [*costs])


def test_only_refunds_without_a_charge_are_marked() -> None:
    found = results(2, 0)

    mark_refused(refunds(2, 0), found)

    assert found.outcomes.codes == [Code.ALLOWED, Code.UNCHARGED]


@pytest.mark.parametrize(("row", "code"), [(0, Code.ALLOWED), (1, Code.UNCHARGED)])
def test_results_of_some_rows_are_marked_by_the_costs_of_these_rows(row: int, code: Code) -> None:
    found = results(0)

    mark_refused(refunds(2, 0), found, [row])

    assert found.outcomes.codes == [code]


def test_a_repeated_refund_that_was_applied_before_is_not_marked() -> None:
    found = results(3)

    mark_refused(refunds(0), found)

    assert found.outcomes.codes == [Code.ALLOWED]


def test_a_refund_for_an_unknown_rule_keeps_this_code() -> None:
    found = results(0)
    found.outcomes.codes[0] = Code.UNKNOWN_RULE

    mark_refused(refunds(0), found)

    assert found.outcomes.codes == [Code.UNKNOWN_RULE]
