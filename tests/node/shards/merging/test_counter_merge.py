"""Counters of another member that has more units below its log than this node has."""

import pytest

from ringfence.limiter import Algorithm, EngineRule, Limit
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, RULE, Host

SLOTS = Limit.of_ns(20, DAY, algorithm=Algorithm.CONCURRENCY)


@pytest.mark.parametrize(
    ("log", "used", "is_left"),
    [
        ([], 7, False),
        ([0, 2], 7, False),
        ([0, 3], 7, False),
        ([0, 4], 3, True),
        ([0, 7], 3, True),
        ([9, 1, 5, 2], 7, False),
        ([9, 1, 5, 1, 3, 2], 3, True),
    ],
)
def test_counters_with_more_units_below_the_log_are_restored(
    log: list[int], used: int, *, is_left: bool
) -> None:
    mine, theirs = Host("a"), Host("b")
    mine.start(3)
    theirs.start(7)
    counts = theirs.engine.snapshot([KEY], NOW)

    others, rows = mine.ownership.merge.restore_more(counts, [log], NOW)

    assert mine.used == used
    assert (others.keys, rows) == (([KEY], [log]) if is_left else ([], []))


@pytest.mark.parametrize("limit", [SLOTS, Limit.of_ns(20, DAY)])
def test_slots_and_counts_of_other_data_centers_are_left_to_the_log(limit: Limit) -> None:
    mine, theirs = Host("a", limit), Host("b", limit)
    if limit is not SLOTS:
        for host in (mine, theirs):
            host.engine.set_rules({RULE: EngineRule(limit, is_shared=True)})
    mine.start(3)
    theirs.start(7)
    if limit is not SLOTS:
        theirs.engine.merge_remote("dc2", [KEY], [[NOW // DAY, 1]], NOW)
    counts = theirs.engine.snapshot([KEY], NOW)

    others, rows = mine.ownership.merge.restore_more(counts, [[]], NOW)

    assert mine.used == 3
    assert (others.keys, rows) == ([KEY], [[]])
