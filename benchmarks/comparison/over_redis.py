"""Comparison of rate limiters that use Redis, each in its fastest configuration.

One round of each returns a `Rate`. The package `limits` runs with fixed windows: on one thread, on
eight threads, and on 64 asyncio tasks. A GCRA script runs in pipelines. `redis-benchmark`, which is
written in C, runs the same script.
"""

import asyncio
import csv
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter

import redis
from limits import RateLimitItemPerHour
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindow
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter
from msgspec.structs import replace

from benchmarks.comparison.redis_server import RedisServer, redis_program
from benchmarks.reporting.rates import Rate, paced_by

__all__ = ["SECONDS", "TASKS", "OverRedis"]

SECONDS = 1.0
"""Seconds of one round."""
TASKS = 64
THREADS = 8
PIPELINE = 100
_LIMIT = 1_000_000_000
"""Limit per hour. No check is denied, so all limiters do the same work."""
_REQUESTS = 50_000
"""Checks that `redis-benchmark` sends in a round; three times as many in pipelines."""
GCRA = """
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + cost * interval
local left = now - (tat - burst * interval)
if left < 0 then return {0, 0, -left} end
redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil((tat - now) / 1000) + 1)
return {1, math.floor(left / interval), 0}
"""
"""Keys: the counter. Arguments: microseconds per unit, burst, cost. As in our `token_bucket`."""


class OverRedis:
    """Several rate limiters that are connected to one Redis server.

    The caller must call `close` at the end.
    """

    def __init__(self, server: RedisServer, keys: Sequence[str], *replicas: RedisServer) -> None:
        """`keys` are checked in turn; each round continues where the last one ended.

        `replicas` are servers that copy `server`; their processor time counts too.
        """
        self._keys = keys
        self._place = count()
        self._pids = (server.pid, *(each.pid for each in replicas))
        self._server = server
        self._url = f"redis://127.0.0.1:{server.port}/0"
        self._item = RateLimitItemPerHour(_LIMIT)
        self._limiter = FixedWindowRateLimiter(RedisStorage(self._url))
        self._redis = redis.Redis(port=server.port)
        self._sha = str(self._redis.script_load(GCRA))
        self._arguments = (str(3_600_000_000 / _LIMIT), str(_LIMIT), "1")

    def close(self) -> None:
        """Close the connection to Redis."""
        self._redis.close()

    def limits_sync(self, threads: int = 1) -> Rate:
        """Measure the package `limits` with blocking calls from several threads."""

        def work(_: int) -> int:
            hit, item, until, made = self._limiter.hit, self._item, perf_counter() + SECONDS, 0
            while perf_counter() < until:
                made += hit(item, self._next_key())
            return made

        if threads == 1:
            return paced_by(lambda: work(0), *self._pids)
        with ThreadPoolExecutor(threads) as pool:
            return paced_by(lambda: sum(pool.map(work, range(threads))), *self._pids)

    def lone_s(self, checks: int) -> list[float]:
        """Return the seconds of single blocking checks by the package `limits`."""
        samples = []
        for _ in range(checks):
            started_at = perf_counter()
            self._limiter.hit(self._item, self._next_key())
            samples.append(perf_counter() - started_at)
        return samples

    def _next_key(self) -> str:
        return self._keys[next(self._place) % len(self._keys)]

    def limits_async(self, implementation: str) -> Rate:
        """Measure the package `limits` with 64 asyncio tasks, over the Redis client
        `implementation`."""
        return paced_by(lambda: asyncio.run(self._crowd(implementation)), *self._pids)

    async def _crowd(self, implementation: str) -> int:
        storage = AsyncRedisStorage(f"async+{self._url}", implementation=implementation)  # type: ignore[arg-type]
        limiter, done = AsyncFixedWindow(storage), 0
        until = perf_counter() + SECONDS

        async def work() -> None:
            nonlocal done
            while perf_counter() < until:
                is_allowed = await limiter.hit(self._item, self._next_key())
                done += is_allowed

        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(work())
        return done

    def lua_pipelined(self) -> Rate:
        """Measure a GCRA script in Redis, called from one thread with 100 checks per pipeline."""
        return paced_by(self._pipelines, *self._pids)

    def _pipelines(self) -> int:
        pipeline = self._redis.pipeline(transaction=False)
        until, done = perf_counter() + SECONDS, 0
        while perf_counter() < until:
            for _ in range(PIPELINE):
                pipeline.evalsha(self._sha, 1, self._next_key(), *self._arguments)
            done += sum([answer[0] for answer in pipeline.execute()])
        return done

    def evalsha(self, pipeline: int) -> Rate:
        """Measure a GCRA script in Redis, called by `redis-benchmark` over 50 connections."""
        requests = _REQUESTS * (3 if pipeline > 1 else 1)
        words = [redis_program("redis-benchmark"), "-p", str(self._server.port), "--csv"]
        words += ["-n", str(requests), "-r", str(len(self._keys)), "-P", str(pipeline)]
        words += ["EVALSHA", self._sha, "1", "user-__rand_int__", *self._arguments]
        found: list[float] = []

        def work() -> int:
            output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            rows = [row for row in csv.reader(output.splitlines()) if len(row) > 1]
            found.append(float(rows[-1][1]))
            return requests

        pace = paced_by(work, *self._pids)
        return replace(pace, per_s=found[0])  # without the start of the program
