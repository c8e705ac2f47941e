"""State machine of a shard at one node: states, events, and the table of transitions.

This module is pure data: `ownership` performs the actions. The docs page and the tests are
generated from `TABLE`. When a pair of state and event is not in the table, the event is rejected
and nothing happens.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum

from msgspec import Struct

__all__ = [
    "BLIND",
    "COUNTED",
    "COVERING",
    "TABLE",
    "Action",
    "Event",
    "State",
    "Transition",
    "describe",
]


class State(IntEnum):
    """State of one shard at a node. From `OWNED` on, the node decides the checks of the shard."""

    ABSENT = 0
    SENT = 1
    MOVED = 2
    OWNED = 3
    FRESH = 4
    COVERED = 5
    COVERED_BLIND = 6
    RETAKEN = 7
    RETAKEN_BLIND = 8


COUNTED = State.OWNED
"""The first state in which a node decides the checks of a shard."""
COVERING = (State.COVERED, State.COVERED_BLIND, State.RETAKEN, State.RETAKEN_BLIND)
"""States in which a node counts a shard in place of an owner that it could not reach."""

BLIND = (State.COVERED_BLIND, State.RETAKEN_BLIND)
"""States of `COVERING` in which the owner's counters were not available."""


class Event(StrEnum):
    """Event that may change the state of a shard at one node."""

    START = "start"
    TAKE_OVER = "take_over"
    TAKE_OVER_BLIND = "take_over_blind"
    RETAKE = "retake"
    RETAKE_BLIND = "retake_blind"
    SEND = "send"
    ACKNOWLEDGE = "acknowledge"
    FORGET = "forget"
    OWNER_HAS_NOTHING = "owner_has_nothing"
    OWNER_MOVED = "owner_moved"
    REPLICA_OF_OWN = "replica_of_own"
    REPLICA_OF_OTHER = "replica_of_other"
    REPLICA_FOUND = "replica_found"
    TRANSFER = "transfer"
    TRANSFER_OF_BASE = "transfer_of_base"
    TRANSFER_OF_NOTHING = "transfer_of_nothing"
    BRANCH = "branch"
    UNRELATED = "unrelated"
    UNRELATED_BY_THIRD = "unrelated_by_third"
    RETURN = "return"
    RETURN_TO_RESTARTED = "return_to_restarted"
    RETURN_BY_OWNER = "return_by_owner"
    RETURN_OF_SAME_OWNER = "return_of_same_owner"
    RETURN_BLIND = "return_blind"
    RETURN_BLIND_TO_RESTARTED = "return_blind_to_restarted"
    RETURN_BLIND_BY_BASE = "return_blind_by_base"
    COVER = "cover"
    COVER_BY_OWNER = "cover_by_owner"
    COVER_OF_SAME_OWNER = "cover_of_same_owner"
    COVER_BLIND = "cover_blind"
    COVER_BLIND_BY_OWNER = "cover_blind_by_owner"


class Action(StrEnum):
    """Step of a transition. The actions of a transition run in the order of its list."""

    RESTORE = "restore"
    HOLD = "hold"
    RELEASE = "release"
    JOIN = "join"
    RESTORE_BELOW_LOG = "restore_below_log"
    CHARGE_SENDERS_LOG = "charge_senders_log"
    KEEP_SENDERS_LOG = "keep_senders_log"
    KEEP_SENDERS_UNITS = "keep_senders_units"
    COVER_OWNER = "cover_owner"
    COVER_SENDERS_OWNER = "cover_senders_owner"
    COVER_NEW_OWNER = "cover_new_owner"
    END_COVER = "end_cover"
    SETTLE_COVER = "settle_cover"
    COUNT_HEALED = "count_healed"


STATE_MEANINGS = {
    State.ABSENT: "This node does not decide for the shard. It may have a replica.",
    State.SENT: "Transferred to another member, not yet acknowledged; this node keeps all parts.",
    State.MOVED: "Transferred and acknowledged; this node stores the receiver for some seconds.",
    State.OWNED: "This node decides, and has all counters of the shard.",
    State.FRESH: "This node decides. It started without counters; earlier ones may still arrive.",
    State.COVERED: "This node decides for an unreachable owner, from a replica.",
    State.COVERED_BLIND: "This node decides for an unreachable owner, without a replica.",
    State.RETAKEN: (
        "This node decides again, with the counters of its transfer, which was not acknowledged."
    ),
    State.RETAKEN_BLIND: "As `RETAKEN`, but the transfer had no counters.",
}
EVENT_MEANINGS = {
    Event.START: "No member has counters of the shard.",
    Event.TAKE_OVER: "The owner cannot be reached, and this node has a replica of its counters.",
    Event.TAKE_OVER_BLIND: "The owner cannot be reached, and this node has no replica.",
    Event.RETAKE: "The receiver of this node's transfer cannot be reached.",
    Event.RETAKE_BLIND: "As `RETAKE`, but the transfer had no counters.",
    Event.SEND: "Another member requests the shard.",
    Event.ACKNOWLEDGE: "The receiver of the transfer decides for the shard now.",
    Event.FORGET: "Some seconds have passed since the transfer.",
    Event.OWNER_HAS_NOTHING: (
        "The owner answers that it has no counters of the shard, or has been dead for 15 minutes."
    ),
    Event.OWNER_MOVED: "The owner answers that it has transferred the shard to a third member.",
    Event.REPLICA_OF_OWN: "The owner has only a replica of this node's earlier counters.",
    Event.REPLICA_OF_OTHER: "The owner has only a replica of a third member's counters.",
    Event.REPLICA_FOUND: "A member that could not be asked earlier sends its replica.",
    Event.TRANSFER: "Counters arrive that the sender owned.",
    Event.TRANSFER_OF_BASE: (
        "As `TRANSFER`. This node became the owner a moment ago, and still has its log."
    ),
    Event.TRANSFER_OF_NOTHING: (
        "As `TRANSFER`, but the sender has no counters of the shard, and this node started without "
        "counters."
    ),
    Event.BRANCH: "Counters arrive of which this node lacks only the sender's log.",
    Event.UNRELATED: "Counters arrive that have no unit in common with those of this node.",
    Event.UNRELATED_BY_THIRD: "As `UNRELATED`, while this node decides for a third member.",
    Event.RETURN: "Counters arrive with which the sender decided for this node.",
    Event.RETURN_TO_RESTARTED: "As `RETURN`; this node has restarted since then.",
    Event.RETURN_BY_OWNER: (
        "As `RETURN`, while this node decides for the sender, or from a replica of its counters."
    ),
    Event.RETURN_OF_SAME_OWNER: "As `RETURN`, while this node decides for its earlier shard.",
    Event.RETURN_BLIND: "As `RETURN`; the sender had started without this node's counters.",
    Event.RETURN_BLIND_TO_RESTARTED: "As `RETURN_BLIND`; this node has restarted since then.",
    Event.RETURN_BLIND_BY_BASE: (
        "As `RETURN_BLIND`; this node started from a replica of the sender's counters."
    ),
    Event.COVER: "Counters arrive with which the sender decided for a third member.",
    Event.COVER_BY_OWNER: "As `COVER`, while this node decides for the sender.",
    Event.COVER_OF_SAME_OWNER: "As `COVER`, while both decide for the same member.",
    Event.COVER_BLIND: "As `COVER`; the sender had started without the owner's counters.",
    Event.COVER_BLIND_BY_OWNER: "As `COVER_BLIND`, while this node decides for the sender.",
}
ACTION_MEANINGS = {
    Action.RESTORE: "Put the counters that arrived into the engine.",
    Action.HOLD: "Start to decide checks of the shard; delete its replica and its transfer.",
    Action.RELEASE: "Stop deciding; keep the counters as parts of a transfer.",
    Action.JOIN: (
        "As `RESTORE`; then charge the units that this node admitted. If both members began with "
        "the same units, only charge the units that exceed those of the sender."
    ),
    Action.RESTORE_BELOW_LOG: (
        "As `RESTORE`; then charge the units that this node admitted for the owner, except those "
        "that arrived as well. Keys that the sender does not have keep their counters."
    ),
    Action.CHARGE_SENDERS_LOG: (
        "Charge the units that the sender admitted for the owner. If this node lacks units from "
        "before the sender's log, counters with more of them replace those of this node."
    ),
    Action.KEEP_SENDERS_LOG: "Add the units in the sender's log to this node's log for the owner.",
    Action.KEEP_SENDERS_UNITS: "Add all units of the sender to this node's log for the owner.",
    Action.COVER_OWNER: "Decide for the owner: start a log of admitted units.",
    Action.COVER_SENDERS_OWNER: "Decide for the member for which the sender decided.",
    Action.COVER_NEW_OWNER: "Decide for the member that has the shard now.",
    Action.END_COVER: "Delete the log: this node owns the shard now.",
    Action.SETTLE_COVER: (
        "Own the shard from now on. Keep the log for some seconds, because a member that did not "
        "answer may own the shard, too."
    ),
    Action.COUNT_HEALED: "Increment the counter `splits_healed`.",
}


class Transition(Struct, frozen=True):
    """Next state of a shard, and the actions that lead to it."""

    state: State
    actions: tuple[Action, ...] = ()


_RETURNS = (
    Event.RETURN,
    Event.RETURN_TO_RESTARTED,
    Event.RETURN_BY_OWNER,
    Event.RETURN_OF_SAME_OWNER,
)
_TO_BLIND = (Event.RETURN_BLIND, Event.RETURN_BLIND_TO_RESTARTED)
_BLIND_RETURNS = (*_TO_BLIND, Event.RETURN_BLIND_BY_BASE)
_COVERS = (Event.COVER, Event.COVER_BY_OWNER, Event.COVER_OF_SAME_OWNER)
_BLIND_COVERS = (Event.COVER_BLIND, Event.COVER_BLIND_BY_OWNER)
_LOGGED = (*_RETURNS, *_BLIND_RETURNS, *_COVERS, *_BLIND_COVERS)
"""Arrivals with a log of what the sender admitted in another member's place."""
_UNCOUNTED = (State.ABSENT, State.SENT, State.MOVED)
_SIGHTED = (State.COVERED, State.RETAKEN)
_SAME = None
"""Next state of a row whose states do not change."""

_A = Action
_TAKE = (_A.RESTORE, _A.HOLD, _A.COVER_OWNER)
_TAKE_LOG = (_A.RESTORE, _A.HOLD, _A.COVER_SENDERS_OWNER, _A.KEEP_SENDERS_LOG)
_BASE_OWNED = (_A.RESTORE_BELOW_LOG, _A.END_COVER, _A.COUNT_HEALED)
"""The sender has the counters that this node's log is on top of."""
_BASE_COVERED = (
    *(_A.RESTORE_BELOW_LOG, _A.COVER_SENDERS_OWNER),
    *(_A.KEEP_SENDERS_LOG, _A.COUNT_HEALED),
)
_ADD = (_A.CHARGE_SENDERS_LOG, _A.COUNT_HEALED)
"""Both sides started from the same counters: only the sender's log is new."""
_ADD_AND_LOG = (_A.KEEP_SENDERS_LOG, *_ADD)

_ROWS: tuple[
    tuple[Sequence[State], Sequence[Event], State | None, tuple[Action, ...]],
    ...,
] = (
    # Start and takeover.
    (_UNCOUNTED, (Event.START,), State.FRESH, (_A.HOLD,)),
    (_UNCOUNTED, (Event.TAKE_OVER,), State.COVERED, _TAKE),
    (_UNCOUNTED, (Event.TAKE_OVER_BLIND,), State.COVERED_BLIND, _TAKE),
    ((State.SENT,), (Event.RETAKE,), State.RETAKEN, _TAKE),
    ((State.SENT,), (Event.RETAKE_BLIND,), State.RETAKEN_BLIND, _TAKE),
    # Transfers to other members.
    ((State.OWNED, State.FRESH, *COVERING), (Event.SEND,), State.SENT, (_A.RELEASE,)),
    ((State.SENT,), (Event.ACKNOWLEDGE,), State.MOVED, ()),
    ((State.SENT, State.MOVED), (Event.FORGET,), State.ABSENT, ()),
    # Answers of the members that may have the counters of a covered shard.
    (_SIGHTED, (Event.OWNER_HAS_NOTHING,), State.OWNED, (_A.SETTLE_COVER,)),
    (BLIND, (Event.OWNER_HAS_NOTHING,), State.FRESH, (_A.SETTLE_COVER,)),
    (COVERING, (Event.OWNER_MOVED,), _SAME, (_A.COVER_NEW_OWNER,)),
    (
        _SIGHTED,
        (Event.REPLICA_OF_OWN, Event.REPLICA_OF_OTHER),
        State.OWNED,
        (_A.SETTLE_COVER,),
    ),
    (BLIND, (Event.REPLICA_OF_OWN,), State.OWNED, (_A.RESTORE_BELOW_LOG, _A.SETTLE_COVER)),
    (
        (State.COVERED_BLIND,),
        (Event.REPLICA_OF_OTHER,),
        State.COVERED,
        (_A.RESTORE_BELOW_LOG, _A.COVER_NEW_OWNER),
    ),
    (
        (State.RETAKEN_BLIND,),
        (Event.REPLICA_OF_OTHER,),
        State.RETAKEN,
        (_A.RESTORE_BELOW_LOG, _A.COVER_NEW_OWNER),
    ),
    ((State.COVERED_BLIND,), (Event.REPLICA_FOUND,), State.COVERED, (_A.RESTORE_BELOW_LOG,)),
    ((State.RETAKEN_BLIND,), (Event.REPLICA_FOUND,), State.RETAKEN, (_A.RESTORE_BELOW_LOG,)),
    # Arrivals while the shard is not counted here.
    (_UNCOUNTED, (Event.TRANSFER,), State.OWNED, (_A.RESTORE, _A.HOLD)),
    (_UNCOUNTED, (*_RETURNS, *_COVERS), State.COVERED, _TAKE_LOG),
    (_UNCOUNTED, (*_BLIND_RETURNS, *_BLIND_COVERS), State.COVERED_BLIND, _TAKE_LOG),
    # Arrivals while the shard is this node's own.
    ((State.OWNED, State.FRESH), (Event.TRANSFER,), State.OWNED, (_A.JOIN,)),
    (
        (State.OWNED, State.FRESH),
        (Event.TRANSFER_OF_BASE,),
        State.OWNED,
        (_A.RESTORE_BELOW_LOG, _A.COUNT_HEALED),
    ),
    ((State.FRESH,), (Event.TRANSFER_OF_NOTHING,), State.FRESH, (_A.JOIN,)),
    ((State.OWNED, State.FRESH), (Event.BRANCH,), State.OWNED, _ADD),
    ((State.OWNED,), _LOGGED, State.OWNED, _ADD),
    (
        (State.FRESH,),
        (Event.RETURN_TO_RESTARTED, Event.RETURN_BLIND_TO_RESTARTED, Event.REPLICA_FOUND),
        State.OWNED,
        (_A.JOIN,),
    ),
    (
        (State.FRESH,),
        (
            *(Event.RETURN, Event.RETURN_BY_OWNER, Event.RETURN_OF_SAME_OWNER),
            *(Event.RETURN_BLIND, Event.RETURN_BLIND_BY_BASE, *_COVERS, *_BLIND_COVERS),
        ),
        State.OWNED,
        _ADD,
    ),
    (
        (State.OWNED, State.FRESH),
        (Event.UNRELATED, Event.UNRELATED_BY_THIRD),
        State.OWNED,
        (_A.JOIN, _A.COUNT_HEALED),
    ),
    # Arrivals while the shard is counted in place of its owner.
    (COVERING, (Event.TRANSFER,), State.OWNED, _BASE_OWNED),
    (COVERING, (Event.BRANCH,), _SAME, _ADD_AND_LOG),
    (COVERING, (Event.UNRELATED,), State.OWNED, (_A.JOIN, _A.END_COVER, _A.COUNT_HEALED)),
    (
        COVERING,
        (Event.UNRELATED_BY_THIRD,),
        _SAME,
        (_A.JOIN, _A.KEEP_SENDERS_UNITS, _A.COUNT_HEALED),
    ),
    (
        (State.RETAKEN, State.RETAKEN_BLIND),
        (*_RETURNS, *_BLIND_RETURNS),
        State.OWNED,
        (*_ADD_AND_LOG, _A.SETTLE_COVER),
    ),
    (
        (State.COVERED,),
        (Event.RETURN_BY_OWNER, Event.RETURN_BLIND_BY_BASE),
        State.OWNED,
        _BASE_OWNED,
    ),
    (
        (State.COVERED,),
        (
            *(Event.RETURN, Event.RETURN_TO_RESTARTED, Event.RETURN_OF_SAME_OWNER),
            *_TO_BLIND,
        ),
        _SAME,
        _ADD_AND_LOG,
    ),
    (
        (State.COVERED_BLIND,),
        (Event.RETURN_BY_OWNER, Event.RETURN_OF_SAME_OWNER, Event.RETURN_BLIND_BY_BASE),
        State.OWNED,
        _BASE_OWNED,
    ),
    (
        (State.COVERED_BLIND,),
        (Event.RETURN, Event.RETURN_TO_RESTARTED),
        State.COVERED,
        (_A.RESTORE_BELOW_LOG, _A.KEEP_SENDERS_LOG, _A.COUNT_HEALED),
    ),
    ((State.COVERED_BLIND,), _TO_BLIND, _SAME, _ADD_AND_LOG),
    (_SIGHTED, (Event.COVER_BY_OWNER,), State.COVERED, _BASE_COVERED),
    (_SIGHTED, (Event.COVER_BLIND_BY_OWNER,), State.COVERED_BLIND, _BASE_COVERED),
    (
        _SIGHTED,
        (Event.COVER, Event.COVER_OF_SAME_OWNER, Event.COVER_BLIND),
        _SAME,
        _ADD_AND_LOG,
    ),
    (
        BLIND,
        (Event.COVER_BY_OWNER, Event.COVER_OF_SAME_OWNER),
        State.COVERED,
        _BASE_COVERED,
    ),
    (BLIND, (Event.COVER,), _SAME, _ADD_AND_LOG),
    (BLIND, _BLIND_COVERS, State.COVERED_BLIND, _BASE_COVERED),
)


def _expanded() -> Iterator[tuple[tuple[State, Event], Transition]]:
    for states, events, after, actions in _ROWS:
        for state in states:
            for event in events:
                yield (state, event), Transition(state if after is None else after, actions)


TABLE: dict[tuple[State, Event], Transition] = dict(_expanded())
"""Every transition; all other pairs of a state and an event are rejected."""
if len(TABLE) != len([*_expanded()]):
    raise AssertionError("two rows of the table have the same state and event")


def describe() -> str:
    """Format the states, events, actions and transitions as a page of the documentation."""
    lines = [
        "# Shard ownership",
        "",
        "This page is for developers. A shard is one of 16384 equal parts of all keys. The hash",
        "ring assigns each shard to a node, its *owner*. When the owner cannot be reached, another",
        "node decides for it. That node writes a *log* of the units that it admits for the owner.",
        "",
        "Each node has one state for each shard, and events change this state. An event that is",
        "not in the table of a state is rejected and changes nothing.",
        "",
        "Two members that have counters of one shard usually have some units in common: those with",
        "which the second member started. Each shard has *origins* for this: the starts without",
        "counters from which its counters come. When a node receives counters without a common",
        "origin, the event is `UNRELATED`, and all units of both sides count. An example: a node",
        "takes a shard back from a receiver that never got the transfer and started without",
        "counters. Another example: an owner restarts without counters and sends the new ones to",
        "its standby, which has a replica of the earlier ones.",
        "",
        "The origins are enough to show whether a member has received counters, at any distance:",
        "they move with counters and replicas. Acknowledgements show it only to their",
        "receiver, and only if they arrive.",
        "",
        "A *mark* is a later instant in the history of counters: the start of a log, or a",
        "transfer. Marks move with the counters as origins do. They show which member started from",
        "the counters of the other, and which transfers its counters contain. An example is",
        "`BRANCH`: the sender started from this node's counters, so only its log is new here.",
        "",
        "The page is generated from `ownership_table.py` in `node/shards/ownership/`. The module",
        "`ownership.py` in this folder applies the table.",
    ]
    for title, meanings in (
        ("States", STATE_MEANINGS),
        ("Events", EVENT_MEANINGS),
        ("Actions", ACTION_MEANINGS),
    ):
        lines += ["", f"## {title}", "", "| name | meaning |", "|---|---|"]
        lines += [f"| `{name.name}` | {meaning} |" for name, meaning in meanings.items()]
    lines += ["", "## Transitions"]
    for state in State:
        lines += ["", f"### From {state.name}", "", "| event | next state | actions |"]
        lines += ["|---|---|---|"]
        for event in Event:
            found = TABLE.get((state, event))
            if found is not None:
                actions = ", ".join(f"`{action.name}`" for action in found.actions) or "none"
                lines.append(f"| `{event.name}` | `{found.state.name}` | {actions} |")
    return "\n".join(lines) + "\n"
