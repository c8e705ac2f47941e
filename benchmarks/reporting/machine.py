"""Description of the machine on which benchmarks run: processor, load and relevant versions."""

import os
import platform
import timeit
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.reporting.figure import Figure
from ringfence.limiter import why_not_compiled

__all__ = ["about", "machine"]

_STEPS = 100_000
_PACKAGES = ("trio", "aioquic", "limits", "throttled-py", "redis", "coredis")


def machine() -> Figure:
    """Return the number of cores as a figure, so that all output lines have the same format."""
    cores = float(_cores())
    return Figure("machine", cores, "cores", cores, cores, 1)


def about() -> str:
    """Describe the machine in one line of text."""
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    engine = "reference engine" if why_not_compiled() else "compiled engine"
    return (
        f"{_cores()} cores of {_processor()}; load {busy} before the run; "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()} with "
        f"{_loop_step_ns():.0f} ns for a step of a plain loop; {engine}; "
        + ", ".join(filter(None, map(_version, _PACKAGES)))
    )


def _loop_step_ns() -> float:
    """Return the time of a step of a plain Python loop.

    Builds of the same version differ by up to 40 %, because some are compiled with profiles.
    """
    return min(timeit.repeat(_loop, number=1, repeat=5)) / _STEPS * 1e9


def _loop() -> int:
    total = 0
    for number in range(_STEPS):
        total += len(str(number)) + number % 7
    return total


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    """Return the processor model that Linux reports; if it is unknown, the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
