"""The timer of turns in a node process."""

import logging
from pathlib import Path
from time import monotonic

import pytest
import trio

from benchmarks.members.timed_node import TurnTimer, longest_turns
from node.shards.shard_steps import ShardSteps
from node.shards.transfers.shard_sender import ShardSender


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

    assert longest_turns(tmp_path, began - 1, monotonic() + 1) == (4, 0)
    assert longest_turns(tmp_path, 0, began - 1) == (0, 0)


def test_the_part_of_a_turn_that_moves_shards_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 5
    timer = TurnTimer(tmp_path / "a.turns", lambda: now)
    monkeypatch.setattr(ShardSteps, "turn", ShardSteps.turn)
    monkeypatch.setattr(ShardSender, "answer", lambda *_: work(3))

    def work(milliseconds: int) -> None:
        nonlocal now
        now += milliseconds * 1_000_000

    timer.watch_moves()
    sender = object.__new__(ShardSender)

    async def main() -> None:
        timer.emit(logging.LogRecord("", 0, "", 0, "shards fetched: counted_here=3", None, None))
        await trio.lowlevel.checkpoint()
        work(7)
        sender.answer(*[None] * 4)  # type: ignore[arg-type]
        await trio.lowlevel.checkpoint()
        work(9)
        await ShardSteps().turn()
        work(2)
        await trio.lowlevel.checkpoint()

    began = monotonic()
    trio.run(main, instruments=[timer])

    assert longest_turns(tmp_path, began - 1, monotonic() + 1) == (10, 3)
