"""Node processes on loopback with temporary keys, for the demo, tests and benchmarks."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from msgspec import Struct

from node.config.access import KeyDir
from node.config.key_files import write_keys
from ringfence.errors import PeerUnavailable

__all__ = ["NAMES", "STARTUP", "DemoCluster", "running_cluster", "started_cluster"]

NAMES = ("a", "b", "c")
_HOST = "127.0.0.1"
STARTUP = 60.0
"""Seconds the nodes may take to start on a busy machine."""
_LOOK_AGAIN = 0.02
_TOKEN = "demo"  # noqa: S105 - the name of a token, not the token


class DemoCluster(Struct, frozen=True):
    """Running node processes of a temporary cluster."""

    url: str
    processes: dict[str, "subprocess.Popen[bytes]"]
    logs: dict[str, Path]

    def start(self, name: str, *flags: str) -> None:
        """Start a node process that logs to a file."""
        with self.logs[name].open("wb") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - our own module
                # -P: do not import a folder `node` from the working directory.
                [sys.executable, "-P", "-m", "node.entry", "node", "--name", name, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
            )

    def kill(self, name: str) -> None:
        """Kill a node process immediately, so that it cannot transfer its shards."""
        self.processes[name].kill()
        self.processes[name].wait()

    def wait_until_up(self) -> None:
        """Wait until every node sees all other nodes, because some nodes would decide alone before
        that.

        Raises `PeerUnavailable` when a node ends or takes longer than a minute.
        """
        give_up = monotonic() + STARTUP
        while missing := self.missing():
            with suppress(subprocess.TimeoutExpired):
                self.processes[missing[0]].wait(_LOOK_AGAIN)
            self.assert_running()
            if monotonic() > give_up:
                raise self.not_up(missing[0])

    def missing(self) -> list[str]:
        """Return the nodes that do not yet see all other nodes."""
        full_view = f"view of {len(self.processes)} member".encode()
        return [name for name in self.processes if full_view not in self.logs[name].read_bytes()]

    def assert_running(self) -> None:
        """Raise `PeerUnavailable` with the last log lines of a node whose process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise PeerUnavailable(
                    f"node {name} ended with {process.returncode}: {self._last_line(name)}"
                )

    def not_up(self, name: str) -> PeerUnavailable:
        """Return the error for a node that has not seen all other nodes in time."""
        return PeerUnavailable(
            f"node {name} was not up after {STARTUP:g} s: {self._last_line(name)}; "
            "try again when the machine is less busy"
        )

    def _last_line(self, name: str) -> str:
        lines = self.logs[name].read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"


@contextmanager
def running_cluster(
    rules: Path,
    names: Sequence[str] = NAMES,
    scopes: str = "check,observe,admin",
    *,
    more_tokens: Sequence[str] = (),
    more_flags: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[DemoCluster]:
    """Start a node process for each name as `started_cluster` does, and wait until all nodes see
    each other.

    Raises `PeerUnavailable`.
    """
    with started_cluster(
        rules, names, scopes, more_tokens=more_tokens, more_flags=more_flags
    ) as cluster:
        cluster.wait_until_up()
        yield cluster


@contextmanager
def started_cluster(
    rules: Path,
    names: Sequence[str] = NAMES,
    scopes: str = "check,observe,admin",
    *,
    more_tokens: Sequence[str] = (),
    more_flags: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[DemoCluster]:
    """Start a node process for each name, and do not wait until the nodes answer.

    All other nodes join through the first one. `scopes` are those of the token in the cluster's
    address; `more_tokens` have the form `NAME:SCOPES`. `more_flags` has additional flags by node
    name. At the end of the block, the nodes are stopped and all files are removed.
    """
    with TemporaryDirectory(prefix="ringfence-demo-") as directory:
        home = Path(directory)
        keys = KeyDir(home / "keys")
        tokens = [f"{_TOKEN}:{scopes}", *more_tokens]
        write_keys(keys.path, ["localhost"], [_HOST], tokens, days=2)
        addresses = [f"{_HOST}:{port}" for port in _free_ports(len(names))]
        token = keys.token(_TOKEN).read_text("ascii").strip()
        cluster = DemoCluster(
            f"ringfence://{token}@{','.join(addresses)}?ca={keys.ca}",
            {},
            {name: home / f"{name}.log" for name in names},
        )
        arguments = ("--rules", str(rules), "--keys", str(keys.path))
        try:
            for name, address in zip(names, addresses, strict=True):
                join = ("--join", addresses[0]) if name != names[0] else ()
                more = (more_flags or {}).get(name, ())
                cluster.start(name, "--listen", address, *arguments, *join, *more)
            yield cluster
        finally:
            _stop(cluster.processes)


def _environment() -> dict[str, str]:
    """Return the environment of this process without the settings of a node, with the same import
    path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RINGFENCE_")}
    home = str(Path(__file__).parents[2])
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [home, kept.get("PYTHONPATH")]))}


def _free_ports(count: int) -> list[int]:
    """Return free UDP ports. Each is reserved until the last one is found, so that all differ."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for held in sockets:
            held.bind((_HOST, 0))
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()


def _stop(processes: "dict[str, subprocess.Popen[bytes]]") -> None:
    """Kill all node processes without a graceful leave, in which each would wait to transfer its
    shards."""
    for process in processes.values():
        process.kill()
    for process in processes.values():
        process.wait()
