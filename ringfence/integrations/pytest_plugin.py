"""Fixtures for tests of applications that use Ringfence; installed with it, loaded by pytest.

Pytest loads this at every start; what the fixtures need is imported when a test asks for one.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from ringfence.client.blocking.blocking_limiter import BlockingLimiter
    from ringfence.integrations.testing import FakeClock, FakeCluster
    from ringfence.rules import RuleSet


@pytest.fixture
def ringfence_rules() -> "RuleSet | Mapping[str, object] | str | Path":
    """The rules of the cluster in tests: none. Define a fixture of this name to give yours."""
    return {}


@pytest.fixture
def ringfence_cluster(
    ringfence_rules: "RuleSet | Mapping[str, object] | str | Path",
) -> "Iterator[FakeCluster]":
    """A fresh cluster in this process that everything connects to while the test runs.

    It has `advance(seconds)`, `reset()`, `is_off` and `limiter`.
    """
    from ringfence.integrations.testing import FakeCluster

    with FakeCluster(ringfence_rules).installed() as cluster:
        yield cluster


@pytest.fixture
def ringfence_clock(ringfence_cluster: "FakeCluster") -> "FakeClock":
    """The clock of `ringfence_cluster`; it stands until it is moved with `advance(seconds)`."""
    return ringfence_cluster.clock


@pytest.fixture
def ringfence_limiter(ringfence_cluster: "FakeCluster") -> "BlockingLimiter":
    """A blocking limiter over `ringfence_cluster`, to spend or look at budgets in a test."""
    return ringfence_cluster.limiter
