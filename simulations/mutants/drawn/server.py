"""Client of the process that applies mutants: sends a request, receives its replies, ends it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from select import select
from types import TracebackType

from msgspec import Struct

from ringfence.errors import ConfigError
from simulations.mutants.drawn.sample import ROOT, DrawnMutant

__all__ = ["TEST_LIBRARIES", "Kill", "Server", "check_test_libraries"]

_CHILD = Path(__file__).with_name("child.py")
TEST_LIBRARIES = ("hypothesis", "pytest")
"""Libraries that unit tests need, and simulations do not."""
_COMPILED = (
    "hashring._compiled",
    "node.requests.refunds._recent_charges",
    "node.shards._packed_rows",
    "ringfence.client.requests._check_ops",
)
_SILENT_S = 150.0
"""Longest wall time of one test or run that uses little processor time, so that it only waits."""
_IDLE_SHARE = 0.01
"""Share of a processor below which a process only waits; it is low because of busy machines."""


def check_test_libraries() -> None:
    """Raise `ConfigError` when a library is missing that unit tests need."""
    needed = (*TEST_LIBRARIES, "pytest_timeout")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"unit tests need the libraries {', '.join(needed)}, but {missing[0]} is not "
            "installed; install them with `pip install 'ringfence[dev]'`"
        )


class Kill(Struct, frozen=True):
    """Test, or simulation run, that detected a mutant."""

    by: str
    """Node id of the test, or name of the run; empty when the modules cannot be imported."""
    text: str
    """Assertion or violation."""


class Server(AbstractContextManager["Server"]):
    """Process that handles one request after the other, each one in a fork."""

    def __init__(
        self, root: Path = ROOT, silent_s: float = _SILENT_S, libraries: Sequence[str] = ()
    ) -> None:
        self._root = root
        self._silent_s = silent_s
        self._folder = tempfile.TemporaryDirectory(prefix="ringfence-mutants-")
        scratch = Path(self._folder.name)
        # Python imports `sitecustomize` at its start, also in processes that a test starts.
        (scratch / "sitecustomize.py").write_text(_CHILD.read_text("utf-8"), "utf-8")
        # The new process blocks Ctrl-C: this one handles it, and kills the other.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, str(_CHILD), *libraries],
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis")},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._buffer = b""

    @property
    def lines_file(self) -> Path:
        """File for the lines that a request records."""
        return self.scratch / "lines.json"

    def read_lines(self) -> dict[str, dict[str, list[str]]]:
        """Return the recorded lines of the last request, by path and line."""
        lines: dict[str, dict[str, list[str]]] = json.loads(self.lines_file.read_text("utf-8"))
        return lines

    @property
    def scratch(self) -> Path:
        """Folder for files of this server; it is removed at the end."""
        return Path(self._folder.name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def request(
        self,
        verb: str,
        mutant: DrawnMutant | None,
        fields: Mapping[str, object],
        on_reply: Callable[[dict[str, object]], None] = lambda reply: None,
        *,
        is_pure: bool = False,
    ) -> Kill | None:
        """Handle a request with a mutant; return the failure that ended it, if any.

        `is_pure` hides the compiled modules, so that their Python variants run.
        """
        assert self._process.stdin is not None
        text = json.dumps(
            {"verb": verb, "environment": self._environment(mutant, is_pure=is_pure), **fields}
        )
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()
        kill: Kill | None = None
        pid, current = 0, ""
        used = 0.0
        while True:
            reply = self._read()
            if reply is None:
                before, used = used, _cpu_seconds(pid)
                if used - before > _IDLE_SHARE * self._silent_s:
                    continue
                kill = kill or Kill(current, "hang")
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            elif "ended" in reply:
                status = reply["ended"]
                if kill is None and status == -signal.SIGXCPU:
                    return Kill(current, "needs too much processor time")
                if kill is None and status != 0:
                    return Kill(current, f"the process ended with status {status}")
                return kill
            elif "pid" in reply:
                pid = int(str(reply["pid"]))
            elif "start" in reply:
                current = str(reply["start"])
                on_reply(reply)
            elif "failed" in reply and kill is None:
                kill = Kill(str(reply["failed"]), str(reply["text"]))
            else:
                on_reply(reply)

    def _environment(self, mutant: DrawnMutant | None, *, is_pure: bool) -> dict[str, str]:
        module, path = "", ""
        if mutant is not None:
            (self.scratch / "mutant.py").write_text(mutant.source, "utf-8")
            module, path = mutant.module, str(self._root / mutant.path)
        described = {
            "module": module,
            "path": path,
            "source": str(self.scratch / "mutant.py"),
            "blocked": _COMPILED if is_pure else (),
        }
        paths = [str(self.scratch), os.environ.get("PYTHONPATH", "")]
        return {
            "RINGFENCE_MUTANT": json.dumps(described),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        } | ({"RINGFENCE_ENGINE": "reference"} if is_pure else {})

    def _read(self) -> dict[str, object] | None:
        """Return the next reply; None after a time-out."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select([descriptor], [], [], self._silent_s)[0]:
                return None
            received = os.read(descriptor, 1 << 16)
            if not received:
                raise ConfigError(
                    "the process that applies mutants must run, but it ended; see its error above"
                )
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, object] = json.loads(line)
        return reply


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
