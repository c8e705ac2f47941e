"""Node processes of benchmarks, whose output goes to a file."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["start_node"]


def start_node(module: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a Python module of this checkout as a process; its output replaces the file `log`."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
