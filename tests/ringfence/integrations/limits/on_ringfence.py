"""A pytest plug-in that runs third-party test suites on the Ringfence storage in a test cluster.

Every address of another store that a suite names (`memory://`, `redis://` and so on) becomes a
storage of ours: each `memory://` counts by itself, all others of a test count together. Time is
what `time.time` says, which the suites freeze and move. Clients of other stores only empty them.
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
    """The time that a suite sees."""

    def now(self) -> int:
        return round(time.time() * 1e9)


def _cluster() -> FakeCluster:
    cluster = FakeCluster({})
    cluster.clock = _Clock()
    cluster.reset()
    return cluster


class _Shared:
    """The cluster of all stores that a test reaches by an address."""

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
        """Give a client to empty the store with."""
        return _Client()

    def _run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        """Fail while a suite has the other store's client fail."""
        command = redis.Redis.execute_command
        if isinstance(command, mock.Mock):
            command()
        return super()._run(call)


class _Client:
    """A client of another store, to empty it with."""

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
    """Starts nothing."""
    return mock.Mock()
