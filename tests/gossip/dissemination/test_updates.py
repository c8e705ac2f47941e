import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Record, Status
from gossip.datagrams.codec import record_size
from gossip.dissemination.updates import Updates, transmissions


def update(name, incarnation=0):
    return Record(name, "h", 1, "dc1", "", 1.0, 1, incarnation, Status.ALIVE)


def test_updates_are_dropped_after_their_transmission_limit():
    updates = Updates()
    updates.add(update("a"))

    taken = [updates.take(1000, 4) for _ in range(5)]

    assert taken == [(update("a"),)] * 4 + [()]
    assert len(updates) == 0


def test_the_least_sent_update_is_sent_first():
    updates = Updates()
    updates.add(update("a"))
    updates.take(1000, 4)
    updates.add(update("b"))

    (first, *_) = updates.take(1000, 4)

    assert first.name == "b"


def test_a_newer_update_of_a_member_replaces_the_older_one():
    updates = Updates()
    updates.add(update("a"))
    updates.add(update("a", incarnation=1))

    assert updates.take(1000, 4) == (update("a", incarnation=1),)


def test_an_update_with_priority_is_not_sent_twice():
    updates = Updates()
    updates.add(update("a"))
    updates.add(update("b"))

    taken = updates.take(1000, 4, first=[update("b")])

    assert [record.name for record in taken] == ["b", "a"]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.integers(0, 300))
def test_a_message_never_takes_more_than_its_room_and_the_queue_never_more_than_the_members(
    names, room
):
    updates = Updates()
    for number, name in enumerate(names):
        updates.add(update(name, number))
        taken = updates.take(room, 3)
        assert sum(record_size(record) for record in taken) <= room

    assert len(updates) <= len(set(names))


@pytest.mark.parametrize(("members", "times"), [(1, 4), (9, 4), (10, 8), (127, 12), (1000, 16)])
def test_updates_are_sent_more_often_in_larger_clusters(members, times):
    assert transmissions(4, members) == times


def test_an_update_is_taken_if_it_fits_exactly_and_a_smaller_one_if_not():
    size = record_size(update("long"))
    short = update("s")
    for room, taken in ((size, "long"), (size - 1, "s"), (record_size(short) - 1, None)):
        updates = Updates()
        updates.add(update("long"))
        updates.add(short)

        assert [record.name for record in updates.take(room, 4)] == ([taken] if taken else [])


def test_first_records_leave_their_room_to_the_others():
    updates = Updates()
    updates.add(update("b"))
    room = record_size(update("a")) + record_size(update("b"))

    assert [record.name for record in updates.take(room, 9, [update("a")])] == ["a", "b"]
    assert [record.name for record in updates.take(room - 1, 9, [update("a")])] == ["a"]


@pytest.mark.parametrize(("long", "taken"), [(63, ["short"]), (64, []), (200, [])])
@pytest.mark.parametrize("is_sent", [True, False])
def test_at_most_64_updates_are_tried_for_a_message(long, taken, is_sent):
    updates = Updates()
    for number in range(long):
        updates.add(update(f"much longer name {number}"))
    updates.add(update("short"))
    if is_sent:  # It then comes after the updates that were not sent yet.
        updates.take(record_size(update("short")), 9, [update("short")])
        updates.add(update("short"))
        updates.take(record_size(update("short")), 9)

    found = updates.take(record_size(update("short")), 9)

    assert [record.name for record in found] == taken


def test_a_newer_update_is_sent_as_often_as_a_first_one():
    updates = Updates()
    updates.add(update("a"))
    updates.take(1000, 4)
    updates.take(1000, 4)
    updates.add(update("a", 1))

    assert [updates.take(1000, 4) for _ in range(5)] == [(update("a", 1),)] * 4 + [()]


def test_only_a_queued_update_counts_as_sent_when_it_goes_first():
    updates = Updates()
    queued, other = update("a"), update("a", 1)
    updates.add(queued)

    assert updates.take(1000, 2, [other]) == (other,)  # Another record of the same member.
    assert updates.take(1000, 2, [queued]) == (queued,)
    assert len(updates) == 1
    assert updates.take(1000, 2, [queued]) == (queued,)
    assert len(updates) == 0


def test_updates_that_were_sent_equally_often_go_in_their_order():
    updates = Updates()
    for name in "abc":
        updates.add(update(name))
    size = record_size(update("a"))

    sent = "".join(record.name for _ in range(6) for record in updates.take(size, 9))

    assert sent == "abcabc"


def test_a_dropped_update_is_not_sent():
    updates = Updates()
    updates.add(update("a"))
    updates.add(update("b"))
    updates.take(1000, 4)

    updates.drop("a")
    updates.drop("unknown")

    assert updates.take(1000, 4) == (update("b"),)
    assert len(updates) == 1
