from node.shards.ownership.ownership_table import Event, State
from simulations.reporting.outcome import OwnershipChange, Span
from simulations.world.watches.shard_watch import ShardWatch


def test_states_and_changes_of_one_shard_are_kept_by_node() -> None:
    now = [10.0]
    watch = ShardWatch(lambda: now[0])
    one, other = watch.observer_of("n1"), watch.observer_of("n2")
    one(Event.START, [3, 4], bytes([State.ABSENT, State.ABSENT]))
    now[0] = 12.0
    one(Event.SEND, [4], bytes([State.FRESH]))
    other(Event.TRANSFER, [4], bytes([State.ABSENT]))
    now[0] = 15.0
    watch.ended("n2")

    assert watch.spans_of(4, 11.0, 9.0) == [
        Span(-1.0, 1.0, "n1", "FRESH"),
        Span(1.0, 4.0, "n2", "OWNED"),
        Span(1.0, 9.0, "n1", "SENT"),
    ]
    assert watch.changes_of(3, 11.0) == [OwnershipChange(-1.0, "n1", "START", "ABSENT", "FRESH")]
    assert watch.changes_of(4, 11.0)[-1] == OwnershipChange(4.0, "n2", "node ended", "", "")
    assert watch.reached() == {"ABSENT+START", "FRESH+SEND", "ABSENT+TRANSFER", "START>SEND"}
