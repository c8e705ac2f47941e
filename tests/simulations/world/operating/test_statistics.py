"""Law of statistics: which numbers of nodes fit the answers of clients, and which do not."""

from collections import Counter

import pytest
from msgspec.structs import replace

from ringfence.client.decision import Status
from ringfence.wire import Source
from simulations.world.operating.statistics import Published, Tally, wrong_statistics

ALLOWED = Status(True, None, 5, 4, 0.0, 1.0, 0.0, Source.OWNER)
DENIED = replace(ALLOWED, allowed=False, remaining=0, retry_after=1.0)
SOFT = replace(ALLOWED, over_soft=True)


def tally_of(*statuses, is_admitted=True):
    tally = Tally()
    for status in statuses:
        tally.add("sim > r1", "aa", status, is_admitted=is_admitted)
    return tally


def published(keys=None, counters=None, **results):
    """Statistics of nodes whose parts agree with each other; some parts may be replaced."""
    decisions = Counter({("sim > r1", name, "owner"): count for name, count in results.items()})
    denials = results.get("denied", 0)
    soft = results.get("over_soft", 0)
    counts = Counter(
        {
            "checks": sum(results.values()),
            "allowed": results.get("allowed", 0) + soft,
            "over_soft": soft,
            "denied": denials,
            "uncharged": results.get("uncharged", 0),
        }
    )
    listed = {"aa": (denials, 0)} if keys is None else keys
    return Published(decisions, listed, denials, Counter(counts | (counters or {})))


def wrong(tally, statistics):
    return wrong_statistics(tally, statistics, ["sim > job"])


def test_equal_numbers_are_right():
    tally = tally_of(ALLOWED, ALLOWED, SOFT, DENIED)

    assert wrong(tally, published(allowed=2, over_soft=1, denied=1)) == []


@pytest.mark.parametrize(
    "statistics",
    [
        published(allowed=2, denied=1),
        published(allowed=1, denied=2),
        published(allowed=1, over_soft=1),
        published(allowed=1, denied=1, counters={"checks": 3}),
        published(allowed=1, denied=1, counters={"overdrawn": 1}),
        published(allowed=1, denied=1, counters={"charges": 1}),
    ],
    ids=["allowed", "denied", "soft", "checks", "overdrawn", "charges"],
)
def test_other_numbers_are_wrong(statistics):
    assert wrong(tally_of(ALLOWED, DENIED), statistics)


@pytest.mark.parametrize(
    ("listed", "is_right"), [((1, 0), True), ((3, 2), True), ((3, 1), False), ((0, 0), False)]
)
def test_a_listed_key_has_its_denials_within_the_error(listed, is_right):
    statistics = published({"aa": listed, "bb": (1, 0)}, allowed=1, denied=1)

    assert (wrong(tally_of(ALLOWED, DENIED), statistics) == []) is is_right


def test_a_key_may_lack_denials_that_clients_have_reported_without_keys():
    tally = tally_of(DENIED, DENIED)

    assert wrong(tally, published({"aa": (1, 0)}, denied=2)) == []
    assert wrong(tally, published({"aa": (1, 0), "bb": (1, 0)}, denied=2))


def test_a_key_may_be_missing_only_from_a_list_that_is_not_exact():
    tally = tally_of(DENIED)

    assert wrong(tally, published({"bb": (1, 0)}, denied=1))
    assert wrong(tally, published({"bb": (7, 6)}, denied=1)) == []


def test_lists_without_all_nodes_are_not_compared():
    statistics = published({}, denied=1)
    statistics.denials = 0

    assert wrong(tally_of(DENIED), statistics)
    statistics.missing = ["n2"]
    assert wrong(tally_of(DENIED), statistics) == []


def test_an_owner_may_count_checks_of_denied_requests_as_soft():
    tally = tally_of(ALLOWED, SOFT, is_admitted=False)

    assert wrong(tally, published(uncharged=2)) == []
    assert wrong(tally, published(allowed=1, over_soft=1)) == []
    assert wrong(tally, published(allowed=1))


def test_rules_whose_checks_are_decided_several_times_are_not_compared_with_answers():
    statistics = published()
    statistics.decisions["sim > job", "allowed", "owner"] = 3
    statistics.counters.update({"checks": 3, "allowed": 3})

    assert wrong(tally_of(), statistics) == []
