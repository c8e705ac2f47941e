"""Windows that begin with the first hit of a key, after merges of two members' counters."""

import pytest

from node.shards.fallback_log import FallbackLog
from node.shards.ownership.first_hits import earlier_windows
from ringfence.limiter import Algorithm, Limit, Snapshot
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, Host

SECOND = 1_000_000_000
LIMIT = Limit.of_ns(9, DAY, Algorithm.FIXED_WINDOW, first_hit=True)
HOUR = Limit.of_ns(9, DAY // 24, Algorithm.FIXED_WINDOW, first_hit=True)
WINDOW = Limit.of_ns(9, DAY, Algorithm.FIXED_WINDOW)


def host(name: str, hit_at: int | None = None, *, is_covering: bool = True) -> Host:
    """Return a node that holds the shard and has admitted 2 units at `hit_at`, if given.

    With `is_covering`, it holds the shard for the silent owner `o` and has no replica of it.
    Otherwise it is the owner.
    """
    made = Host(name, carried=LIMIT)
    if is_covering:
        made.cover("o", at=NOW)
    else:
        made.start()
    if hit_at is not None:
        made.spend(2, at=NOW + hit_at * SECOND)
    return made


def window(of: Host, at: int) -> tuple[int, int]:
    """Return the first second of the window of a node, and its units."""
    [(age_ns, units)] = of.engine.snapshot([KEY], NOW + at * SECOND).states
    return at - age_ns // SECOND, units


@pytest.mark.parametrize(
    ("mine", "theirs", "begin", "units"), [(None, 1, 1, 2), (9, 1, 1, 4), (1, 9, 1, 4)]
)
def test_a_window_begins_with_the_first_hit_that_a_standby_admitted(
    mine: int | None, theirs: int, begin: int, units: int
) -> None:
    standby, restarted = host("a", theirs), host("o", mine)
    standby.now = restarted.now = NOW + 20 * SECOND

    restarted.pull(standby)

    assert window(restarted, 20) == (begin, units)


@pytest.mark.parametrize(("mine", "theirs", "begin"), [(1, 9, 1), (9, 1, 1)])
def test_a_join_keeps_the_first_hit_of_both_members(mine: int, theirs: int, begin: int) -> None:
    owner, other = host("o", mine), host("a", theirs, is_covering=False)
    now = NOW + 20 * SECOND

    owner.ownership.merge.join(other.engine.snapshot([KEY], now), {}, now)

    assert window(owner, 20) == (begin, 4)


@pytest.mark.parametrize("base", [None, 9])
def test_a_late_replica_of_the_owner_keeps_the_first_hit_of_the_standby(base: int | None) -> None:
    standby, owner = host("a", 1), host("o", base, is_covering=False)
    now, log = NOW + 20 * SECOND, FallbackLog()
    log.add(KEY, 2, DAY, NOW + SECOND)
    counts = owner.engine.snapshot([KEY], now)
    if base is None:
        counts = Snapshot([KEY], [[0, 0]], [LIMIT], [0], [])  # A refund has emptied the window.

    standby.ownership.merge.restore_below(log, [(now, counts)], now)

    assert window(standby, 20) == (1, 2 if base is None else 4)


def test_a_transfer_that_crossed_another_one_keeps_the_first_hit() -> None:
    standby, owner = host("a", 1), Host("o", carried=LIMIT)
    owner.now = NOW + 20 * SECOND
    owner.ask(standby)  # The answer is under way.
    standby.now = NOW + 30 * SECOND
    owner.start()

    standby.pull(owner)

    assert window(standby, 30) == (1, 2)


@pytest.mark.parametrize(
    ("limits", "ages", "age"),
    [
        ((LIMIT, LIMIT), (3, 8), 10),
        ((LIMIT, LIMIT), (9, 8), 10),
        ((LIMIT, LIMIT), (10, 8), None),
        ((LIMIT, LIMIT), (3, 86_397), 86_399),
        ((LIMIT, LIMIT), (3, 86_398), None),  # That window has ended.
        ((LIMIT, LIMIT), (3, None), None),
        ((LIMIT, HOUR), (3, 8), None),
        ((HOUR, LIMIT), (3, 8), None),
        ((WINDOW, LIMIT), (3, 8), None),
        ((LIMIT, WINDOW), (3, 8), None),
    ],
)
def test_only_a_window_of_the_same_length_moves_and_only_to_an_earlier_begin(
    limits: tuple[Limit, Limit], ages: tuple[int, int | None], age: int | None
) -> None:
    mine, theirs = (
        Snapshot([KEY], [[] if each is None else [each * SECOND, 2]], [limit], [0], [])
        for limit, each in zip(limits, ages, strict=True)
    )

    found = earlier_windows(mine, theirs, 2 * SECOND)

    assert found.states == ([] if age is None else [[age * SECOND, 2]])
    assert found.limits == ([] if age is None else [LIMIT])


def test_a_key_that_the_other_member_does_not_count_keeps_its_window() -> None:
    mine = Snapshot([KEY], [[3 * SECOND, 2]], [LIMIT], [0], [])

    assert not earlier_windows(mine, Snapshot([], [], [LIMIT], [], []), SECOND).keys
