"""Charges of units from other members: limits, ages, slots, and crossed transfers."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hashring import SHARDS, NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.changed_keys import ChangedKeys
from node.shards.counter_merge import CounterMerge
from node.shards.fallback_log import FallbackLog
from node.shards.transfers.crossed_transfers import CrossedTransfers
from node.shards.transfers.unacknowledged_transfers import (
    OutgoingTransfer,
    OutgoingTransfers,
    Part,
)
from ringfence.limiter import (
    Algorithm,
    Code,
    Engine,
    EngineRule,
    Limit,
    PackedSnapshot,
    Snapshot,
)
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import Batch, DecidedCheck, Holding, Op, OutcomeRow, ShardGroup, Source

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
NOW = 30_000_000 * MINUTE
RULE = 7
KEY, OTHER, UNKNOWN = (number.to_bytes(8, "big") + b"k" for number in (7, 8, 9))
SHARD = shard_of(KEY)
WINDOW = Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW)
LOG = Limit.of_ns(100, MINUTE, Algorithm.SLIDING_WINDOW_LOG)
SLOTS = Limit.of_ns(100, MINUTE, Algorithm.CONCURRENCY)
CARRIED = Limit.of_ns(50, 2 * MINUTE, Algorithm.FIXED_WINDOW)
B, C = NodeId("b"), NodeId("c")
ALLOWED: OutcomeRow = (Code.ALLOWED, 10, 9, 0, 0, 0, 0, Source.OWNER)


class Merging:
    """Counters of one node, of which two rules have a limit."""

    def __init__(self, limit: Limit = WINDOW) -> None:
        self.engine = Engine(max_keys=100)
        self.engine.set_rules({7: EngineRule(limit), 8: EngineRule(limit)})
        self.counters = Counters()
        self.changed = ChangedKeys()
        self.arrived: list[bytes] = []
        self.merge = CounterMerge(self.engine, self.counters, self.changed, self.arrived.extend)

    def spend(self, key: bytes, units: int, now: int = NOW, limit: Limit | None = None) -> int:
        """Check a key; return the number of its slot, if it has any."""
        batch = Batch(Op.CHECK, [key], [units])
        if limit is not None:
            batch.limits, batch.which = [limit], [1]
        return decide_batch(self.engine, batch, now).slot_ids[0]

    def used(self, *keys: bytes, now: int = NOW) -> list[int]:
        return [self.engine.used(key, now) for key in keys or (KEY,)]

    def limit_of(self, key: bytes) -> Limit | None:
        limits = self.engine.snapshot([key], NOW).limits
        return limits[0] if limits else None

    def slots(self, now: int = NOW) -> dict[int, tuple[int, int]]:
        """Return the time left and the units of each slot of the key."""
        [state] = self.engine.snapshot([KEY], now).states or [[]]
        triples = zip(state[::3], state[1::3], state[2::3], strict=True)
        return {number: (left, units) for number, left, units in triples}

    @property
    def merged(self) -> int:
        return self.counters.as_dict()["hits_merged"]


def snapshot(*keys: bytes, limit: Limit, state: Sequence[int] = ()) -> Snapshot:
    return Snapshot([*keys], [[*state] for _ in keys], [limit], [0] * len(keys), [])


# -- charges ---------------------------------------------------------------------------------------


def test_units_are_charged_in_the_window_of_their_age() -> None:
    w = Merging()

    w.merge.charge({KEY: [50 * SECOND, 3, 0, 2], OTHER: [0, 4]}, NOW + 40 * SECOND)

    assert w.used(KEY, OTHER, now=NOW + 40 * SECOND) == [2, 4]
    assert w.merged == 9
    assert [*w.changed.keys] == [KEY, OTHER]


def test_charges_are_counted_under_the_name_of_their_cause() -> None:
    w = Merging()

    w.merge.charge({KEY: [0, 3]}, NOW, "hits_recalled")
    w.merge.charge({}, NOW)
    w.merge.charge({KEY: []}, NOW)

    assert (w.merged, w.counters.as_dict()["hits_recalled"]) == (0, 3)


@pytest.mark.parametrize(
    ("key", "counter", "is_named", "limit", "used"),
    [
        (UNKNOWN, None, True, CARRIED, 3),
        (UNKNOWN, None, False, None, 0),
        (UNKNOWN, WINDOW, True, WINDOW, 5),
        (KEY, None, True, CARRIED, 3),
        (KEY, None, False, WINDOW, 3),
        (KEY, WINDOW, True, WINDOW, 5),
    ],
)
def test_only_a_key_without_a_counter_is_charged_under_the_limit_of_the_sender(
    key: bytes, counter: Limit | None, *, is_named: bool, limit: Limit | None, used: int
) -> None:
    w = Merging()
    if counter is not None:
        w.spend(key, 2, limit=counter)
    counts = snapshot(OTHER, limit=LOG)
    if is_named:
        counts = Snapshot([OTHER, key], [[], [1]], [LOG, CARRIED], [0, 1], [])

    w.merge.charge({key: [0, 3]}, NOW, counts=counts)

    assert (w.limit_of(key), w.used(key)) == (limit, [used])


def test_the_log_is_charged_on_a_replica_of_the_window_before() -> None:
    host, before, log = Merging(), Engine(max_keys=10), FallbackLog()
    batch = Batch(Op.CHECK, [UNKNOWN], [9], limits=[CARRIED], which=[1])
    decide_batch(before, batch, NOW - SECOND)
    replica = before.snapshot([UNKNOWN], NOW - SECOND)
    host.spend(UNKNOWN, 5, limit=CARRIED)
    log.add(UNKNOWN, 5, CARRIED.period_ns, NOW)

    host.merge.restore_below(log, [(NOW + SECOND, replica)], NOW + SECOND)  # too late

    assert host.used(UNKNOWN, now=NOW + SECOND) == [5]


def test_received_counters_replace_those_of_the_node_and_invalid_ones_are_counted() -> None:
    w = Merging()
    w.spend(KEY, 5)
    there = Merging()
    there.spend(KEY, 2)

    w.merge.restore(there.engine.snapshot([KEY], NOW), NOW)
    w.merge.restore(snapshot(OTHER, limit=WINDOW, state=[1, 2, 3, 4, 5, 6, 7]), NOW)

    assert w.used() == [2]
    assert w.counters.as_dict()["states_refused"] == 1


def test_received_keys_are_replicated_and_announced() -> None:
    w = Merging()

    w.merge.announce([KEY, OTHER])

    assert [*w.changed.keys] == w.arrived == [KEY, OTHER]


def test_arrived_units_keep_their_exact_ages_in_a_log_of_hits() -> None:
    w = Merging(LOG)
    counts = snapshot(KEY, OTHER, limit=LOG)

    w.merge.charge_arrived(counts, [[12_345, 1, 0, 2], [77, 1]], NOW)

    there = Merging(LOG)
    for age_ns, units in ((12_345, 1), (0, 2)):
        there.spend(KEY, units, NOW - age_ns)
    assert w.engine.snapshot([KEY], NOW) == there.engine.snapshot([KEY], NOW)
    assert w.used(KEY, OTHER) == [3, 1]


@pytest.mark.parametrize("later", [0, 10 * SECOND, 50 * SECOND])
def test_a_refund_of_a_charged_log_removes_the_units_of_its_ages(later: int) -> None:
    w = Merging()
    log = FallbackLog()
    at = NOW + 30 * SECOND
    log.add(KEY, 3, MINUTE, at)
    w.merge.charge_log(log, [KEY], snapshot(KEY, limit=WINDOW), at, at)
    assert w.used(now=at) == [3]
    w.spend(KEY, 5, at + later)
    w.changed.clear()

    w.merge.refund_log(log, at, at + later)

    # After 50 s, the charge is in the window before.
    assert w.used(now=at + later) == [5]
    assert [*w.changed.keys] == [KEY]


# -- slots -----------------------------------------------------------------------------------------


def slot_log(*numbers: int) -> FallbackLog:
    log = FallbackLog()
    for number in numbers:
        assert log.add_slot(KEY, number)
    return log


def test_logged_slots_replace_those_with_the_same_numbers() -> None:
    w = Merging(SLOTS)
    kept, extended, shortened, released = (w.spend(KEY, units) for units in (1, 2, 3, 4))
    state = [extended, 50 * SECOND, 2, shortened, 10 * SECOND, 3, 99, 20 * SECOND, 5]
    counts = snapshot(KEY, limit=SLOTS, state=state)
    later = NOW + 20 * SECOND
    log = slot_log(extended, shortened, released, 99, 98)

    w.merge.charge_log(log, [KEY], counts, later, later)

    assert w.slots(later) == {
        kept: (40 * SECOND, 1),
        extended: (50 * SECOND, 2),
        shortened: (40 * SECOND, 3),
        99: (20 * SECOND, 5),
    }
    assert w.merged == 5  # The new slot only.
    assert [*w.changed.keys] == [KEY]


@pytest.mark.parametrize(("left", "is_held"), [(-1, False), (0, False), (1, True)])
def test_a_logged_slot_that_has_expired_meanwhile_is_dropped(left: int, *, is_held: bool) -> None:
    w = Merging(SLOTS)
    counts = snapshot(KEY, limit=SLOTS, state=[99, 20 * SECOND, 5])
    later = NOW + 20 * SECOND - left

    w.merge.charge_log(slot_log(99), [KEY], counts, NOW, later)

    assert w.slots(later) == ({99: (left, 5)} if is_held else {})


def test_slots_of_a_key_without_a_counter_get_the_limit_of_the_sender() -> None:
    w = Merging(WINDOW)
    counts = snapshot(UNKNOWN, limit=SLOTS, state=[99, 20 * SECOND, 5])
    log = FallbackLog()
    log.add_slot(UNKNOWN, 99)

    w.merge.charge_log(log, [UNKNOWN], counts, NOW, NOW)

    assert (w.limit_of(UNKNOWN), w.used(UNKNOWN)) == (SLOTS, [5])


@pytest.mark.parametrize("has_counts", [False, True])
def test_slots_of_a_key_that_is_no_concurrency_limit_here_are_ignored(*, has_counts: bool) -> None:
    w = Merging(WINDOW)
    w.spend(KEY, 3)
    keys = [KEY] if has_counts else [OTHER]
    counts = snapshot(*keys, limit=SLOTS, state=[99, 20 * SECOND, 5])

    w.merge.charge_log(slot_log(99), [KEY], counts, NOW, NOW)

    assert (w.limit_of(KEY), w.used()) == (WINDOW, [3])


def test_the_admissions_of_a_concurrency_limit_are_its_slots() -> None:
    w = Merging(SLOTS)
    numbers = [w.spend(KEY, 2), w.spend(KEY, 3)]

    log = w.merge.admitted(w.engine.snapshot([KEY], NOW), {KEY: 1}, NOW)

    assert [*log.slots(KEY)] == numbers
    assert log.row(KEY, NOW) == []


@pytest.mark.parametrize(("are_shared", "used"), [(None, 7), (False, 7), (True, 4)])
def test_joined_counters_have_the_units_of_both_members(are_shared: bool | None, used: int) -> None:
    w, there = Merging(), Merging()
    w.spend(KEY, 3)
    there.spend(KEY, 4)
    options = {} if are_shared is None else {"are_shared": are_shared}

    w.merge.join(there.engine.snapshot([KEY], NOW), {}, NOW, **options)

    assert w.used() == [used]


# -- crossed transfers -----------------------------------------------------------------------------


def group_from(sender_log: str = "", origins: tuple[int, ...] = ()) -> ShardGroup:
    return ShardGroup([SHARD], [1], Holding.HELD, 1, "", "", sender_log, 9, False, origins)


def check_of(number: int, age_ns: int = SECOND, cost: int = 1) -> DecidedCheck:
    return DecidedCheck((1, number, 0), KEY, cost, age_ns, ALLOWED)


class Crossing:
    """Node that has transferred a covered shard to its owner `b`, which also sent it."""

    def __init__(self, **changes: object) -> None:
        self.counts = Merging()
        self.checks = DecidedChecks()
        self.transfers = OutgoingTransfers()
        self.held = bytearray(SHARDS)
        self.held[SHARD] = True
        counts = PackedSnapshot.of(snapshot(KEY, limit=WINDOW, state=[NOW // MINUTE, 6]))
        part = Part(counts, [[0, 6]], [check_of(1, cost=2), check_of(2), check_of(3)])
        self.transfer = replace(OutgoingTransfer(B, NOW, 5, [part], "b", marks=(70, 71)), **changes)
        self.transfers.add([SHARD], self.transfer)
        self.crossed = CrossedTransfers(self.transfers, self.counts.merge, self.checks, self.held)

    def find(
        self,
        decided: Sequence[DecidedCheck] = (),
        group: ShardGroup | None = None,
        sender: NodeId = B,
        now: int = NOW,
    ) -> bool:
        found = self.crossed.find(SHARD, group or group_from(), sender, decided, now)
        assert found in (None, self.transfer)
        return found is not None


def test_only_a_transfer_of_a_covered_shard_to_its_sender_crosses() -> None:
    assert Crossing().find()
    assert not Crossing().find(sender=C)
    assert not Crossing().find(group=group_from("a"))
    assert not Crossing(taken_from="").find()
    assert not Crossing(parts=[]).find()
    other = Crossing()
    assert other.crossed.find(SHARD + 1, group_from(), B, (), NOW) is None


@pytest.mark.parametrize(
    ("origins", "decided", "crosses"),
    [
        ((70,), [], False),  # The counters have the mark of this transfer.
        ((71,), [], True),
        ((8, 70), [1, 2, 3], False),
        ((8,), [1, 2, 3], True),  # All origins are known, and the mark is missing.
        ((0,), [1, 2, 3], False),
        ((0,), [1, 2], False),
        ((0,), [1], True),
        ((), [1, 2, 3], False),
        ((), [7, 8], True),
        ((), [], True),
    ],
)
def test_a_sender_that_had_received_the_transfer_has_its_mark_or_most_of_its_checks(
    origins: tuple[int, ...], decided: list[int], *, crosses: bool
) -> None:
    checks = [check_of(number) for number in decided]

    assert Crossing().find(checks, group_from("", origins)) is crosses


@pytest.mark.parametrize(("oldest_s", "crosses"), [(6, False), (7, True), (20, True)])
def test_checks_that_are_older_than_those_of_the_sender_are_ignored(
    *, oldest_s: int, crosses: bool
) -> None:
    """The sender has only its newest checks. In the transfer, they were two seconds younger."""
    checks = [check_of(1, 3 * SECOND), check_of(2, 5 * SECOND), check_of(3, 5 * SECOND)]
    part = Part(PackedSnapshot(b"", 0, [], []), [], checks)
    theirs = [check_of(1, 5 * SECOND), check_of(9, oldest_s * SECOND)]

    found = Crossing(parts=[part], marks=()).find(theirs, now=NOW + 2 * SECOND)

    # From 7 s on, the sender would also have both checks of 5 s.
    assert found is crosses


def test_the_units_of_a_crossed_transfer_are_charged_without_checks_of_both() -> None:
    w = Crossing()
    w.counts.spend(KEY, 1)

    denied = replace(check_of(2), row=(Code.DENIED, *ALLOWED[1:]))
    w.crossed.charge(SHARD, w.transfer, [check_of(1, cost=2), denied, check_of(8)], NOW)

    assert w.counts.used() == [1 + 6 - 2]


@pytest.mark.parametrize(
    ("receiver", "number", "is_held", "used"),
    [(B, 5, True, 1), (C, 5, True, 7), (B, 6, True, 7), (B, 5, False, 7)],
)
def test_a_late_acknowledgement_of_a_crossed_transfer_refunds_its_units(
    receiver: NodeId, number: int, *, is_held: bool, used: int
) -> None:
    w = Crossing()
    w.counts.spend(KEY, 1)
    w.crossed.charge(SHARD, w.transfer, [], NOW)
    assert w.counts.used() == [7]
    w.held[SHARD] = is_held

    for _ in range(2):  # A repeated acknowledgement changes nothing.
        w.crossed.confirm([SHARD + 1, SHARD], receiver, number, NOW + SECOND)

    assert w.counts.used() == [used]


def test_checks_of_a_crossed_transfer_move_with_the_shard_until_it_is_acknowledged() -> None:
    w = Crossing()
    w.checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - SECOND)
    w.checks.on_charges_transferred(SHARD, NOW)
    assert w.checks.of_shard(SHARD, 0, NOW) == []

    w.crossed.charge(SHARD, w.transfer, [], NOW)
    assert len(w.checks.of_shard(SHARD, 0, NOW)) == 1
    w.crossed.confirm([SHARD], B, 5, NOW)
    assert w.checks.of_shard(SHARD, 0, NOW) == []


def test_a_crossed_transfer_may_be_acknowledged_for_15_seconds() -> None:
    assert Crossing().crossed.next_expiry == 1 << 63
    for late_ns, used in ((0, 0), (1, 6)):
        w = Crossing()
        w.crossed.charge(SHARD, w.transfer, [], NOW + SECOND)
        end = w.crossed.next_expiry
        assert end == NOW + 15 * SECOND

        w.crossed.expire(end + late_ns)
        w.crossed.confirm([SHARD], B, 5, end)

        assert w.counts.used(now=end) == [used]


def test_crossed_transfers_are_searched_among_unacknowledged_ones() -> None:
    w = Crossing()
    shards = range(SHARD, SHARD + 3)
    assert w.crossed.find_all(shards, group_from(), B, NOW) == {SHARD: w.transfer}
    assert w.crossed.find_all(shards, group_from(), C, NOW) == {}

    w.transfers.confirm([SHARD], B, 5)
    assert w.crossed.find_all(shards, group_from(), B, NOW) == {}
