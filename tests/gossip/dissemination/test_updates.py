import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Record, Status
from gossip.datagrams.codec import record_size
from gossip.dissemination.updates import Updates, transmissions


def news(name, incarnation=0):
    return Record(name, "h", 1, "dc1", "", 1.0, 1, incarnation, Status.ALIVE)


def test_updates_are_dropped_after_their_transmission_limit():
    updates = Updates()
    updates.add(news("a"))

    taken = [updates.take(1000, 4) for _ in range(5)]

    assert taken == [(news("a"),)] * 4 + [()]
    assert len(updates) == 0


def test_what_was_sent_least_goes_first():
    updates = Updates()
    updates.add(news("a"))
    updates.take(1000, 4)
    updates.add(news("b"))

    (first, *_) = updates.take(1000, 4)

    assert first.name == "b"


def test_newer_news_of_a_member_take_the_place_of_older():
    updates = Updates()
    updates.add(news("a"))
    updates.add(news("a", incarnation=1))

    assert updates.take(1000, 4) == (news("a", incarnation=1),)


def test_what_must_go_first_is_not_said_twice():
    updates = Updates()
    updates.add(news("a"))
    updates.add(news("b"))

    taken = updates.take(1000, 4, first=[news("b")])

    assert [record.name for record in taken] == ["b", "a"]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.integers(0, 300))
def test_a_message_never_takes_more_than_its_room_and_the_queue_never_more_than_the_members(
    names, room
):
    updates = Updates()
    for number, name in enumerate(names):
        updates.add(news(name, number))
        taken = updates.take(room, 3)
        assert sum(record_size(record) for record in taken) <= room

    assert len(updates) <= len(set(names))


@pytest.mark.parametrize(("members", "times"), [(1, 4), (9, 4), (10, 8), (127, 12), (1000, 16)])
def test_news_are_sent_more_often_in_larger_clusters(members, times):
    assert transmissions(4, members) == times
