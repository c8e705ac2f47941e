"""P8: requests of a client with a token cannot make a node store more bytes than its bound."""

import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest
from msgpack import packb, unpackb

from hashring import NodeId
from node.shards.replica_rows import ROW_BYTES
from node.shards.replicas import Replicas
from ringfence.errors import ConfigError
from ringfence.limiter import (
    MAX_CARRIED_SLOTS,
    NS_PER_SECOND,
    Algorithm,
    Engine,
    Limit,
    PackedSnapshot,
    Snapshot,
    compiled_tables,
    why_not_compiled,
)
from ringfence.wire import MAX_KEY, Answer, ErrorCode, encode
from tests.node.cluster import world
from tests.node.requests.sessions.session_world import (
    APP,
    check,
    reason_of,
    running_node,
    with_columns,
)
from tests.programs import require_compiled

MINUTE_NS = 60 * NS_PER_SECOND
LARGEST_AMOUNT = 2**53 - 1
MANY_SLOTS = Limit.of_ns(LARGEST_AMOUNT, 3600 * NS_PER_SECOND, slots=3600)
MOST_CARRIED_SLOTS = Limit.of_ns(LARGEST_AMOUNT, MINUTE_NS, slots=MAX_CARRIED_SLOTS)
LOG = Limit.of_ns(LARGEST_AMOUNT, 10**6 * MINUTE_NS, Algorithm.SLIDING_WINDOW_LOG)
CONCURRENCY = Limit.of_ns(LARGEST_AMOUNT, 10**6 * MINUTE_NS, Algorithm.CONCURRENCY)
MAX_BYTES = 1 << 19


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
async def test_a_frame_of_limits_with_3600_slots_is_rejected_without_memory_growth(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        keys = [number.to_bytes(8, "big") + b"key" for number in range(500)]
        frame = with_columns(check(1, *keys), limits=[MANY_SLOTS])
        before, _ = tracemalloc.get_traced_memory()

        received = await caller.send(frame)

        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 2 << 20
        assert "at most 60" in reason_of(received, ErrorCode.NOT_PERMITTED)
        assert not caller.closed


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "limit", [MOST_CARRIED_SLOTS, LOG, CONCURRENCY], ids=["slots", "log", "concurrency"]
)
@pytest.mark.parametrize("is_compiled", [False, True], ids=["reference", "compiled"])
def test_counters_of_many_numbers_stay_within_the_byte_bound(
    limit: Limit, is_compiled: bool
) -> None:
    if is_compiled:
        require_compiled()
    tables = compiled_tables(bytes(16), keeps_keys=True) if is_compiled else None
    engine = Engine(max_keys=1_000_000, max_bytes=MAX_BYTES, tables=tables)
    random = Random(1)
    now = MINUTE_NS
    before, _ = tracemalloc.get_traced_memory()

    for _ in range(40):
        now += NS_PER_SECOND // 2
        keys = [random.randrange(2_000).to_bytes(8, "big") + b"key" for _ in range(256)]
        engine.decide(keys, [1000] * 256, [], [limit], [1] * 256, now)

    after, _ = tracemalloc.get_traced_memory()
    assert engine.bytes_in_use <= MAX_BYTES
    assert after - before < 2 * MAX_BYTES
    assert engine.evicted > 0


def test_replicas_of_counters_of_many_numbers_stay_within_the_byte_bound() -> None:
    replicas = Replicas(1_000_000, 1 << 20)

    for number in range(1000):
        keys = [number.to_bytes(8, "big")]
        counts = Snapshot(keys, [[1 << 60] * 1000], [LOG], [0], [])
        replicas.keep(NodeId("a"), PackedSnapshot.of(counts), 1)

    if why_not_compiled() is None:
        assert 110 <= len(replicas) <= 120
    else:  # A plain row has 8 bytes for each number, its limit and its instant.
        assert len(replicas) == (1 << 20) // (ROW_BYTES + 1002 * 8)


async def test_keys_of_more_than_128_bytes_end_the_connection_that_sends_them(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        other_caller, caller = await world.call(APP), await world.call(APP)
        longest = bytes(MAX_KEY)
        fields = unpackb(encode(check(1, longest)))
        fields[7] = [bytes(129)]

        await caller.send(packb(fields))
        [answer] = await other_caller.send(check(2, longest))

        assert len(longest) == 128
        assert caller.closed[0][0] == ErrorCode.BAD_MESSAGE
        assert isinstance(answer, Answer)


async def test_clients_replace_long_values_with_a_digest(autojump_clock: object) -> None:
    async with world() as cluster, cluster.client() as limiter:
        long, other = "x" * 100_000, "x" * 99_999 + "y"

        first = [await limiter.check("api", {"client": long}) for _ in range(6)]
        second = await limiter.check("api", {"client": other})

        assert [decision.allowed for decision in first] == [True] * 5 + [False]
        assert second.allowed


async def test_clients_reject_limits_with_too_many_slots_before_they_send_a_check(
    autojump_clock: object,
) -> None:
    async with world("a") as cluster, cluster.client("a") as limiter:
        with pytest.raises(ConfigError, match="at most 60"):
            await limiter.check_limit(MANY_SLOTS, "user:1")
