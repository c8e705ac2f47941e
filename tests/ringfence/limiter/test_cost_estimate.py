import tracemalloc

import pytest

from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    Calendar,
    Engine,
    EngineRule,
    Limit,
    Table,
    bytes_per_key,
    compiled_tables,
    over_admission,
    why_not_compiled,
)

MINUTE = 60 * NS_PER_SECOND
DAY = 24 * 60 * MINUTE


@pytest.mark.parametrize(
    ("limit", "worst"),
    [
        (Limit.of_ns(100, MINUTE, Algorithm.SLIDING_WINDOW_LOG), 100),
        (Limit.of_ns(100, MINUTE), 200),
        (Limit.of_ns(100, MINUTE, slots=6), 200),
        (Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW), 200),
        (Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW, soft_permille=100), 220),
        (Limit.of_ns(10, DAY, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY), 20),
        (
            Limit.of_ns(
                10, DAY, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="Asia/Tokyo"
            ),
            30,
        ),
        (Limit.of_ns(10, 30 * DAY, Algorithm.FIXED_WINDOW, calendar=Calendar.MONTH), 30),
        (Limit.of_ns(100, MINUTE, Algorithm.TOKEN_BUCKET), 199),
        (Limit.of_ns(100, MINUTE, Algorithm.TOKEN_BUCKET, burst=20), 119),
        (Limit.of_ns(100, MINUTE, Algorithm.LEAKY_BUCKET, burst=20, queue=True), 119),
        (Limit.of_ns(100, MINUTE, Algorithm.CONCURRENCY), 100),
        (Limit.of_ns(0, MINUTE), 0),
    ],
)
def test_the_worst_case_is_that_of_the_algorithm(limit: Limit, worst: int) -> None:
    forecast = over_admission(limit)

    assert forecast.worst == worst
    assert forecast.reason.endswith(".")


@pytest.mark.parametrize("gap", [200, 101, 37, 1])
@pytest.mark.parametrize(
    ("limit", "usual"),
    [
        (Limit.of_ns(100, 10_000), 100),
        (Limit.of_ns(100, 10_000, slots=5), 100),
        (Limit.of_ns(100, 10_000, soft_permille=100), 110),
        (Limit.of_ns(100, 10_000, Algorithm.FIXED_WINDOW), 100),
        (Limit.of_ns(100, 10_000, Algorithm.SLIDING_WINDOW_LOG), 100),
        (Limit.of_ns(100, 10_000, Algorithm.TOKEN_BUCKET, burst=20), 100),
    ],
    ids=str,
)
def test_of_evenly_spread_hits_the_usual_amount_passes_in_each_period(
    limit: Limit, usual: int, gap: int
) -> None:
    """A period may contain one hit more, because its length need not be a multiple of the gap."""
    table = Table(limit, max_keys=1)
    rested = 3 * limit.period_ns  # A bucket has spent its burst before.
    hits = [
        now for now in range(0, 6 * limit.period_ns, gap) if table.check(b"key", 1, now).is_admitted
    ]
    inside = [
        sum(now - limit.period_ns < hit <= now for hit in hits) for now in hits if now >= rested
    ]

    assert over_admission(limit).usual == usual
    assert max(inside) <= usual + 1
    if gap < 90:
        assert max(inside) >= usual


@pytest.mark.parametrize(
    "limit",
    [
        Limit.of_ns(5, 1_000, Algorithm.TOKEN_BUCKET),
        Limit.of_ns(5, 1_000, Algorithm.TOKEN_BUCKET, burst=3),
        Limit.of_ns(5, 1_000, Algorithm.FIXED_WINDOW),
        Limit.of_ns(5, 1_000),
        Limit.of_ns(5, 1_000, slots=4),
        Limit.of_ns(5, 1_000, Algorithm.SLIDING_WINDOW_LOG),
    ],
    ids=str,
)
def test_the_worst_case_can_happen(limit: Limit) -> None:
    """The checks begin 1 ns before the end of a window, and continue for a period."""
    table = Table(limit, max_keys=1)
    first = limit.period_ns - 1

    admitted = sum(
        table.check(b"key", 1, now).is_admitted
        for now in range(first, first + limit.period_ns)
        for _ in range(6)
    )

    assert admitted == over_admission(limit).worst


@pytest.mark.parametrize(
    ("limit", "hits"),
    [
        (Limit.of_ns(100, MINUTE, Algorithm.TOKEN_BUCKET), 3),
        (Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW), 3),
        (Limit.of_ns(100, MINUTE), 3),
        (Limit.of_ns(100, MINUTE, slots=60), 3),
        (Limit.of_ns(1, MINUTE, Algorithm.SLIDING_WINDOW_LOG), 1),
        (Limit.of_ns(20, MINUTE, Algorithm.SLIDING_WINDOW_LOG), 20),
        (Limit.of_ns(1, MINUTE, Algorithm.CONCURRENCY), 1),
        (Limit.of_ns(20, MINUTE, Algorithm.CONCURRENCY), 20),
    ],
    ids=str,
)
def test_the_memory_estimate_is_within_a_third_of_the_measured_memory(
    limit: Limit, hits: int
) -> None:
    count, now = 600, 1_700_000_000 * NS_PER_SECOND
    table = Table(limit, max_keys=count)

    tracemalloc.start()
    for hit in range(hits):
        for number in range(count):
            table.check(b"%027d" % number, 1, now + hit)
    used = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()

    assert bytes_per_key(limit, is_compiled=False) == pytest.approx(used, rel=1 / 3)


@pytest.mark.skipif(why_not_compiled() is not None, reason="needs the compiled engine")
@pytest.mark.parametrize(
    ("limit", "hits"),
    [
        (Limit.of_ns(100, MINUTE, Algorithm.TOKEN_BUCKET), 1),
        (Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW), 1),
        (Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW, first_hit=True), 1),
        (Limit.of_ns(100, MINUTE), 1),
        (Limit.of_ns(100, MINUTE, slots=6), 2),
        (Limit.of_ns(100, MINUTE, slots=60), 2),
        (Limit.of_ns(40, MINUTE, Algorithm.SLIDING_WINDOW_LOG), 40),
        (Limit.of_ns(1, MINUTE, Algorithm.CONCURRENCY), 1),
        (Limit.of_ns(5, MINUTE, Algorithm.CONCURRENCY), 5),
    ],
    ids=str,
)
def test_the_memory_estimate_is_within_a_third_of_the_bytes_of_compiled_tables(
    limit: Limit, hits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ringfence.limiter.compiled.table._MOST_OBJECTS", 0
    )  # All counters are packed, as with many keys.
    engine = Engine(max_keys=1000, tables=compiled_tables(b"s" * 16, keeps_keys=True))
    engine.set_rules({7: EngineRule(limit)})
    keys = [(7).to_bytes(8, "big") + b"%019d" % number for number in range(600)]
    for hit in range(hits):
        now = 1_700_000_000 * NS_PER_SECOND + hit * NS_PER_SECOND
        engine.decide(keys, [1] * len(keys), (), (), (), now)

    used = engine.bytes_in_use / len(keys)

    assert bytes_per_key(limit, is_compiled=True) == pytest.approx(used, rel=1 / 3)


def test_each_further_slot_of_a_window_needs_eight_bytes() -> None:
    one, two, six = [
        bytes_per_key(Limit.of_ns(100, MINUTE, slots=slots), is_compiled=False)
        for slots in (1, 2, 6)
    ]

    assert (two - one, six - one) == (8, 40)
