"""Events that describe the arrival of a shard's counters: what they have in common with those of
the receiver.
"""

from hashring import NodeId
from node.shards.ownership.origins import are_all_known
from node.shards.ownership.ownership_table import Event, State
from node.shards.ownership.shard_states import ShardStates
from ringfence.limiter import Snapshot
from ringfence.wire import ShardGroup

__all__ = ["arrival_of", "event_of"]

_BY_OWNER = (Event.TRANSFER, Event.TRANSFER_OF_BASE, Event.BRANCH, Event.UNRELATED)


def event_of(
    states: ShardStates,
    shard: int,
    group: ShardGroup,
    sender: NodeId,
    counts: Snapshot,
    *,
    is_unrelated: bool,
) -> Event:
    """Return the event that describes the arrival of the counters `counts` from `sender`, which
    `group` describes.

    `is_unrelated` means that they have no unit in common with those of this node.
    """
    is_held = bool(states.held[shard])
    log = states.log_of(shard) if is_held else None
    cover = None if log is None or log.is_ended else log
    owner, base_of = (None, "") if cover is None else (cover.owner, cover.base_of)
    marks, is_blind = group.marks[1:2], states.is_blind(shard)
    has_theirs = not {*marks}.isdisjoint(states.origins.of(shard))
    if cover is not None and has_theirs and cover.marks.isdisjoint(marks):
        owner = base_of = sender  # The replica that this node started from has the sender's log.
    if cover is not None and cover.sent_mark:
        if cover.sent_mark in group.origins:
            owner = sender  # The sender has the counters with which this node started again.
        elif states[shard] is State.RETAKEN and group.taken_from and are_all_known(group.origins):
            owner = base_of = NodeId("")  # The sender never received them.
    if is_blind and group.taken_from:  # The log has all units of this node.
        is_unrelated = False
    # The sender's log is enough when it started from this node's counters, or owns them, too.
    is_from_mine = log is not None and log.mark in group.origins
    if is_blind:
        # When all counters are in the log, its parts from other members are the base.
        parts = [number for number in group.origins if number not in group.marks[:2]]
        base = [number for number in parts if number not in group.marks] or parts
        is_from_mine = is_from_mine or states.origins.have_all(shard, base)
    is_own = is_held and cover is None and not group.taken_from
    event = arrival_of(
        *(group, sender, states.me, owner, base_of),
        is_unrelated=is_unrelated,
        is_branch=bool(marks) and (is_from_mine or is_own) and not has_theirs,
        has_log=log is not None and log.is_ended,
    )
    is_fresh = not counts.keys and states[shard] is State.FRESH
    if is_fresh and event in _BY_OWNER:
        # The sender may have started without counters, too. So earlier ones may still arrive.
        return Event.TRANSFER_OF_NOTHING
    return event


def arrival_of(
    group: ShardGroup,
    sender: NodeId,
    me: NodeId,
    owner: NodeId | None,
    base_of: str = "",
    *,
    is_unrelated: bool = False,
    is_branch: bool = False,
    has_log: bool = False,
) -> Event:
    """Return the event that describes the arrival of all counters of a shard from `sender`.

    `owner` is the member in whose place this node holds the shard, if any. `base_of` is the member
    whose counters this node started from, if they were a replica. They have the sender's log, as
    when it is the owner. `is_unrelated` means that this node holds counters that have no unit in
    common with those of the sender. `is_branch` means that the sender started from counters of this
    node with this node's log, and `has_log` that this node has a log although it owns the shard.
    """
    # Another member still has the base of a log, unless it was this node, or has restarted.
    has_base = not group.replica_at and (group.taken_from == me or group.is_from_before)
    if is_unrelated and (not group.taken_from or (has_base and owner is None)):
        # The owner still has its counters, and this node returns the sender's units to it.
        is_third = not group.taken_from and owner not in (None, me, sender)
        return Event.UNRELATED_BY_THIRD if is_third else Event.UNRELATED
    if is_branch:
        return Event.BRANCH
    if not group.taken_from:
        return Event.TRANSFER_OF_BASE if has_log else Event.TRANSFER
    is_base = owner is not None and sender == base_of
    # Without a replica, the sender has only its log, which is not what it had replicated here.
    by_owner = owner is not None and (sender == owner or (is_base and not group.replica_at))
    by_owner = by_owner and not is_unrelated
    if group.taken_from == me:
        if group.replica_at and is_base:
            return Event.RETURN_BLIND_BY_BASE
        return _return(group, by_owner=by_owner, is_same=owner == me)
    return _cover(group, by_owner=by_owner, is_same=group.taken_from == owner)


def _return(group: ShardGroup, *, by_owner: bool, is_same: bool) -> Event:
    if group.replica_at:
        is_restarted = group.is_from_before
        return Event.RETURN_BLIND_TO_RESTARTED if is_restarted else Event.RETURN_BLIND
    if by_owner:
        return Event.RETURN_BY_OWNER
    if is_same:
        return Event.RETURN_OF_SAME_OWNER
    return Event.RETURN_TO_RESTARTED if group.is_from_before else Event.RETURN


def _cover(group: ShardGroup, *, by_owner: bool, is_same: bool) -> Event:
    if group.replica_at:
        return Event.COVER_BLIND_BY_OWNER if by_owner else Event.COVER_BLIND
    if by_owner:
        return Event.COVER_BY_OWNER
    return Event.COVER_OF_SAME_OWNER if is_same else Event.COVER
