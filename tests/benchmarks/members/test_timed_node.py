"""The timer of turns in a node process."""

import logging
from pathlib import Path
from time import monotonic

import trio

from benchmarks.members.timed_node import TurnTimer, longest_turn_ms


def test_the_longest_turn_of_a_task_is_measured_once_the_node_has_its_shards(
    tmp_path: Path,
) -> None:
    now = 5
    timer = TurnTimer(tmp_path / "a.turns", lambda: now)

    async def hold_the_loop(milliseconds: int) -> None:
        nonlocal now
        await trio.lowlevel.checkpoint()
        now += milliseconds * 1_000_000

    async def main() -> None:
        await hold_the_loop(20)
        timer.emit(logging.LogRecord("", 0, "", 0, "shards fetched: counted_here=3", None, None))
        await hold_the_loop(3)
        await hold_the_loop(4)
        await hold_the_loop(2)
        await trio.lowlevel.checkpoint()

    began = monotonic()
    trio.run(main, instruments=[timer])

    assert longest_turn_ms(tmp_path, began - 1, monotonic() + 1) == 4
    assert longest_turn_ms(tmp_path, 0, began - 1) == 0
