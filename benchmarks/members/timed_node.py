"""Node process that also measures for how long each of its tasks holds the event loop.

`python -m benchmarks.members.timed_node FILE node --name a ...` runs the command line of
`ringfence`. From the time at which the node has all its shards, FILE receives each long turn of a
task. A row has the end of the turn, its milliseconds of processor time, and the name of the task.
It also has the milliseconds in which the node took over, sent or received shards. Processor time is
used because other processes may interrupt a turn.
"""

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, thread_time_ns
from typing import Any, NamedTuple

import trio

from node import entry
from node.shards.shard_steps import ShardSteps
from node.shards.transfers.shard_sender import ShardSender
from ringfence.wire import Pulled

__all__ = ["STARTED", "LongestTurns", "TurnTimer", "longest_turns"]

STARTED = "shards fetched"
"""Start of the log record of a node that has its shards."""
_LONG_NS = 1_000_000


class LongestTurns(NamedTuple):
    """Processor time of the longest turns, in ms; 0 without a turn of more than a millisecond."""

    any_ms: float
    moves_ms: float
    """Longest time in one turn in which a node took over, sent or received shards."""


class TurnTimer(trio.abc.Instrument, logging.Handler):
    """Timer of the turns of all tasks, which starts when the node logs that it has its shards."""

    def __init__(self, file: Path, clock: Callable[[], int] = thread_time_ns) -> None:
        logging.Handler.__init__(self)
        self._file = file
        self._clock = clock
        self._is_started = False
        self._began = 0
        self._step_began: int | None = None
        """Instant in this turn from which on it moves shards."""
        self._moved = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Start to measure at the log record of a node that has its shards."""
        self._is_started = self._is_started or record.getMessage().startswith(STARTED)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Start the time of a turn, if the node has its shards."""
        self._began = self._clock() if self._is_started else 0
        self._step_began, self._moved = None, 0

    def watch_moves(self) -> None:
        """Measure the steps that move shards, and the answers to requests for shards."""
        turn, answer = ShardSteps.turn, ShardSender.answer

        async def timed_turn(steps: ShardSteps) -> None:
            await turn(steps)
            self._step_began = self._clock()  # The step is the rest of this turn.

        def timed_answer(*args: Any) -> Pulled:
            began = self._clock()
            pulled = answer(*args)
            self._moved += self._clock() - began
            return pulled

        ShardSteps.turn = timed_turn  # type: ignore[method-assign, assignment]
        ShardSender.answer = timed_answer  # type: ignore[method-assign, assignment]

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Write a long turn to the file."""
        now = self._clock()
        turn = now - self._began
        if self._began and turn > _LONG_NS:
            moved = self._moved if self._step_began is None else now - self._step_began
            line = f"{monotonic():.3f} {turn / 1e6:.3f} {moved / 1e6:.3f} {task.name}\n"
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)


def longest_turns(files: Path, since: float, until: float) -> LongestTurns:
    """Return the longest turns of all nodes that have written a file `*.turns` in a folder, between
    two instants of `monotonic`."""
    text = "".join(each.read_text("utf-8") for each in files.glob("*.turns"))
    turns = [[float(each) for each in line.split()[:3]] for line in text.splitlines()]
    found = [(turn, moved) for at, turn, moved in turns if since <= at <= until]
    columns = zip(*found, strict=True) if found else ([0.0], [0.0])
    return LongestTurns(*map(max, columns))


def main() -> None:
    """Run the command line with a timer in its event loop."""
    timer = TurnTimer(Path(sys.argv.pop(1)))
    timer.watch_moves()
    logging.getLogger("ringfence.node").addHandler(timer)
    trio.run = partial(trio.run, instruments=[timer])  # type: ignore[assignment]
    entry.main()


if __name__ == "__main__":
    main()
