"""Shard ownership table: it is complete and closed, and the code applies it as written."""

from itertools import product

import pytest

from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.changed_keys import ChangedKeys
from node.shards.fallback_log import FallbackLog
from node.shards.ownership.arrivals import arrival_of
from node.shards.ownership.cover import Arrival, Cover
from node.shards.ownership.ownership_table import (
    ACTION_MEANINGS,
    BLIND,
    COUNTED,
    COVERING,
    EVENT_MEANINGS,
    STATE_MEANINGS,
    TABLE,
    Action,
    Event,
    State,
    describe,
)
from node.shards.ownership.shard_states import ShardStates
from node.shards.replicas import Replicas
from ringfence.limiter import Engine, EngineRule, Limit, Snapshot
from ringfence.wire import Holding, ShardGroup

ME, OWNER, SENDER, THIRD = map(NodeId, ("me", "owner", "sender", "third"))
NOW = 1_800_000_000 * 1_000_000_000
DAY = 86_400_000_000_000
RULE = 7
KEY = RULE.to_bytes(8, "big") + b"\x01k"
SHARD = shard_of(KEY)
PAIRS = [*product(State, Event)]


class Fixture:
    """Shards of one node, one of them in a given state."""

    def __init__(self, state: State) -> None:
        self.engine = Engine(max_keys=100)
        self.engine.set_rules({RULE: EngineRule(Limit.of_ns(1000, DAY))})
        self.states = ShardStates(
            *(ME, self.engine, Counters(), ChangedKeys(), Replicas(100), DecidedChecks()),
            on_arrived=lambda keys: None,
        )
        self.states._states[SHARD] = state
        self.states.held[SHARD] = state >= COUNTED
        if state in COVERING:
            self.states.covers[SHARD] = Cover(OWNER, NOW)
            self.states.covers[SHARD].log.add(KEY, 2, DAY, NOW)

    def apply(self, event: Event) -> bool:
        return self.states.apply(
            SHARD,
            event,
            Arrival(NOW, [(NOW, counts(5))], [[0, 3]], group(THIRD), Cover(OWNER, NOW), OWNER),
        )


def counts(units: int) -> Snapshot:
    engine = Engine(max_keys=10)
    engine.set_rules({RULE: EngineRule(Limit.of_ns(1000, DAY))})
    engine.charge([KEY], [units], [0], NOW)
    return engine.snapshot([KEY], NOW)


def group(
    taken_from: str = "", replica_at: str = "", *, is_from_before: bool = False
) -> ShardGroup:
    return ShardGroup([1], [1], Holding.HELD, 1, "", replica_at, taken_from, 9, is_from_before)


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_each_pair_is_a_transition_of_the_table_or_rejected(state: State, event: Event) -> None:
    fixture = Fixture(state)
    before = fixture.engine.used(KEY, NOW), dict(fixture.states.covers)

    is_applied = fixture.apply(event)

    transition = TABLE.get((state, event))
    assert is_applied == (transition is not None)
    after = state if transition is None else transition.state
    assert fixture.states[SHARD] is after
    assert bool(fixture.states.held[SHARD]) == (after >= COUNTED)
    if transition is None:
        assert (fixture.engine.used(KEY, NOW), dict(fixture.states.covers)) == before


@pytest.mark.parametrize(("state", "event"), TABLE)
def test_a_shard_has_a_fallback_log_exactly_in_covering_states(state: State, event: Event) -> None:
    """A shard that is being sent has no log: its log goes with the transfer before the
    transition."""
    if event is Event.SEND:
        return
    fixture = Fixture(state)

    fixture.apply(event)

    assert (SHARD in fixture.states.covers) == (fixture.states[SHARD] in COVERING)


@pytest.mark.parametrize(("state", "event"), TABLE)
def test_many_shards_change_state_as_one_does(state: State, event: Event) -> None:
    fixture = Fixture(state)

    assert fixture.states.apply_to_all([SHARD], event) == [SHARD]

    assert fixture.states[SHARD] is TABLE[state, event].state
    assert bool(fixture.states.held[SHARD]) == (fixture.states[SHARD] >= COUNTED)


@pytest.mark.parametrize(("state", "event"), TABLE)
def test_actions_hold_and_release_a_shard(state: State, event: Event) -> None:
    transition = TABLE[state, event]

    assert (Action.HOLD in transition.actions) == (state < COUNTED <= transition.state)
    assert (Action.RELEASE in transition.actions) == (transition.state < COUNTED <= state)


@pytest.mark.parametrize(("state", "event"), TABLE)
def test_no_arrival_is_counted_by_two_actions(state: State, event: Event) -> None:
    counting = {Action.RESTORE, Action.JOIN, Action.CHARGE_SENDERS_LOG, Action.RESTORE_BELOW_LOG}

    assert len(counting & {*TABLE[state, event].actions}) <= 1


@pytest.mark.parametrize("state", State)
def test_every_state_accepts_every_arrival_of_counters(state: State) -> None:
    """Rejected counters would be lost, since their sender no longer counts them."""
    for args in every_arrival():
        assert (state, arrival_of(*args)) in TABLE
        assert state < COUNTED or (state, arrival_of(*args, is_branch=True)) in TABLE
        assert state < COUNTED or (state, arrival_of(*args, is_unrelated=True)) in TABLE


def every_arrival() -> list[tuple[ShardGroup, NodeId, NodeId, NodeId | None, str]]:
    return [
        (group(taken_from, replica_at, is_from_before=is_from_before), sender, ME, owner, base_of)
        for taken_from in ("", ME, OWNER, THIRD)
        for replica_at in ("", THIRD)
        for is_from_before in (False, True)
        for sender in (OWNER, SENDER)
        for owner in (None, ME, OWNER, THIRD)
        for base_of in ("", SENDER)
    ]


def test_every_arrival_event_is_reached_by_some_transfer() -> None:
    reached = {
        arrival_of(*args, is_unrelated=is_unrelated, is_branch=is_branch, has_log=has_log)
        for args in every_arrival()
        for is_unrelated, is_branch, has_log in product((False, True), repeat=3)
    }

    start = [*Event].index(Event.TRANSFER)
    assert reached | {Event.TRANSFER_OF_NOTHING} == {*[*Event][start:]}  # See `event_of`.


@pytest.mark.parametrize(
    ("state", "event", "used"),
    [
        (State.ABSENT, Event.TRANSFER, 5),
        (State.ABSENT, Event.START, 0),
        (State.SENT, Event.RETAKE, 5),
        (State.OWNED, Event.TRANSFER, 5 + 1),
        (State.OWNED, Event.COVER, 1 + 3),
        (State.FRESH, Event.RETURN, 1 + 3),
        (State.FRESH, Event.RETURN_TO_RESTARTED, 5 + 1),
        (State.FRESH, Event.REPLICA_FOUND, 5 + 1),
        (State.COVERED, Event.TRANSFER, 5 + 2),
        (State.COVERED, Event.COVER, 1 + 3),
        (State.COVERED_BLIND, Event.REPLICA_FOUND, 5 + 2),
        (State.OWNED, Event.UNRELATED, 5 + 1),
        (State.RETAKEN, Event.UNRELATED, 5 + 1),
        (State.COVERED, Event.UNRELATED_BY_THIRD, 5 + 1),
        (State.RETAKEN, Event.RETURN, 1 + 3),
    ],
)
def test_units_are_counted_according_to_the_actions(state: State, event: Event, used: int) -> None:
    """The node counts 1 unit and has 2 in its fallback log; it receives 5 with a log of 3."""
    fixture = Fixture(state)
    if state >= COUNTED:
        fixture.engine.charge([KEY], [1], [0], NOW)

    fixture.apply(event)

    assert fixture.engine.used(KEY, NOW) == used


def test_the_senders_log_is_kept_for_the_covered_owner() -> None:
    fixture = Fixture(State.COVERED)

    fixture.apply(Event.COVER)

    assert sum(fixture.states.covers[SHARD].log.row(KEY, NOW)[1::2]) == 2 + 3
    assert FallbackLog().row(KEY, NOW) == []


def test_every_state_event_and_action_is_used_and_explained() -> None:
    assert {*STATE_MEANINGS} == {*State} == {state for state, _ in TABLE}
    assert {*EVENT_MEANINGS} == {*Event} == {event for _, event in TABLE}
    assert {*ACTION_MEANINGS} == {*Action}
    assert {action for each in TABLE.values() for action in each.actions} == {*Action}
    assert {*BLIND} < {*COVERING}


def test_the_page_of_the_documentation_has_every_transition() -> None:
    page = describe()

    for (_, event), transition in TABLE.items():
        assert f"| `{event.name}` | `{transition.state.name}` |" in page
    assert page.count("| `START` |") == 1 + 3
