"""Membership updates that each message carries."""

import pytest

from gossip import Ping, Send, Settings, Status


@pytest.mark.parametrize("has_buddy", [True, False])
@pytest.mark.parametrize("status", [Status.ALIVE, Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_a_message_to_a_suspect_or_dead_member_carries_its_accusation(
    core, record, status, *, has_buddy
):
    """The member can refute an accusation only after it has received it."""
    lan = Settings.lan()
    member = core("a", settings=lan if has_buddy else lan.without_lifeguard())
    receiver = record("b", status=status)

    member._outbox.send_to(receiver, Ping("a", 1, 7, "b", 0))

    [effect] = member._outbox.take()
    is_sent = status is Status.DEAD or (status is Status.SUSPECT and has_buddy)
    assert (effect.to, type(effect)) == (receiver.address, Send)
    assert effect.message.updates == ((receiver,) if is_sent else ())


def test_updates_for_the_local_and_other_data_centers_are_sent_separately(core, record):
    member = core("a")
    near, far = record("b"), record("c", datacenter="dc2")
    for each in (near, far):
        member._table.put(each)
    member._outbox.disseminate(record("d"), 0)

    for receiver in (near, far):
        member._outbox.send_to(receiver, Ping("a", 1, 7, receiver.name, 0))
        [effect] = member._outbox.take()
        assert [each.name for each in effect.message.updates] == ["d"]
    member._outbox.drop("d")
    for receiver in (near, far):
        member._outbox.send_to(receiver, Ping("a", 1, 7, receiver.name, 0))
        assert not member._outbox.take()[0].message.updates
