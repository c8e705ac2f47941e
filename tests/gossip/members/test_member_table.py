from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gossip import Record, Status
from gossip.members.member_table import MemberTable, Pool

ME = Record("me", "h", 1, "dc1", "", 1.0, 1, 0, Status.ALIVE)
others = st.builds(
    replace,
    st.just(ME),
    name=st.sampled_from("abcde"),
    datacenter=st.sampled_from(["dc1", "dc2"]),
    status=st.sampled_from(Status),
    generation=st.integers(1, 3),
)


@given(st.lists(others))
def test_the_pools_contain_the_reachable_members(puts):
    table = MemberTable(ME)
    for record in puts:
        table.put(record)

    last = {record.name: record for record in puts}.values()
    here = {record.name for record in last if not record.is_gone and record.datacenter == "dc1"}
    there = {record.name for record in last if not record.is_gone and record.datacenter == "dc2"}
    assert (set(table.local_dc), set(table.remote_dc)) == (here, there)
    assert set(table.dead) == {each.name for each in last if each.status is Status.DEAD}


@given(st.lists(others, unique_by=lambda record: record.name), st.randoms())
def test_equal_members_in_any_order_have_equal_digests(puts, random):
    one, other = MemberTable(ME), MemberTable(ME)
    for record in puts:
        one.put(record)
        other.put(replace(record, generation=9))
    for record in random.sample(puts, len(puts)):
        other.put(record)

    assert one.digest == other.digest


def test_the_digest_is_the_same_in_every_release():
    """During an upgrade, members of two releases compare it."""
    table = MemberTable(ME)
    one = table.digest
    table.put(replace(ME, name="other"))

    assert f"{one:016x}" == "ec40d7eccb8e15e0"
    assert f"{table.digest:016x}" == "8a5d719ea957adb3"


@given(others)
def test_a_forgotten_member_leaves_no_trace(record):
    table = MemberTable(ME)
    digest = table.digest
    table.put(record)
    table.forget(record.name)

    assert table.digest == digest
    assert list(table.records) == ["me"]
    assert table.is_alone


def test_the_digest_covers_routed_members_but_not_suspicions():
    table = MemberTable(ME)
    digests = []
    for status in (Status.ALIVE, Status.SUSPECT, Status.LEAVING, Status.DEAD, Status.LEFT):
        table.put(replace(ME, name="a", status=status))
        digests.append(table.digest)

    alive, suspect, leaving, dead, left = digests
    assert alive == suspect
    assert dead == left == MemberTable(ME).digest
    assert len({alive, leaving, dead}) == 3


@given(st.integers(0, 40), st.integers(1, 5), st.integers())
def test_a_pool_gives_different_names_that_are_accepted(size, count, seed):
    pool = Pool()
    for number in range(size):
        pool.add(str(number))

    drawn = pool.draw(count, Random(seed), lambda name: name != "0")

    assert len(drawn) == len(set(drawn)) <= count
    assert "0" not in drawn
    assert len(drawn) == min(count, max(0, size - 1)) or size > 4 * count
