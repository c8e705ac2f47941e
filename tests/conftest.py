"""What holds for all tests: how many examples a law is tried on, and what processes inherit."""

import gc
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

# Laws that say nothing of their own; `HYPOTHESIS_PROFILE=nightly pytest` tries them harder.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The tests start some hundred processes: without a cache each one would compile our modules anew,
# and every run all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt all loaded modules and tests from garbage collection, which would search them again
    and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _InternalErrors(logging.Handler):
    """Collects the internal errors that nodes and clients of this process contain."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "internal_error", False):
            self.found.append(self.format(record))


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """Undo what a framework under test, such as Litestar, does to the root logger's level."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(autouse=True)
def no_internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which an internal error was contained, unless it is marked to cause one."""
    handler, logger = _InternalErrors(), logging.getLogger("ringfence")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    if request.node.get_closest_marker("internal_errors") is None:
        assert not handler.found, handler.found[0]
