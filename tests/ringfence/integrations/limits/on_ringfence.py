"""Pytest plug-in that runs third-party test suites on the Ringfence storage in a test cluster.

The plug-in replaces each address of another store (`memory://`, `redis://` and so on) by a
Ringfence storage. Each `memory://` storage has its own counters; all other storages of a test share
theirs. The clock is `time.time`, which the suites freeze and move. Clients of other stores can only
clear the counters.
"""

import os
import sys
import time
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

import pytest
import redis

from ringfence.client.limiter import Limiter
from ringfence.integrations.limits import RingfenceStorage
from ringfence.integrations.testing import FakeClock, FakeCluster

_Result = TypeVar("_Result")

sys.path.append(os.environ["RINGFENCE_SUITE_LIBRARIES"])


class _Clock(FakeClock):
    """Clock of a suite, which reads `time.time`."""

    def now(self) -> int:
        return round(time.time() * 1e9)


def _cluster() -> FakeCluster:
    cluster = FakeCluster({})
    cluster.clock = _Clock()
    cluster.reset()
    return cluster


class _Shared:
    """Cluster that all stores with a server address share in a test."""

    cluster = _cluster()


class _AsMemory(RingfenceStorage):
    STORAGE_SCHEME = ["memory"]  # noqa: RUF012 - as the base class

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **_: object) -> None:
        super().__init__(wrap_exceptions=wrap_exceptions, limiter=_cluster().limiter)


class _AsServer(RingfenceStorage):
    STORAGE_SCHEME = ["redis", "memcached", "mongodb"]  # noqa: RUF012 - as the base class

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **_: object) -> None:
        super().__init__(wrap_exceptions=wrap_exceptions, limiter=_Shared.cluster.limiter)

    @property
    def storage(self) -> Any:
        """Return a client that can clear the store."""
        return _Client()

    def _run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        """Run a call, or raise the error of a Redis client that the suite has patched."""
        command = redis.Redis.execute_command
        if isinstance(command, mock.Mock):
            command()
        return super()._run(call)


class _Client:
    """Client of another store, which can only clear it."""

    def __init__(self, *_: object) -> None:
        self.flushall = self.flush_all = self.drop_database = _clear_cache


def _clear_cache(*_: object) -> None:
    _Shared.cluster.reset()


for _name in ("pymemcache", "pymongo"):
    _module = types.ModuleType(_name)
    _module.__dict__.update(Client=_Client, MongoClient=_Client)
    sys.modules.setdefault(_name, _module)


@pytest.fixture(autouse=True)
def _on_ringfence() -> Iterator[None]:
    _Shared.cluster = _cluster()
    with mock.patch("redis.from_url", _Client):
        yield
    _Shared.cluster.limiter.close()


@pytest.fixture
def docker_services() -> mock.Mock:
    """Return a mock, because no service is needed."""
    return mock.Mock()
