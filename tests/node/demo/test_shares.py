from hashring import Member, NodeId, Ring
from node.demo.shares import CLIENT, NO_NODE, Share, Shares, total_of
from ringfence.client.decision import Decision
from ringfence.wire import Source

RING = Ring.of(Member(NodeId(name)) for name in "abc")
SHARD_OF_A = RING.shards_of(NodeId("a"))[0]
_, STANDBY, THIRD = RING.owners(SHARD_OF_A, 3)


def decision(source: Source, *, denied: bool = False) -> Decision:
    return Decision(None, (2 if denied else 0, 0, 0, 0, 0, 0, 0, source.value))


def test_a_check_is_counted_for_the_node_that_decided_it() -> None:
    shares = Shares(RING)

    shares.add(decision(Source.OWNER), SHARD_OF_A, 0.0)
    shares.add(decision(Source.OWNER, denied=True), SHARD_OF_A, 0.0)
    shares.add(decision(Source.STANDBY), SHARD_OF_A, 0.0)
    shares.add(decision(Source.CACHE, denied=True), SHARD_OF_A, 0.0)
    shares.add(decision(Source.LEASE), SHARD_OF_A, 0.0)
    shares.add(decision(Source.POLICY), SHARD_OF_A, 0.0)

    assert shares.by_name == {
        "a": Share(2, 1, 1),
        STANDBY: Share(1, 1, 0, 1),
        CLIENT: Share(2, 1, 1),
        NO_NODE: Share(1, 1, 0),
    }
    assert total_of(shares.by_name) == Share(6, 4, 2, 1)


def test_a_dead_owner_keeps_its_checks_and_its_standby_becomes_the_owner() -> None:
    shares = Shares(RING)
    shares.add(decision(Source.OWNER), SHARD_OF_A, 9.9)

    shares.died("a", 10.0)
    shares.add(decision(Source.OWNER), SHARD_OF_A, 10.1)  # In flight when the node died.
    shares.add(decision(Source.STANDBY), SHARD_OF_A, 11.0)
    shares.add(decision(Source.OWNER), SHARD_OF_A, 13.0)

    assert shares.by_name == {"a": Share(2, 2), STANDBY: Share(2, 2, 0, 1)}


def test_a_dead_standby_decides_nothing() -> None:
    shares = Shares(RING)

    shares.died(STANDBY, 10.0)
    shares.add(decision(Source.STANDBY), SHARD_OF_A, 11.0)

    assert shares.by_name == {THIRD: Share(1, 1, 0, 1)}
