"""Rates: decisions per second of elapsed time and per second of processor time."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Rate", "cpu_s_of", "paced_by"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Rate:
    """Decisions per second of elapsed time and of processor time, from one round of a benchmark."""

    per_s: float
    per_core_s: float
    """Decisions per second of processor time of this process and the servers together."""


def paced_by(work: Callable[[], int], *servers: int) -> Rate:
    """Run the function `work`, which returns its number of decisions, and return the rates.

    `servers` are the processes that answered. Programs that `work` starts count once it has waited
    for them.
    """
    before = sum(map(cpu_s_of, servers))
    mine, started_at = _own_cpu_s(), time.perf_counter()
    done = work()
    wall = time.perf_counter() - started_at
    cpu = _own_cpu_s() - mine + sum(map(cpu_s_of, servers)) - before
    return Rate(done / wall, done / max(cpu, 1.0 / _TICKS))


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def cpu_s_of(pid: int) -> float:
    """Return the processor time of another process, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
