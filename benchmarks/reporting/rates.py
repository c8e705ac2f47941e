"""Rates: decisions per second of elapsed time and per second of processor time; memory."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

__all__ = ["Rate", "cpu_s_of", "paced_by", "resident_bytes"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Rate(Struct, frozen=True):
    """Decisions per second and processor time per decision, from one round of a benchmark."""

    per_s: float
    client_us: float
    """Microseconds of processor time of this process per decision."""
    server_us: float
    """Microseconds of processor time of all servers together per decision."""

    @property
    def per_core_s(self) -> float:
        """Return decisions per second of processor time of this process and the servers
        together."""
        return 1e6 / max(self.client_us + self.server_us, 1e-3)


def paced_by(work: Callable[[], int], *servers: int) -> Rate:
    """Run the function `work`, which returns its number of decisions, and return the rates.

    `servers` are the processes that answered. Programs that `work` starts count once it has waited
    for them.
    """
    before = sum(map(cpu_s_of, servers))
    mine, started_at = _own_cpu_s(), time.perf_counter()
    done = work()
    wall = time.perf_counter() - started_at
    client, server = _own_cpu_s() - mine, sum(map(cpu_s_of, servers)) - before
    return Rate(done / wall, client / done * 1e6, server / done * 1e6)


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE


def cpu_s_of(pid: int) -> float:
    """Return the processor time of another process, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
