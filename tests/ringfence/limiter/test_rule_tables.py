"""Bounds on the keys and bytes of all counter tables together, and which keys are evicted."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from ringfence.limiter import (
    Algorithm,
    Code,
    Engine,
    EngineRule,
    Limit,
    Snapshot,
    compiled_tables,
    why_not_compiled,
)
from tests.programs import require_compiled

MINUTE = 60_000_000_000
FIVE = Limit.of_ns(5, MINUTE, Algorithm.FIXED_WINDOW)
FINE = Limit.of_ns(1000, 60 * MINUTE, slots=3600)
"""Limit whose counters have 400 + 40 * 3599 bytes."""
FINE_BYTES = 144_360
COMPILED = [False] if why_not_compiled() else [False, True]
ADD: dict[str, Callable[[Engine, list[bytes]], object]] = {
    "decide": lambda engine, keys: engine.decide(keys, [1] * len(keys), [], [], [], 0),
    "decide in a group": lambda engine, keys: engine.decide(
        keys, [1] * len(keys), [len(keys)], [], [], 0
    ),
    "decide by a limit of the request": lambda engine, keys: engine.decide(
        keys, [1] * len(keys), [], [FIVE], [1] * len(keys), 0
    ),
    "decide each": lambda engine, keys: engine.decide_each(
        keys, [1] * len(keys), [], [0] * len(keys)
    ),
    "decide lone": lambda engine, keys: [engine.decide_lone(key, 1, 0, 0) for key in keys],
    "charge": lambda engine, keys: engine.charge(keys, [1] * len(keys), [0] * len(keys), 0),
    "charge now": lambda engine, keys: engine.charge_now(keys, [1] * len(keys), [], [], 0),
    "restore": lambda engine, keys: engine.restore(
        Snapshot(keys, [[0, 1]] * len(keys), [FIVE], [0] * len(keys), []), 0
    ),
}


def key(rule: int, number: int) -> bytes:
    return rule.to_bytes(8, "big") + b"%d" % number


def engine_of(
    *limits: Limit,
    max_keys: int = 10,
    max_bytes: int | None = None,
    is_compiled: bool = False,
) -> Engine:
    tables = compiled_tables(bytes(16), keeps_keys=True) if is_compiled else None
    engine = Engine(max_keys=max_keys, max_bytes=max_bytes, tables=tables)
    engine.set_rules({number: EngineRule(limit) for number, limit in enumerate(limits)})
    return engine


@pytest.mark.parametrize("way", ADD)
@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("is_compiled", COMPILED)
def test_all_rules_together_have_at_most_max_keys(
    way: str, at_once: int, *, is_compiled: bool
) -> None:
    engine = engine_of(FIVE, FIVE, FIVE, is_compiled=is_compiled)
    numbers = [0]
    for start in range(0, 30, at_once):
        keys = [key(number % 3, number) for number in range(start, start + at_once)]
        ADD[way](engine, keys)
        numbers.append(len(engine))

    assert numbers == [min(10, added) for added in range(0, 31, at_once)]
    assert engine.evicted == 20


def test_the_rule_with_the_most_keys_loses_keys_first() -> None:
    engine = engine_of(FIVE, FIVE)
    ADD["decide"](engine, [key(0, number) for number in range(7)])
    ADD["decide"](engine, [key(1, number) for number in range(3)])
    assert engine.sizes() == ({0: 7, 1: 3}, 0)

    ADD["decide"](engine, [key(1, 3)])
    assert engine.sizes() == ({0: 6, 1: 4}, 0)
    ADD["decide by a limit of the request"](engine, [key(9, 0)])

    assert engine.sizes() == ({0: 5, 1: 4}, 1)


def test_peeks_and_denied_checks_evict_nothing() -> None:
    engine = engine_of(FIVE)
    ADD["decide"](engine, [key(0, number) for number in range(10)])

    engine.decide([key(0, 10), key(0, 11)], [0, 6], [], [], [], 0)

    assert (len(engine), engine.evicted) == (10, 0)


def test_an_eviction_for_bytes_frees_a_sixteenth_of_the_bound() -> None:
    engine = engine_of(FIVE, max_keys=1000, max_bytes=100_000)
    sizes = []
    for number in range(300):
        ADD["decide lone"](engine, [key(0, number)])
        sizes.append(len(engine))
        assert engine.bytes_in_use == 400 * len(engine) <= 100_000

    freed = (100_000 - 100_000 // 16) // 400
    assert sizes == [*range(1, 251), *[*range(freed, 251)] * 3][:300]


@pytest.mark.parametrize(
    ("max_keys", "max_bytes", "most"),
    [(10_000, 16 << 20, 16 << 20), (1000, None, 64 << 20), (200_000, None, 512 * 200_000)],
)
def test_an_eviction_for_bytes_frees_at_most_256_kib(
    max_keys: int, max_bytes: int | None, most: int
) -> None:
    engine = engine_of(FINE, max_keys=max_keys, max_bytes=max_bytes)
    full = most // FINE_BYTES
    ADD["decide"](engine, [key(0, number) for number in range(full)])
    assert len(engine) == full
    assert engine.bytes_in_use == full * FINE_BYTES

    ADD["decide"](engine, [key(0, full)])

    assert len(engine) == (most - (256 << 10)) // FINE_BYTES


def test_the_rule_with_the_most_bytes_loses_keys_first() -> None:
    engine = engine_of(FIVE, FINE, max_keys=1000, max_bytes=1_000_000)
    ADD["decide"](engine, [key(0, number) for number in range(100)])
    ADD["decide"](engine, [key(1, number) for number in range(6)])
    assert engine.sizes() == ({0: 100, 1: 6}, 0)

    ADD["decide"](engine, [key(1, 6)])

    assert engine.sizes() == ({0: 100, 1: 6}, 0), "906 160 bytes, and at most 937 500"


def test_an_engine_has_room_for_a_key() -> None:
    with pytest.raises(ValueError, match="max_keys must be at least 1, got 0"):
        Engine(max_keys=0)
    assert len(engine_of(FIVE, max_keys=1)) == 0


def test_a_key_that_alone_exceeds_the_bytes_is_evicted() -> None:
    engine = engine_of(FINE, max_keys=10, max_bytes=100_000)

    ADD["decide"](engine, [key(0, 0)])

    assert (len(engine), engine.bytes_in_use) == (0, 0)


def test_limits_of_requests_without_rules_keep_to_the_bound_on_bytes() -> None:
    engine = Engine(max_keys=1000, max_bytes=1_000_000)
    limit = Limit.of_ns(1000, 60 * MINUTE, slots=60)
    sizes = []
    for number in range(400):
        engine.decide([key(0, number)], [1], [], [limit], [1], 0)
        sizes.append(len(engine))
        assert engine.bytes_in_use <= 1_000_000

    full, freed = 1_000_000 // 2760, (1_000_000 - 62_500) // 2760
    assert sizes == [*range(1, full + 1), *[*range(freed, full + 1)] * 2][:400]


def test_columns_of_different_lengths_are_refused() -> None:
    engine = engine_of(FIVE)
    ADD["decide"](engine, [key(0, 0)])
    two = [key(0, 0), key(0, 1)]

    for call in (
        lambda: engine.refund(two, [1], [], [], [], [], 0),
        lambda: engine.refund(two, [1, 1], [0], [], [], [], 0),
        lambda: engine.refund(two, [1, 1], [], [0], [], [], 0),
        lambda: engine.charge_now(two, [1], [], [], 0),
        lambda: engine.renew(two, [1], [], [], 0),
    ):
        with pytest.raises(ValueError, match="zip"):
            call()


def test_one_check_evicts_few_packed_counters() -> None:
    require_compiled()
    engine = engine_of(max_keys=10**6, max_bytes=3_000_000, is_compiled=True)
    engine.set_rules({rule: EngineRule(FIVE, is_shared=rule == 0) for rule in range(2)})
    keys = [key(0, number) for number in range(60_000)]
    keys += [key(1, number) for number in range(40_000)]
    most = before = 0
    for each in keys:
        engine.decide_lone(each, 1, 0, 1)
        most, before = max(most, engine.evicted - before), engine.evicted

    assert engine.evicted > 10_000
    assert most <= 300


@pytest.mark.parametrize("algorithm", [Algorithm.TOKEN_BUCKET, Algorithm.SLIDING_WINDOW])
@pytest.mark.parametrize("is_compiled", COMPILED)
def test_a_denied_check_reports_the_key_that_it_converts_to_another_limit_once(
    algorithm: Algorithm, *, is_compiled: bool
) -> None:
    large, small = (Limit.of_ns(amount, MINUTE, algorithm) for amount in (5, 2))
    engine = engine_of(large, is_compiled=is_compiled)
    reported: list[bytes] = []
    engine.on_conversion.append(reported.append)
    engine.decide([key(0, 1)], [5], [], [], [], 0)
    engine.set_rules({0: EngineRule(small)})
    assert not reported

    codes = [engine.decide([key(0, 1)], [1], [], [], [], 0).codes for _ in range(2)]

    assert codes == [[Code.DENIED]] * 2
    assert reported == [key(0, 1)]


@pytest.mark.parametrize("is_compiled", COMPILED)
def test_a_key_is_reported_that_is_converted_to_send_its_counts(*, is_compiled: bool) -> None:
    large, small = (Limit.of_ns(amount, MINUTE, Algorithm.TOKEN_BUCKET) for amount in (5, 2))
    engine = engine_of(large, is_compiled=is_compiled)
    reported: list[bytes] = []
    engine.on_conversion.append(reported.append)
    engine.set_rules({0: EngineRule(large, is_shared=True)})
    engine.decide([key(0, 1)], [5], [], [], [], 0)
    engine.set_rules({0: EngineRule(small, is_shared=True)})

    engine.local_counts([key(0, 1)], 0)

    assert reported == [key(0, 1)]


@pytest.mark.parametrize("algorithm", [Algorithm.TOKEN_BUCKET, Algorithm.SLIDING_WINDOW])
def test_memory_stays_near_max_bytes_when_one_rule_after_the_other_has_many_keys(
    algorithm: Algorithm,
) -> None:
    require_compiled()
    limit = Limit.of_ns(5, MINUTE, algorithm)
    engine = engine_of(*[limit] * 10, max_keys=10**6, max_bytes=1_000_000, is_compiled=True)
    settled: list[int] = []
    for rule in range(10):
        memory: list[int] = []
        for number in range(0, 30_000, 100):
            keys = [key(rule, each) for each in range(number, number + 100)]
            engine.decide(keys, [1] * 100, [1] * 100, [], [], 1)
            memory.append(sum(cast(Any, table).nbytes for table in engine._tables.all()))
        # While a table is resized, its memory is counted twice.
        settled.append(min(memory[200:]))

    assert engine.evicted > 200_000
    assert max(settled) < 2_000_000
