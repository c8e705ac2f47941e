"""Clusters of node processes for tests on a busy machine."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import monotonic, sleep

from msgspec.structs import replace

from node.demo.cluster import DemoCluster, started_cluster

__all__ = ["ForkedCommand", "patient", "real_cluster"]

_ROOT = Path(__file__).parents[2]

_STARTUP = 90.0
"""Longest time, in seconds, in which node processes start and see each other."""


def patient(url: str) -> str:
    """Return a cluster's address with a long time-out of checks."""
    return f"{url}{'&' if '?' in url else '?'}timeout=20"


@contextmanager
def real_cluster(rules: Path, names: Sequence[str], scopes: str) -> Iterator[DemoCluster]:
    """Run a node process for each name; `scopes` are those of the token in the address."""
    with started_cluster(rules, names, scopes) as cluster:
        give_up = monotonic() + _STARTUP
        while missing := cluster.missing():
            cluster.assert_running()
            assert monotonic() < give_up, f"nodes are not up: {missing}"
            sleep(0.05)
        yield replace(cluster, url=patient(cluster.url))


class ForkedCommand:
    """Process that runs the command `ringfence`, like `subprocess.Popen`.

    It is forked from a process that has already imported all modules of a node. The import takes
    longer than the start of a node.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        with chdir(_ROOT):
            self._process = _forks().Process(
                target=_run_command, args=(words, log, dict(os.environ)), daemon=True
            )
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; minus the number of the signal that ended the process."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; return its exit status."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("ringfence", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End the process by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self.send_signal(signal.SIGKILL)


@cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "node.entry", "node.cli.node", "node.serve"])
    return context


def _run_command(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run the command in this process, with its output in a file."""
    from node.entry import main

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ringfence", *words]
    main()
