"""How fast something was: per second on the wall, and per second of the processors that it took."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Rate", "cpu_s_of", "paced_by"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Rate:
    """What one round found."""

    per_s: float
    per_core_s: float
    """Per second of processor time, of this process and those it asked together."""


def paced_by(work: Callable[[], int], *servers: int) -> Rate:
    """Run `work`, which says how many decisions it got, and see what it took.

    `servers` are the processes that answered. Programs that `work` itself starts count when it has
    waited for them.
    """
    before = sum(map(cpu_s_of, servers))
    mine, begun = _own_cpu_s(), time.perf_counter()
    done = work()
    wall = time.perf_counter() - begun
    cpu = _own_cpu_s() - mine + sum(map(cpu_s_of, servers)) - before
    return Rate(done / wall, done / max(cpu, 1.0 / _TICKS))


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def cpu_s_of(pid: int) -> float:
    """Processor time of another process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
