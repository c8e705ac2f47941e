from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import SHARDS, Member, Move, NodeId, Ring, moved

node_ids = st.text("abcdefgh", min_size=1, max_size=3).map(NodeId)
members = st.builds(
    Member, node_ids, zone=st.sampled_from(["", "x"]), weight=st.sampled_from([0.25, 1.0, 1.5])
)
member_lists = st.lists(members, min_size=1, max_size=6, unique_by=lambda member: member.name)
two_or_more = member_lists.filter(lambda member_list: len(member_list) > 1)


@settings(max_examples=40, deadline=None)
@given(two_or_more)
def test_a_join_moves_exactly_the_new_members_shards(member_list):
    *before, newcomer = member_list
    new = Ring.of(member_list)

    moves = moved(Ring.of(before), new)

    assert {move.new_owner for move in moves} == {newcomer.name}
    assert tuple(move.shard for move in moves) == new.shards_of(newcomer.name)


@settings(max_examples=40, deadline=None)
@given(two_or_more)
def test_a_departure_moves_exactly_the_shards_of_the_departed_member(member_list):
    *after, leaver = member_list
    old = Ring.of(member_list)

    moves = moved(old, Ring.of(after))

    assert {move.old_owner for move in moves} == {leaver.name}
    assert tuple(move.shard for move in moves) == old.shards_of(leaver.name)


@settings(max_examples=30, deadline=None)
@given(member_lists)
def test_a_member_that_gains_weight_only_gains_shards(member_list):
    lighter, *others = member_list
    heavier = Member(lighter.name, zone=lighter.zone, weight=2.0)

    moves = moved(Ring.of(member_list), Ring.of([heavier, *others]))

    assert {move.new_owner for move in moves} <= {heavier.name}


@settings(max_examples=40, deadline=None)
@given(old=member_lists, new=member_lists)
def test_moves_name_old_and_new_owners_in_shard_order(old, new):
    old_ring, new_ring = Ring.of(old), Ring.of(new)

    moves = moved(old_ring, new_ring)

    owners = list(old_ring.owner_by_shard)
    for move in moves:
        assert owners[move.shard] == move.old_owner != move.new_owner
        owners[move.shard] = move.new_owner
    assert tuple(owners) == new_ring.owner_by_shard
    assert list(moves) == sorted(moves, key=lambda move: move.shard)


def test_a_zone_that_changes_moves_no_shard():
    old = Ring.of([Member(NodeId("a")), Member(NodeId("b"))])
    new = Ring.of([Member(NodeId("a"), zone="x"), Member(NodeId("b"))])

    assert moved(old, new) == ()


def test_the_first_member_gains_and_the_last_member_loses_every_shard():
    no_member, alone = Ring.of([]), Ring.of([Member(NodeId("a"))])

    assert moved(no_member, alone) == tuple(
        Move(shard, None, NodeId("a")) for shard in range(SHARDS)
    )
    assert moved(alone, no_member) == tuple(
        Move(shard, NodeId("a"), None) for shard in range(SHARDS)
    )
    assert moved(no_member, no_member) == ()


def test_a_join_of_ten_moves_about_a_tenth():
    member_list = [Member(NodeId(f"node-{number}")) for number in range(10)]

    share = len(moved(Ring.of(member_list[:-1]), Ring.of(member_list))) / SHARDS

    assert 0.075 < share < 0.125  # One tenth, four sigma either way.
