"""Warnings about evicted counters."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from node.metrics.eviction_log import EvictionLog, watch_evictions


def evictions_in(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [
        record.getMessage().partition("evicted=")[2].partition(" ")[0]
        for record in caplog.records
        if record.levelname == "WARNING"
    ]


def test_evictions_are_logged_with_the_bounds_and_a_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EvictionLog("a", 100, 0)

    log.look(0, 1.0)
    assert caplog.records == []
    log.look(7, 2.0)

    assert [record.getMessage() for record in caplog.records] == [
        "counters were evicted, so their limits admit too much: "
        "node=a evicted=7 max_keys=100 max_bytes=0; raise max_keys or max_bytes"
    ]


def test_evictions_are_logged_once_a_minute_with_those_since_the_last_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EvictionLog("a", 100, 0)

    for second in range(0, 130, 10):
        log.look(second + 1, float(second))
    log.look(121, 1000.0)

    assert evictions_in(caplog) == ["1", "60", "60"]


def test_the_evictions_of_removed_rules_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    log = EvictionLog("a", 100, 0)

    for minute, evicted in enumerate((50, 10, 12)):
        log.look(evicted, 60.0 * minute)

    assert evictions_in(caplog) == ["50", "2"]


async def test_a_node_looks_for_evictions_every_few_seconds(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    counts = iter(range(1000))

    with trio.move_on_after(200):
        await watch_evictions(EvictionLog("a", 100, 0), lambda: next(counts))

    assert len(evictions_in(caplog)) == 4
