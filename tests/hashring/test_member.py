import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import ConflictingMembers, InvalidMember, Member, NodeId, RingError
from hashring.member import by_name

weights = st.floats(min_value=0.25, max_value=4.0)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_a_member_needs_only_a_name():
    member = Member(NodeId("a"))

    assert (member.datacenter, member.zone, member.weight) == ("dc1", "", 1.0)


@given(name=names, weight=weights)
def test_any_text_is_a_name_and_any_weight_in_range_is_accepted(name, weight):
    assert Member(NodeId(name), weight=weight).weight == weight


@pytest.mark.parametrize("weight", [0.0, 0.2499, 4.0001, -1.0, math.inf, -math.inf, math.nan])
def test_an_invalid_weight_is_rejected_with_the_valid_range(weight):
    with pytest.raises(InvalidMember, match=r"weight of 'a' is .*; use 0\.25 to 4"):
        Member(NodeId("a"), weight=weight)


def test_an_empty_name_or_data_center_is_rejected_with_its_field():
    with pytest.raises(InvalidMember, match="name of a member is empty"):
        Member(NodeId(""))
    with pytest.raises(InvalidMember, match="datacenter of a member is empty"):
        Member(NodeId("a"), datacenter="")


@pytest.mark.parametrize("field", ["name", "datacenter", "zone"])
def test_text_without_utf8_form_is_rejected_with_its_field(field):
    fields = {"name": NodeId("a"), field: NodeId("\ud800")}

    with pytest.raises(InvalidMember, match=f"{field} .* not valid Unicode"):
        Member(**fields)


def test_an_invalid_member_raises_a_value_error_of_this_package():
    assert issubclass(InvalidMember, ValueError)
    assert issubclass(InvalidMember, RingError)


@settings(max_examples=50)
@given(
    member_list=st.lists(st.builds(Member, names), unique_by=lambda member: member.name),
    data=st.data(),
)
def test_members_in_any_order_and_repetition_are_sorted_and_unique(member_list, data):
    repeated = data.draw(st.permutations(member_list + member_list[:2]))

    assert by_name(repeated) == tuple(sorted(member_list, key=lambda member: member.name))


def test_two_different_members_with_one_name_raise_a_named_conflict():
    with pytest.raises(ConflictingMembers, match="'a'") as caught:
        by_name([Member(NodeId("a"), zone="x"), Member(NodeId("b")), Member(NodeId("a"), zone="y")])

    assert caught.value.name == "a"
