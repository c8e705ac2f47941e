"""Slots of concurrency limits in transfers: a merge counts each slot once, and holders keep it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import LiftedUnits, add_logs, log_rows, without_checks
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.shard_sender import ShardSender
from node.shards.transfers.unacknowledged_transfers import NOTHING
from ringfence.limiter import (
    Algorithm,
    Engine,
    EngineRule,
    Limit,
    Snapshot,
    compiled_tables,
    why_not_compiled,
)
from ringfence.peering.engine_choice import decide_batch, first_slot
from ringfence.wire import (
    Batch,
    CheckId,
    DecidedCheck,
    Op,
    Pull,
    Pulled,
    Results,
    Source,
    decode,
    encode,
)
from tests.programs import require_compiled

S = 10**9
PERIOD = 60 * S
RULE = 7
KEY = RULE.to_bytes(8, "big") + b"\x01k"
SHARD = shard_of(KEY)
NOW = 1_800_000_000 * S
LIMIT = Limit.of_ns(4, PERIOD, algorithm=Algorithm.CONCURRENCY)


class Host:
    """Shard ownership and engine of a node, with one key of a concurrency limit."""

    def __init__(self, name: str, *, is_compiled: bool = False) -> None:
        self.name = NodeId(name)
        tables = compiled_tables(bytes(16), keeps_keys=True) if is_compiled else None
        self.engine = Engine(max_keys=100, first_slot_id=first_slot(name, NOW), tables=tables)
        self.engine.set_rules({RULE: EngineRule(LIMIT)})
        self.checks = DecidedChecks(lambda session, seq: ((), 0))
        self.ownership = ShardOwnership(
            self.name,
            self.engine,
            Counters(),
            lambda key: PERIOD,
            lambda keys: None,
            lambda shards: None,
            max_keys=100,
            decided_checks=self.checks,
        )
        self.sender = ShardSender(self.ownership, self.engine, Counters(), first_transfer=1)

    def grant(self, at: int = NOW, check_id: CheckId | None = None) -> int:
        """Grant a slot; return its number, 0 if the check is denied."""
        batch = Batch(Op.CHECK, [KEY], [1])
        outcomes = decide_batch(self.engine, batch, at)
        self.ownership.record_decided(batch, outcomes, at)
        if check_id is not None:
            row = Results(outcomes, [Source.OWNER]).row(0)
            self.checks.remember(check_id, KEY, 1, row, at)
        return outcomes.slot_ids[0]

    def release(self, slot: int, at: int = NOW) -> None:
        batch = Batch(Op.REFUND, [KEY], [1], slot_ids=[slot])
        self.ownership.record_decided(batch, decide_batch(self.engine, batch, at), at)

    def renew(self, slot: int, at: int = NOW) -> None:
        batch = Batch(Op.RENEW, [KEY], [0], slot_ids=[slot])
        self.ownership.record_decided(batch, decide_batch(self.engine, batch, at), at)

    def replicate_to(self, standby: "Host", at: int = NOW) -> None:
        standby.ownership.keep_replica(self.name, self.ownership.snapshot([KEY], at), at)

    def take_over_from(self, owner: "Host", at: int = NOW) -> None:
        replica = list(self.ownership.replicas.of(SHARD))
        self.ownership.take_over(SHARD, owner.name, replica, at)

    def send_to(self, receiver: "Host", at: int = NOW) -> Pulled:
        """Release the shard and return the decoded transfer."""
        self.sender.index.start()
        for keys in self.engine.key_slices(100):
            self.sender.index.add(keys)
        pulled = self.sender.answer(receiver.name, Pull(1, [SHARD], 0), at, lambda shard: False)
        reply = decode(encode(pulled))
        assert isinstance(reply, Pulled)
        return reply

    def accept(self, sender: "Host", reply: Pulled, at: int = NOW) -> None:
        (about,) = reply.groups
        counts = reply.counts.unpack()
        rows = reply.fallback_counts or [[] for _ in counts.keys]
        self.ownership.accept(SHARD, about, sender.name, counts, rows, at, reply.decided)

    def transfer_to(self, receiver: "Host", at: int = NOW) -> None:
        receiver.accept(self, self.send_to(receiver, at), at)

    def left_ns(self, at: int = NOW) -> dict[int, int]:
        """Return the time to expiry of the slots by number."""
        counts = self.engine.snapshot([KEY], at)
        state = counts.states[0] if counts.keys else []
        return dict(zip(state[::3], state[1::3], strict=True))

    @property
    def slots(self) -> set[int]:
        return {*self.left_ns()}


def owner_and_standby(*, is_compiled: bool = False) -> tuple[Host, Host]:
    owner, standby = Host("c", is_compiled=is_compiled), Host("a", is_compiled=is_compiled)
    owner.ownership.start([SHARD])
    return owner, standby


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_owner_asked", [False, True])
def test_slots_of_the_standby_are_merged_by_number(is_owner_asked: bool, is_compiled: bool) -> None:
    if is_compiled:
        require_compiled()
    """The owner returns with a slot that its standby has not seen, or its standby pulls it."""
    owner, standby = owner_and_standby(is_compiled=is_compiled)
    kept, released = owner.grant(), owner.grant()
    owner.replicate_to(standby)
    unseen = owner.grant()
    standby.take_over_from(owner)
    standby.release(released)
    new, short = standby.grant(), standby.grant()
    standby.release(short)

    sender, receiver = (owner, standby) if is_owner_asked else (standby, owner)
    sender.transfer_to(receiver)

    assert receiver.slots == {kept, unseen, new}
    for slot in (kept, unseen, new):
        receiver.release(slot)
    assert receiver.slots == set()


def test_three_holders_never_share_two_slots_after_a_stall() -> None:
    """Slots move from the standby back to the owner, as in the simulation that found this bug."""
    owner, standby = owner_and_standby()
    before = [owner.grant(), owner.grant()]
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    for slot in before:
        standby.release(slot)
    after = [standby.grant() for _ in range(4)]

    standby.transfer_to(owner)
    for slot in before:
        owner.release(slot)  # Repeated by a client that had no answer.

    assert owner.slots == {*after}
    assert owner.grant() == 0


def test_a_key_whose_slots_were_all_released_is_unused_at_the_owner() -> None:
    owner, standby = owner_and_standby()
    slots = [owner.grant(), owner.grant()]
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    for slot in slots:
        standby.release(slot)

    standby.transfer_to(owner)

    assert owner.slots == set()


def test_released_slots_are_sent_without_a_counter() -> None:
    owner, standby = owner_and_standby()
    slot = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    standby.release(slot)
    standby.ownership.changed.clear()  # Replication does this.
    standby.engine.forget([KEY])  # An eviction does this.

    standby.transfer_to(owner)

    assert owner.slots == set()
    assert not NOTHING.counts.limits  # All transfers without counters share this part.


def test_a_third_member_passes_released_slots_on_to_the_owner() -> None:
    owner, standby = owner_and_standby()
    third = Host("b")
    released, kept = owner.grant(), owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    standby.release(released)
    new = standby.grant()

    standby.transfer_to(third)
    third.release(new)
    last = third.grant()
    third.transfer_to(owner)

    assert owner.slots == {kept, last}


@pytest.mark.parametrize("returns_at_s", [55, 70])
def test_a_slot_that_the_standby_renewed_expires_later_at_the_owner(returns_at_s: int) -> None:
    """The owner returns before or after its own slot has expired."""
    owner, standby = owner_and_standby()
    slot = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    standby.renew(slot, NOW + 50 * S)
    returns_at = NOW + returns_at_s * S

    standby.transfer_to(owner, returns_at)

    assert owner.left_ns(returns_at) == {slot: (50 + 60 - returns_at_s) * S}


def test_the_later_renewal_of_two_nodes_is_kept() -> None:
    owner, standby = owner_and_standby()
    slot = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    standby.renew(slot, NOW + 10 * S)
    owner.renew(slot, NOW + 30 * S)

    standby.transfer_to(owner, NOW + 40 * S)

    assert owner.left_ns(NOW + 40 * S) == {slot: 50 * S}


def test_two_owners_of_one_shard_have_the_slots_of_both() -> None:
    """A node that started without counters receives those of another owner."""
    owner, other = owner_and_standby()
    other.ownership.start([SHARD])
    theirs, ours = owner.grant(), other.grant()

    owner.transfer_to(other)

    assert other.slots == {theirs, ours}
    other.release(theirs)
    assert other.slots == {ours}


def test_a_replica_of_the_owner_keeps_what_the_standby_granted() -> None:
    owner, standby = owner_and_standby()
    released = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    new = standby.grant()
    standby.release(released)
    late = owner.grant()

    owner.replicate_to(standby)

    assert standby.slots == {new, late}


def test_a_check_that_owner_and_standby_granted_keeps_the_first_slot() -> None:
    for is_owner_first in (False, True):
        owner, standby = owner_and_standby()
        standby.take_over_from(owner)
        nodes = (owner, standby) if is_owner_first else (standby, owner)
        first, _ = (node.grant(NOW + at, (1, 5, 0)) for at, node in enumerate(nodes))

        standby.transfer_to(owner, NOW + S)

        assert owner.slots == {first}


def test_a_release_after_a_retaken_transfer_is_reported_to_the_owner() -> None:
    """The transfer of the standby arrives; its acknowledgement comes after the takeover."""
    owner, standby = owner_and_standby()
    standby.take_over_from(owner)
    released, kept = standby.grant(), standby.grant()
    reply = standby.send_to(owner)
    standby.take_over_from(owner)
    standby.release(released)
    owner.accept(standby, reply)
    standby.ownership.acknowledge(owner.name, [SHARD], reply.groups[0].transfer_id, NOW)

    standby.transfer_to(owner)

    assert owner.slots == {kept}


def test_slots_of_crossed_transfers_are_counted_once() -> None:
    owner, standby = owner_and_standby()
    first = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    new = standby.grant()

    to_owner = standby.send_to(owner)
    to_standby = owner.send_to(standby)
    standby.accept(owner, to_standby)
    owner.accept(standby, to_owner)
    standby.ownership.acknowledge(owner.name, [SHARD], to_owner.groups[0].transfer_id, NOW)
    owner.transfer_to(standby)

    assert standby.slots == {first, new}


def test_slots_of_a_lost_transfer_are_merged_into_the_crossing_one() -> None:
    owner, standby = owner_and_standby()
    first = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    new = standby.grant(NOW)
    standby.send_to(owner, NOW + 10 * S)  # The transfer is lost.

    owner.transfer_to(standby, NOW + 20 * S)

    assert standby.left_ns(NOW + 20 * S) == {first: 40 * S, new: 40 * S}


def test_a_slot_of_an_acknowledged_transfer_is_not_reported_again() -> None:
    """The standby counts the shard again before the acknowledgement of its transfer arrives."""
    owner, standby = owner_and_standby()
    standby.take_over_from(owner)
    slot = standby.grant()
    reply = standby.send_to(owner)
    standby.take_over_from(owner)
    owner.accept(standby, reply)
    owner.release(slot)
    standby.ownership.acknowledge(owner.name, [SHARD], reply.groups[0].transfer_id, NOW)

    standby.transfer_to(owner)

    assert owner.slots == set()


def test_units_of_an_older_release_are_counted_as_slots_that_expire() -> None:
    owner, standby = owner_and_standby()
    standby.take_over_from(owner)
    standby.grant()
    reply = standby.send_to(owner, NOW + 10 * S)
    reply.fallback_counts[0] = [10 * S, 1]

    owner.accept(standby, reply, NOW + 10 * S)

    assert [*owner.left_ns(NOW + 10 * S).values()] == [50 * S]


def test_an_older_release_reads_the_age_and_units_of_each_slot() -> None:
    """The older release charges pairs of age and units, and skips pairs without units."""
    owner, standby = owner_and_standby()
    old = owner.grant()
    owner.replicate_to(standby)
    standby.take_over_from(owner)
    standby.release(old)
    standby.grant(NOW)
    standby.grant(NOW + 5 * S)

    [row] = standby.send_to(owner, NOW + 10 * S).fallback_counts

    pairs = list(zip(row[::2], row[1::2], strict=True))
    assert [pair for pair in pairs if pair[1]] == [(10 * S, 1), (5 * S, 1)]
    owner.engine.charge([KEY] * len(pairs), row[1::2], row[::2], NOW + 10 * S)
    assert owner.engine.used(KEY, NOW + 10 * S) == 3


def test_a_slot_number_of_another_algorithm_changes_no_counter() -> None:
    log = FallbackLog()
    log.add(KEY, 3, PERIOD, NOW)
    log.release(KEY, 99, 1)
    counts = Snapshot([KEY], [[99, 3, 3]], [Limit.of_ns(4, PERIOD)], [0], [])

    assert log_rows(log, counts, NOW) == [[0, 3]]


def test_a_slot_that_lasts_longer_than_a_period_has_age_0_in_a_row() -> None:
    """The period of the limit was longer before a change of the rules."""
    log = FallbackLog()
    log.grant(KEY, 8, 1, PERIOD, NOW)
    counts = Snapshot([KEY], [[8, PERIOD + 5, 1]], [LIMIT], [0], [])

    assert log_rows(log, counts, NOW) == [[0, 1, 8, 0]]


def test_checks_of_both_members_leave_the_other_members_row() -> None:
    log = FallbackLog()
    log.grant(KEY, 8, 1, PERIOD, NOW)
    log.grant(KEY, 9, 1, PERIOD, NOW)
    counts = Snapshot([KEY], [[8, PERIOD, 1, 9, PERIOD, 1]], [LIMIT], [0], [])
    check = DecidedCheck((1, 5, 0), KEY, 1, 0, (0, 4, 3, 0, 0, 0, 9, 1))

    rows, _ = without_checks([KEY], log_rows(log, counts, NOW), [check], LiftedUnits([], {}))

    assert rows == [[0, 1, 8, 0]]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=12), st.lists(st.integers(0, 9), max_size=12))
def test_any_state_and_row_of_a_peer_is_read_without_an_error(
    state: list[int], row: list[int]
) -> None:
    counts = Snapshot([KEY], [state], [LIMIT], [0], [])
    owner, _ = owner_and_standby()

    add_logs(FallbackLog(), counts, [row[: len(row) // 2 * 2]], NOW)
    owner.ownership.merge.charge_arrived(counts, [row[: len(row) // 2 * 2]], NOW)

    assert owner.engine.used(KEY, NOW) >= 0


def test_nodes_that_start_at_the_same_instant_have_other_slot_numbers() -> None:
    first = {first_slot(f"n{number}", NOW) for number in range(100)}

    assert len(first) == 100
    assert max(first) < 2**63 - 2**60
    assert first_slot("n1", NOW) != first_slot("n1", NOW + S)


@given(
    before=st.integers(0, 4),
    unseen=st.integers(0, 4),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["owner", "standby"]),
            st.sampled_from(["grant", "release", "renew"]),
            st.integers(0, 9),
        ),
        max_size=20,
    ),
    is_owner_asked=st.booleans(),
    is_compiled=st.sampled_from([why_not_compiled() is None, False]),
)
def test_a_merge_has_exactly_the_slots_that_are_held(
    before: int,
    unseen: int,
    steps: list[tuple[str, str, int]],
    is_owner_asked: bool,
    is_compiled: bool,
) -> None:
    """The test leaves out two cases in which a released slot remains until it expires.

    In the first case, the slot is renewed at the other node. In the second case, the sender has no
    slot of the key, and the receiver has a replica of that slot.
    """
    owner, standby = owner_and_standby(is_compiled=is_compiled)
    slots = [owner.grant() for _ in range(before)]
    owner.replicate_to(standby)
    known = {"owner": [*slots], "standby": [*slots]}
    known["owner"] += [slot for _ in range(unseen) if (slot := owner.grant())]
    held = {*known["owner"]}
    standby.take_over_from(owner)
    released: set[int] = set()
    renewed: set[int] = set()
    for name, step, number in steps:
        node = owner if name == "owner" else standby
        slot = known[name][number % len(known[name])] if known[name] else 0
        if step == "grant" and (granted := node.grant()):
            known[name].append(granted)
            held.add(granted)
        elif not slot:
            continue
        elif step == "release" and (name == "standby" or slot not in renewed):
            node.release(slot)
            held.discard(slot)
            released.add(slot)
        elif step == "renew" and name == "standby" and slot not in released:
            node.renew(slot)
            renewed.add(slot)

    if is_owner_asked and not owner.slots:
        return
    sender, receiver = (owner, standby) if is_owner_asked else (standby, owner)
    sender.transfer_to(receiver)

    assert receiver.slots == held
