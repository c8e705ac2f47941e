from node.metrics.counters import Counters
from ringfence.limiter import Code, Outcomes
from ringfence.wire import Op, Results, Source


def results(*codes: Code) -> Results:
    count = len(codes)
    zeros = [0] * count
    return Results(
        Outcomes([*codes], zeros, zeros, zeros, zeros, zeros, zeros), [Source.OWNER] * count
    )


def after(*steps: tuple[Op, Results, bool]) -> dict[str, int]:
    counters = Counters()
    for op, decided, as_standby in steps:
        counters.decided(op, decided, as_standby=as_standby)
    return {name: count for name, count in counters.as_dict().items() if count}


def test_a_node_without_work_exports_zero_counters() -> None:
    assert after() == {}
    names = ("checks", "leases", "lease_spent", "denials_lifted", "reports", "reported_denied")
    assert [Counters().as_dict()[name] for name in names] == [0] * len(names)


def test_refusals_are_counted_by_cause() -> None:
    counters = Counters()
    for cause in ("late", "late", "http_408"):
        counters.refused(cause)
    counters.add("copies_sent", 5)
    counters.add("copies_sent")

    found = {name: count for name, count in counters.as_dict().items() if count}
    assert found == {"refused_late": 2, "refused_http_408": 1, "copies_sent": 6}


def test_checks_are_counted_by_their_result() -> None:
    codes = (
        *(Code.ALLOWED, Code.ALLOWED, Code.OVER_SOFT, Code.DENIED, Code.NEVER),
        *(Code.UNCHARGED, Code.UNKNOWN_RULE),
    )

    assert after((Op.CHECK, results(*codes), False)) == {
        "checks": 7,
        "allowed": 3,
        "over_soft": 1,
        "denied": 2,
        "uncharged": 1,
        "unknown_rule": 1,
    }


def test_an_allowed_batch_is_counted_like_its_checks_one_by_one() -> None:
    one = (Op.CHECK, results(Code.ALLOWED), False)

    assert after((Op.CHECK, results(Code.ALLOWED, Code.ALLOWED), False)) == after(one, one)


def test_decisions_in_place_of_an_owner_are_also_counted_separately() -> None:
    assert after((Op.CHECK, results(Code.ALLOWED, Code.DENIED), True)) == {
        "checks": 2,
        "allowed": 1,
        "denied": 1,
        "decided_as_standby": 2,
    }


def test_refunds_and_resets_are_no_checks() -> None:
    assert after(
        (Op.REFUND, results(Code.ALLOWED, Code.ALLOWED), False),
        (Op.RESET, results(Code.ALLOWED), True),
    ) == {"refunds": 2, "resets": 1}


def test_names_are_sorted() -> None:
    counters = Counters()
    counters.add("z")
    counters.add("a", 2)

    names = list(counters.as_dict())
    assert names == sorted(names)
    assert (counters.as_dict()["a"], counters.as_dict()["z"]) == (2, 1)
