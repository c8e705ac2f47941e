"""A member joins a node with more keys than may wait for replication at a time."""

from benchmarks.members.join import join


def test_no_counter_is_wrong_while_a_member_joins_a_node_with_many_keys() -> None:
    sample = join(30_000, seed=1)

    assert sample.wrong == 0
    assert sample.seconds > 0
