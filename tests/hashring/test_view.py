from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import ConflictingMembers, Member, NodeId, Ring, View
from hashring.placement import points_of

# Few values, so that two generated member lists are often equal or similar.
members = st.builds(
    Member,
    st.sampled_from(["a", "b", "ab"]).map(NodeId),
    datacenter=st.sampled_from(["d", "bd"]),
    zone=st.sampled_from(["", "d"]),
    weight=st.sampled_from([1.0, 2.0]),
)
member_lists = st.lists(members, max_size=3, unique_by=lambda member: member.name)


@given(one=member_lists, other=member_lists)
def test_views_and_their_hashes_are_equal_exactly_when_their_members_are(one, other):
    same_members = set(one) == set(other)

    assert (View.of(one) == View.of(other)) is same_members
    assert (View.of(one).hash == View.of(other).hash) is same_members


@given(member_list=member_lists, data=st.data())
def test_order_and_repetition_of_members_do_not_change_a_view(member_list, data):
    shuffled = data.draw(st.permutations(member_list + member_list[:1]))
    view, other = View.of(member_list), View.of(shuffled)

    assert (view, view.hash, hash(view)) == (other, other.hash, hash(other))
    assert view.members == tuple(sorted(member_list, key=lambda member: member.name))


@given(member_lists)
def test_the_hash_of_a_view_is_an_unsigned_64_bit_number(member_list):
    assert 0 <= View.of(member_list).hash < 2**64


def test_the_hash_separates_fields_with_any_boundaries():
    def view(*fields):
        return View.of([Member(NodeId(fields[0]), *fields[1:])])

    views = [view("ab", "c"), view("a", "bc"), view("a", "b", "c"), view("abc", "b")]

    assert len({view.hash for view in views}) == len(views)


def test_a_view_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        View.of([]).members = ()


def test_the_text_of_a_view_shows_its_members_and_hash():
    view = View.of([Member(NodeId("a"))])
    View.of([*view.members, Member(NodeId("b"))], like=view).ring("")
    view.ring("")

    assert repr(view) == f"View(members={view.members!r}, hash={view.hash})"


def test_the_hash_is_the_same_in_every_release():
    view = View.of(
        [
            Member(NodeId("alpha"), "east", "z1"),
            Member(NodeId("bêta"), "west", weight=0.5),
        ]
    )

    assert f"{view.hash:016x}" == "6beb3844c7d35df6"


def test_an_integer_weight_equals_the_float_weight():
    assert (
        View.of([Member(NodeId("a"), weight=2)]).hash
        == View.of([Member(NodeId("a"), weight=2.0)]).hash
    )


@settings(max_examples=20, deadline=None)
@given(member_lists)
def test_each_data_center_has_the_ring_of_its_own_members(member_list):
    view = View.of(member_list)

    assert view.datacenters == tuple(sorted({member.datacenter for member in member_list}))
    for datacenter in view.datacenters:
        own = [member for member in member_list if member.datacenter == datacenter]
        assert view.ring(datacenter) == Ring.of(own)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(member_lists, min_size=2, max_size=4), data=st.data())
def test_a_view_derived_from_another_equals_a_new_view(steps, data):
    view = View.of([])
    for member_list in steps:
        view = View.of(member_list, like=view)
        fresh = View.of(member_list)

        assert (view, view.hash) == (fresh, fresh.hash)
        for datacenter in data.draw(st.sets(st.sampled_from(["d", "bd"]))):
            own = Ring.of(each for each in member_list if each.datacenter == datacenter)
            ring = view.ring(datacenter)
            assert (ring, ring.owner_by_shard) == (own, own.owner_by_shard)
            assert ring.standby_by_shard == own.standby_by_shard


def test_a_derived_view_places_only_the_vnodes_of_new_members(monkeypatch):
    placed = []
    monkeypatch.setattr(
        "hashring.ring.points_of", lambda member: placed.append(member) or points_of(member)
    )
    here = [Member(NodeId(f"here-{number}"), "d") for number in range(9)]
    newcomer, there = Member(NodeId("new"), "d"), Member(NodeId("there"), "e")
    before = View.of(here)
    before.ring("d")
    placed.clear()

    beside = View.of([*here, there], like=before)  # No code requests a ring from this view.
    View.of([*here, newcomer, there], like=beside).ring("d")

    assert placed == [newcomer]


def test_a_data_center_without_members_has_an_empty_ring():
    assert View.of([Member(NodeId("a"), "east")]).ring("west") == Ring.of([])


def test_a_ring_is_built_once():
    view = View.of([Member(NodeId("a"))])

    assert view.ring("dc1") is view.ring("dc1")


def test_one_name_in_two_data_centers_is_a_conflict():
    with pytest.raises(ConflictingMembers, match="'a'"):
        View.of([Member(NodeId("a"), "east"), Member(NodeId("a"), "west")])


def test_a_view_without_members_is_a_view():
    view = View.of([])

    assert (view.members, view.datacenters) == ((), ())
