"""Pytest fixtures for tests of applications that use Ringfence.

Pytest loads this module in every project where Ringfence is installed, so each fixture imports its
code only when it is used.
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
    """Provide no rules for the fake cluster. Define a fixture with this name to use rules."""
    return {}


@pytest.fixture
def ringfence_cluster(
    ringfence_rules: "RuleSet | Mapping[str, object] | str | Path",
) -> "Iterator[FakeCluster]":
    """Provide a new fake cluster, to which all limiters connect during the test.

    It has `advance(seconds)`, `reset()`, `is_off` and `limiter`.
    """
    from ringfence.integrations.testing import FakeCluster

    with FakeCluster(ringfence_rules).installed() as cluster:
        yield cluster


@pytest.fixture
def ringfence_clock(ringfence_cluster: "FakeCluster") -> "FakeClock":
    """Provide the clock of `ringfence_cluster`, which only its method `advance(seconds)` moves."""
    return ringfence_cluster.clock


@pytest.fixture
def ringfence_limiter(ringfence_cluster: "FakeCluster") -> "BlockingLimiter":
    """Provide a blocking limiter of `ringfence_cluster`, to spend or read units in a test."""
    return ringfence_cluster.limiter
