"""Node processes that measure the turns of their tasks, see `timed_node`."""

import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from benchmarks.members.timed_node import STARTED
from benchmarks.node_process import start_node

__all__ = ["TimedNodes"]

_STARTUP = 120.0
_SETTLED = 4.0
"""Seconds after the start of all nodes until a benchmark begins."""


class TimedNodes:
    """Context manager that starts node processes; each node joins through any other running
    node."""

    def __init__(
        self,
        home: Path,
        rules: str,
        names: Sequence[str],
        more_flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`rules` is the text of the rule file. `more_flags` has additional flags by node name."""
        self.home = home
        self._rules = home / "rules.yaml"
        self._rules.write_text(rules, "utf-8")
        self._more_flags = more_flags or {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = count()
        self.ports = dict(zip(names, _free_ports(len(names)), strict=True))

    def __enter__(self) -> Self:
        try:
            for name in self.ports:
                self.start(name)
            for name in self.ports:
                self.wait_for(name, f"view of {len(self.ports)} members")
                self.wait_for(name, STARTED)
        except BaseException:
            self._kill_all()
            raise
        sleep(_SETTLED)
        return self

    def __exit__(self, *error: object) -> None:
        self._kill_all()

    @property
    def url(self) -> str:
        """Address of the cluster with all nodes as seeds."""
        return "ringfence://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [process.pid for process in self._processes.values()]

    def start(self, name: str) -> None:
        """Start the process of one node."""
        other = next((each for each in self._processes if each != name), None)
        join = ["--join", f"127.0.0.1:{self.ports[other]}"] if other is not None else []
        arguments = [
            *(str(self.home / f"{next(self._starts)}.turns"), "node", "--name", name),
            *("--listen", f"127.0.0.1:{self.ports[name]}", "--rules", str(self._rules)),
            *join,
            *self._more_flags.get(name, ()),
        ]
        log = self.home / f"{name}.log"
        self._processes[name] = start_node("benchmarks.members.timed_node", arguments, log)

    def wait_for(self, name: str, words: str) -> None:
        """Wait until a text appears in a node's log."""
        give_up = monotonic() + _STARTUP
        while words.encode() not in (self.home / f"{name}.log").read_bytes():
            if self._processes[name].poll() is not None or monotonic() > give_up:
                text = (self.home / f"{name}.log").read_text("utf-8", "replace")
                raise RuntimeError(f"node {name} never said {words!r}:\n{text}")
            sleep(0.02)

    def stop(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node process and wait for its end."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()
