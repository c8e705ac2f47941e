"""Node process that also measures for how long each of its tasks holds the event loop.

`python -m benchmarks.members.timed_node FILE node --name a ...` runs the command line of
`ringfence`. FILE gets each long turn of a task since the node has all its shards: its end, its
milliseconds of processor time (other processes may interrupt a turn), and the name of the task.
"""

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, thread_time_ns

import trio

from node import entry

__all__ = ["STARTED", "TurnTimer", "longest_turn_ms"]

STARTED = "shards fetched"
"""Start of the log record of a node that has its shards."""
_LONG_NS = 1_000_000


class TurnTimer(trio.abc.Instrument, logging.Handler):
    """Timer of the turns of all tasks, which starts when the node logs that it has its shards."""

    def __init__(self, file: Path, clock: Callable[[], int] = thread_time_ns) -> None:
        logging.Handler.__init__(self)
        self._file = file
        self._clock = clock
        self._is_started = False
        self._began = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Start to measure at the log record of a node that has its shards."""
        self._is_started = self._is_started or record.getMessage().startswith(STARTED)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Start the time of a turn, if the node has its shards."""
        self._began = self._clock() if self._is_started else 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Write a long turn to the file."""
        turn = self._clock() - self._began
        if self._began and turn > _LONG_NS:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{monotonic():.3f} {turn / 1e6:.3f} {task.name}\n")


def longest_turn_ms(files: Path, since: float, until: float) -> float:
    """Return the longest turn of all nodes that have written a file `*.turns` in a folder, between
    two instants of `monotonic`; 0 without a turn of more than a millisecond."""
    text = "".join(each.read_text("utf-8") for each in files.glob("*.turns"))
    turns = [line.split() for line in text.splitlines()]
    return max((float(ms) for at, ms, _ in turns if since <= float(at) <= until), default=0.0)


def main() -> None:
    """Run the command line with a timer in its event loop."""
    timer = TurnTimer(Path(sys.argv.pop(1)))
    logging.getLogger("ringfence.node").addHandler(timer)
    trio.run = partial(trio.run, instruments=[timer])  # type: ignore[assignment]
    entry.main()


if __name__ == "__main__":
    main()
