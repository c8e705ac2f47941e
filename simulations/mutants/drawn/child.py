"""Process that applies one mutant and runs tests or simulations; no file of the code changes.

It runs as a script and imports none of the shipped packages before the mutant is in place. So each
module that imports a mutated module receives the mutant. Requests and replies are lines of JSON.

The process imports the large libraries once, and then forks for each request. Its arguments are
further libraries, which only tests need. Python processes that a test starts load this file as
`sitecustomize` and apply the same mutant.
"""

import builtins
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from math import ceil
from resource import RLIM_INFINITY, RLIMIT_CPU, RUSAGE_SELF, getrusage, setrlimit
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coverage import Coverage

MUTANT = "RINGFENCE_MUTANT"
"""Environment variable with the mutant as JSON.

The fields are the module, its path, the file with its source text, and modules that must not be
imported."""
_LIBRARIES = (
    "aioquic.quic.connection",
    "click",
    "cryptography.x509",
    "msgspec",
    "prometheus_client",
    "rich.console",
    "trio.testing",
    "yaml",
)
_PYTEST_OPTIONS = (
    "-q",
    "-oaddopts=--import-mode=importlib",
    "-pno:cacheprovider",
    "-pno:faker",
    "-pno:schemathesis",
    "--assert=plain",  # Otherwise pytest imports the modules of its plug-ins itself.
    "-pno:xdist",
    "--hypothesis-seed=0",
    "--timeout=0",  # The processor time is limited; wall time passes also for other processes.
    "-Wignore::pytest.PytestAssertRewriteWarning",  # The libraries were imported before pytest.
)
_FEW_EXAMPLES = 15
"""Examples of each property test while lines are recorded."""
_IMPORTS_S = 30.0
"""Most processor time, in seconds, before the first test or run: the import of a mutated module may
never end."""


class _Loader(SourceFileLoader):
    """Loader of a mutated module from its source text elsewhere."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of the mutated module, and of the modules that must not be imported."""

    def __init__(self, module: str, path: str, source: str, blocked: Sequence[str]) -> None:
        self._module = module
        self._path = path
        self._source = source
        self._blocked = blocked

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._blocked:
            raise ImportError(f"{fullname} is not imported, so that its Python variant runs")
        if fullname != self._module:
            return None
        folder, name = os.path.split(self._path)
        return importlib.util.spec_from_file_location(
            fullname,
            self._path,
            loader=_Loader(fullname, self._path, self._source),
            submodule_search_locations=[folder] if name == "__init__.py" else None,
        )


def apply_mutant() -> None:
    """Apply the mutant that the environment names to all later imports of this process."""
    text = os.environ.get(MUTANT)
    if text is None:
        return
    mutant = json.loads(text)
    source = ""
    if mutant["module"]:
        with open(mutant["source"], encoding="utf-8") as file:
            source = file.read()
    # The tool replaces the class in an `except` clause by this name.
    builtins.CosmicRayTestingException = type(  # type: ignore[attr-defined]
        "CosmicRayTestingException", (Exception,), {}
    )
    sys.meta_path.insert(
        0, _Finder(mutant["module"], mutant["path"], source, tuple(mutant["blocked"]))
    )


class _Reports:
    """Pytest plug-in that selects tests, limits their processor time and reports each result."""

    def __init__(self, reply: "_Reply", order: Sequence[str], limits: dict[str, float]) -> None:
        self._reply = reply
        self._place = {name: number for number, name in enumerate(order)}
        self._limits = limits

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._place:
            items[:] = [item for item in items if item.nodeid in self._place]
            items.sort(key=lambda item: self._place[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reply(start=nodeid)
        _limit(self._limits.get(nodeid, max(self._limits.values(), default=60.0)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._reply(failed=report.nodeid, text=_last_line(report.longreprtext))
        elif report.when == "call":
            self._reply(passed=report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._reply(failed=report.nodeid, text=_last_line(report.longreprtext))


class _Recorder:
    """Pytest plug-in that records the lines and the processor time of each test."""

    def __init__(self, reply: "_Reply", coverage: "Coverage") -> None:
        self._reply = reply
        self._coverage = coverage
        self._passed = True

    def pytest_collection(self) -> None:
        import hypothesis

        # Few examples reach almost all lines, and recording makes each one slower.
        hypothesis.settings.register_profile("lines", max_examples=_FEW_EXAMPLES, deadline=None)
        hypothesis.settings.load_profile("lines")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began = _cpu_seconds()
        self._passed = True
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._passed = self._passed and not report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._coverage.switch_context("")
        if self._passed:
            self._reply(test=nodeid, seconds=round(_cpu_seconds() - self._began, 3))


class _Reply:
    """Writer of replies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, **fields: object) -> None:
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")


def _cpu_seconds() -> float:
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _limit(seconds: float) -> None:
    """Limit the processor time that this process may still use."""
    setrlimit(RLIMIT_CPU, (ceil(_cpu_seconds() + seconds), RLIM_INFINITY))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines()
    return lines[0][1:].strip()[:200] if lines else ""


def _run_tests(reply: _Reply, request: dict[str, Any]) -> None:
    import pytest

    reports = _Reports(reply, request["tests"], request["limits"])
    status: int = pytest.main([*_PYTEST_OPTIONS, "-x", *request["files"]], plugins=[reports])
    ended = pytest.ExitCode
    if status in (ended.INTERRUPTED, ended.INTERNAL_ERROR, ended.USAGE_ERROR):
        reply(failed="", text=f"pytest ended with status {int(status)}")


def _record_tests(reply: _Reply, request: dict[str, Any]) -> None:
    """Run tests and write which of them run each line of the packages."""
    import pytest

    recorder = _recorder(request)
    recorder.start()
    pytest.main([*_PYTEST_OPTIONS, *request["files"]], plugins=[_Recorder(reply, recorder)])
    recorder.stop()
    _write_lines(recorder, request)


def _record_runs(reply: _Reply, request: dict[str, Any]) -> None:
    """Simulate without a mutant, and write which runs execute each line of the packages."""
    recorder = _recorder(request)
    recorder.start()
    from simulations.mutants.drawn.simulated import run_once

    for run in request["runs"]:
        reply(start=run)
        recorder.switch_context(run)
        began = _cpu_seconds()
        violations = run_once(run)
        if violations:
            name, text = violations[0]
            reply(false_alarm=run, text=f"{name}: {text}"[:300])
        else:
            reply(test=run, seconds=round(_cpu_seconds() - began, 3))
    recorder.stop()
    _write_lines(recorder, request)


def _recorder(request: dict[str, Any]) -> "Coverage":
    import coverage

    folders = [os.path.join(os.getcwd(), package, "*") for package in request["packages"]]
    return coverage.Coverage(data_file=None, config_file=False, include=folders)


def _write_lines(recorder: "Coverage", request: dict[str, Any]) -> None:
    data = recorder.get_data()
    lines = {
        os.path.relpath(path): {
            line: [context for context in contexts if context]
            for line, contexts in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    with open(request["output"], "w", encoding="utf-8") as file:
        json.dump(lines, file)


def _simulate(reply: _Reply, request: dict[str, Any]) -> None:
    from simulations.mutants.drawn.simulated import run_once

    for run in request["runs"]:
        reply(start=run)
        _limit(request["limits"][run])
        violations = run_once(run)
        if violations:
            name, text = violations[0]
            reply(failed=run, text=f"{name}: {text}"[:300])
            return
        reply(passed=run)


_VERBS = {
    "test": _run_tests,
    "record": _record_tests,
    "record_runs": _record_runs,
    "simulate": _simulate,
}


def _handle(reply: _Reply, request: dict[str, Any]) -> None:
    """Apply the mutant and do what the request asks for, in a forked process."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    reply(pid=os.getpid())
    os.environ |= request["environment"]
    apply_mutant()
    if json.loads(os.environ[MUTANT])["module"]:
        _limit(_IMPORTS_S)
    sys.path.insert(0, os.getcwd())
    _VERBS[request["verb"]](reply, request)


def _serve() -> None:
    for name in (*_LIBRARIES, *sys.argv[1:]):
        importlib.import_module(name)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    reply = _Reply(os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for line in requests:
        pid = os.fork()
        if not pid:
            try:
                _handle(reply, json.loads(line))
            except BaseException as error:  # noqa: BLE001 - a mutant can raise anything.
                reply(failed="", text=f"{type(error).__name__}: {error}"[:300])
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # Processes of the tests that still run.
        reply(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.path.pop(0)  # Nothing is imported from the folder of this file.
    _serve()
else:
    apply_mutant()
