"""Replicas that a standby keeps of its owners' counters."""

from hashring import NodeId, shard_of
from node.shards.replicas import Replicas
from ringfence.limiter import Limit, Snapshot

OWNER = NodeId("a")
LIMIT = Limit.of_ns(10, 60 * 10**9)
S = 10**9


def snapshot(*rows: tuple[bytes, list[int]]) -> Snapshot:
    keys, states = [row[0] for row in rows], [row[1] for row in rows]
    return Snapshot(keys, states, [LIMIT], [0] * len(rows), [])


def kept(copies: Replicas, key: bytes) -> list[tuple[int, list[int]]]:
    return [
        (at, counts.states[counts.keys.index(key)])
        for at, counts in copies.of(shard_of(key))
        if key in counts.keys
    ]


def test_the_latest_state_of_a_key_is_kept_with_its_arrival_time() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), 5 * S)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 3, 0]), (b"key-two-", [1, 1, 0])), 6 * S)

    assert kept(copies, b"key-one-") == [(6 * S, [1, 3, 0])]
    assert len(copies) == 2


def test_a_key_in_its_initial_state_is_dropped() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), 5 * S)
    copies.keep(OWNER, snapshot((b"key-one-", [])), 6 * S)

    assert kept(copies, b"key-one-") == []
    assert shard_of(b"key-one-") not in copies
    assert len(copies) == 0


def test_the_number_of_replicas_is_bounded() -> None:
    copies = Replicas(10)
    for number in range(100):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), number * S)

    assert len(copies) <= 10
    assert kept(copies, b"key-0099") == [(99 * S, [1, 2, 0])]


def test_idle_replicas_are_dropped_in_steps() -> None:
    copies = Replicas(1000)
    for number in range(200):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), S)
    for _ in range(10):
        copies.expire(100 * S)
    assert len(copies) == 200

    for _ in range(10):
        copies.expire(122 * S)
    assert len(copies) == 0


def test_replicas_of_held_shards_are_dropped() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0]), (b"key-two-", [1, 1, 0])), S)
    copies.drop([shard_of(b"key-one-"), 5])

    assert copies.shards() == [shard_of(b"key-two-")]
