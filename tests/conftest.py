"""Settings of all tests: Hypothesis profiles, environment of processes, and shared fixtures."""

import gc
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

# Defaults for tests without own settings. `HYPOTHESIS_PROFILE=nightly` tries more examples.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The tests start some hundred processes. Without cached bytecode, each process would compile all
# modules again, and each run would compile all tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt all loaded modules and tests from garbage collection, to save time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _InternalErrors(logging.Handler):
    """Log handler that collects the internal errors of nodes and clients of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "internal_error", False):
            self.found.append(self.format(record))


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """Restore the level of the root logger, which frameworks such as Litestar change."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(autouse=True)
def no_internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test with an internal error, unless it has the marker `internal_errors`."""
    handler, logger = _InternalErrors(), logging.getLogger("ringfence")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    if request.node.get_closest_marker("internal_errors") is None:
        assert not handler.found, handler.found[0]
