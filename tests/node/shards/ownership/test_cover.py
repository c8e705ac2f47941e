"""Data of a covered shard: duplicates, the log of a transfer that was taken back, and senders."""

from itertools import islice

import pytest

from hashring import NodeId, shard_of
from node.shards.fallback_log import FallbackLog
from node.shards.ownership.cover import Arrival, Cover, others
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfer, Part
from ringfence.limiter import Engine, Limit, PackedSnapshot, Snapshot
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import Batch, DecidedCheck, Holding, Op, ShardGroup
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, Host

A, B, C, D = (NodeId(name) for name in "abcd")
S = 10**9
MINUTE = 60 * S
LIMIT = Limit.of_ns(100, DAY)


def log_of(units: int, key: bytes = KEY) -> FallbackLog:
    log = FallbackLog()
    if units:
        log.add(key, units, DAY, NOW)
    return log


def units(log: FallbackLog) -> int:
    return sum(log.row(KEY, NOW)[1::2])


def group(*, taken_from: str = "", replica_at: str = "", marks: tuple[int, ...] = ()) -> ShardGroup:
    return ShardGroup([1], [0], Holding.HELD, 1, "", replica_at, taken_from, 9, marks=marks)


@pytest.mark.parametrize(
    ("passed_ns", "is_counting", "duplicates"),
    [
        (None, False, 0),
        (-1, False, 0),
        (0, True, 3),
        (5 * S - 1, True, 3),
        (5 * S, False, 3),
        (30 * S - 1, False, 3),
        (30 * S, False, 0),
    ],
)
def test_units_may_be_counted_twice_for_30_s_after_a_replica_of_the_owner(
    passed_ns: int | None, duplicates: int, *, is_counting: bool
) -> None:
    cover = Cover(B, NOW, copied_at=None if passed_ns is None else NOW, duplicates={KEY: 3})
    now = NOW + (passed_ns or 0)

    assert cover.is_owner_counting(now) is is_counting
    assert cover.possible_duplicates(KEY, now) == duplicates
    assert cover.possible_duplicates(b"other", now) == 0
    cover.is_owner_restarted = True  # Then its counters have none of these units.
    assert cover.possible_duplicates(KEY, now) == 0


@pytest.mark.parametrize(
    ("logged", "known", "before", "after", "duplicates"),
    [
        (5, 0, [], [7, 3], {KEY: 3}),
        (5, 0, [7, 2], [7, 3], {KEY: 1}),
        (5, 0, [6, 9, 7, 2], [7, 3], {}),
        (5, 0, [7, 3], [6, 1, 7, 4], {KEY: 2}),
        (2, 0, [], [7, 3], {KEY: 2}),
        (0, 0, [], [7, 3], {}),
        (5, 1, [], [7, 3], {KEY: 4}),
        (5, 4, [], [7, 3], {KEY: 5}),
        (3, 4, [7, 3], [7, 3], {KEY: 3}),
    ],
)
def test_duplicates_are_units_of_the_replica_that_the_log_may_also_have(
    logged: int, known: int, before: list[int], after: list[int], duplicates: dict[bytes, int]
) -> None:
    cover = Cover(B, NOW, log=log_of(logged), duplicates={KEY: known} if known else {})

    cover.add_duplicates([KEY], [before], [after], NOW)

    assert cover.duplicates == duplicates


# -- transfers that were taken back ----------------------------------------------------------------


def taken_back(*, mark: int = 70, is_sent: bool = True) -> Cover:
    cover = Cover(B, NOW, log=log_of(5), sent_mark=mark, sent_at=NOW + 7)
    if is_sent:
        cover.sent_to, cover.sent_log = (B, 5), log_of(3)
    return cover


@pytest.mark.parametrize(
    ("receiver", "number", "is_sent", "left"),
    [(B, 5, True, 2), (C, 5, True, 5), (B, 6, True, 5), (B, 5, False, 5)],
)
def test_the_acknowledged_units_of_a_transfer_leave_the_log(
    receiver: NodeId, number: int, left: int, *, is_sent: bool
) -> None:
    cover = taken_back(is_sent=is_sent)

    for _ in range(2):
        cover.confirm_sent(receiver, number)

    assert units(cover.log) == left
    assert cover.since == NOW + 7 * (left == 2)


@pytest.mark.parametrize(
    ("origins", "mark", "is_sent", "left"),
    [
        ((8, 70), 70, True, 2),
        ((8, 71), 70, True, 5),
        ((0,), 0, True, 5),
        ((70,), 70, False, 5),
        ((), 70, True, 5),
    ],
)
def test_counters_with_the_mark_of_a_transfer_have_its_units(
    origins: tuple[int, ...], mark: int, left: int, *, is_sent: bool
) -> None:
    cover = taken_back(mark=mark, is_sent=is_sent)

    for _ in range(2):
        cover.find_sent(origins)

    assert units(cover.log) == left


def test_a_shard_whose_transfer_is_taken_back_keeps_the_data_of_the_transfer() -> None:
    counts = PackedSnapshot.of(Snapshot([KEY], [[1, 2, 3]], [LIMIT], [0], []))
    check = DecidedCheck((1, 2, 0), KEY, 1, 4 * S, (0,) * 8)
    transfer = OutgoingTransfer(
        *(C, NOW, 5, [Part(counts, [[0, 6]], [check])], "b"),
        is_from_before=True,
        copied_at=NOW - 3,
        duplicates={KEY: 2},
        marks=(70, 71, 72),
    )

    cover = Cover.of_transfer(transfer, "d")

    assert (cover.owner, cover.since, cover.base_of) == (B, NOW - 4 * S, "d")
    assert (cover.sent_to, cover.sent_at, cover.sent_mark) == ((C, 5), NOW, 70)
    assert (cover.marks, cover.copied_at, cover.duplicates) == ({71, 72}, NOW - 3, {KEY: 2})
    assert (units(cover.log), units(cover.sent_log)) == (6, 6)
    assert cover.is_owner_restarted
    cover.confirm_sent(C, 5)
    assert units(cover.log) == 0


def test_a_transfer_of_an_own_shard_has_no_marks_and_is_taken_back_from_its_receiver() -> None:
    cover = Cover.of_transfer(OutgoingTransfer(C, NOW, 5, [], ""), "")

    assert (cover.owner, cover.since, cover.sent_mark, cover.marks) == (C, NOW, 0, set())
    assert (cover.duplicates, cover.copied_at) == ({}, None)


# -- senders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken_from", "replica_at", "is_blind", "to_ask", "base_of"),
    [
        ("b", "", False, ("c",), "b"),
        ("b", "", True, ("c",), "b"),
        ("b", "d", False, ("c",), "e"),
        ("b", "d", True, ("c", "d"), "e"),
        ("b", "c", True, ("c",), "e"),
        ("b", "a", True, ("c",), "e"),
        ("x", "", False, ("c",), "e"),
        ("x", "d", True, ("c", "d"), "e"),
    ],
)
def test_the_sender_of_a_covered_shard_names_its_base_or_the_member_that_may_have_it(
    taken_from: str, replica_at: str, to_ask: tuple[str, ...], base_of: str, *, is_blind: bool
) -> None:
    cover = Cover(B, NOW, to_ask=(C,), base_of="e")

    sent = group(taken_from=taken_from, replica_at=replica_at)
    cover.add_sender(D, sent, A, is_blind=is_blind)

    assert (cover.received_from, cover.to_ask, cover.base_of) == ({D}, to_ask, base_of)


def test_the_log_of_a_sender_brings_its_units_and_marks() -> None:
    counts = Snapshot([KEY], [[1, 2, 3]], [LIMIT], [0], [])
    cover = Cover(B, NOW, log=log_of(1), marks={60})

    cover.add_log(Arrival(NOW, [(NOW, counts)], [[0, 4]], group(marks=(70, 71))))
    assert (units(cover.log), cover.marks) == (5, {60, 70, 71})
    cover.add_log(Arrival(NOW, [(NOW, counts)], [[0, 2]]))
    assert (units(cover.log), cover.marks) == (7, {60, 70, 71})


def test_a_log_ends_15_seconds_after_its_node_has_become_the_owner() -> None:
    cover = Cover(B, NOW)
    assert not cover.is_ended

    cover.ended_at = NOW

    assert cover.is_ended
    assert cover.kept_until == NOW + 15 * S


def test_other_members_are_neither_this_node_nor_the_owner() -> None:
    assert others(A, "b", "", "a", "b", "c", "d") == ("c", "d")


# -- refunds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "removed"), [(1, 1), (5, 5), (9, 5)])
@pytest.mark.parametrize("is_covered", [False, True])
def test_a_refund_states_the_units_that_it_removed(
    *, cost: int, removed: int, is_covered: bool
) -> None:
    host = Host("a")
    if is_covered:
        host.cover("b")
    else:
        host.start()
    host.spend(2, at=NOW - DAY // 4)
    host.spend(3, at=NOW - DAY // 8)

    host.refund(cost, check_id=(1, 5, 0), at=NOW)

    [check] = host.checks.of_shard(shard_of(KEY), 0, NOW)
    assert (check.cost, check.is_refund) == (removed, True)


def test_a_log_forgets_keys_whose_counters_have_expired_or_were_evicted() -> None:
    """The owner may be replaced by a member with another name, and never return."""
    host, shard = Host("b"), shard_of(KEY)
    host.cover("d")
    host.spend(3)
    cover = host.ownership.covers[shard]
    others = (KEY + b"%d" % number for number in range(10_000_000))
    for key in islice((key for key in others if shard_of(key) == shard), 50):
        batch = Batch(Op.CHECK, [key], [1])
        host.ownership.record_decided(batch, decide_batch(host.engine, batch, NOW), NOW)
        cover.add_unsent(key, host.engine.has)
        assert units(cover.log) == 3
        assert key in cover.log.keys
        assert key in cover.unsent
        host.engine.forget([key])

        assert len(cover.log.keys) <= 8
        assert len(cover.unsent) <= 8


def test_a_log_keeps_all_keys_with_counters_and_changed_slots() -> None:
    log, cover = FallbackLog(), Cover(D, NOW)
    keys = [KEY + b"%d" % number for number in range(40)]
    for key in keys:
        log.add(key, 1, DAY, NOW)
        log.add_slot(key + b"slot", 7)
        log.prune({*keys[::2]}.__contains__, NOW)
        cover.add_unsent(key, {*keys[::2]}.__contains__)

    assert {*keys[::2]} <= {*log.keys}
    assert {*log.unused_keys} == {key + b"slot" for key in keys}
    assert {*keys[::2]} <= {*cover.unsent}
    assert len(cover.unsent) <= 40


def test_a_late_report_of_a_lease_leaves_the_later_units_of_the_log() -> None:
    cover = Cover(NodeId("b"), NOW)
    cover.log_units(KEY, 9, MINUTE, NOW, NOW)
    cover.log.add(KEY, 9, MINUTE, NOW + 20 * S)

    cover.log_units(KEY, -4, MINUTE, NOW, NOW + 21 * S)

    assert cover.log.row(KEY, NOW + 21 * S)[1::2] == [5, 9]
    assert cover.has_decisions


def test_a_refund_of_lent_units_that_the_log_lacks_has_the_age_of_its_charge() -> None:
    cover = Cover(NodeId("b"), NOW)

    cover.log_units(KEY, -4, MINUTE, NOW - 10 * S, NOW)

    age_ns, units = cover.log.refunded(KEY, NOW)
    assert units == 4
    assert 9 * S < age_ns <= 10 * S


@pytest.mark.parametrize("op", [Op.CHECK, Op.CHARGE, Op.REFUND, Op.RESET])
def test_a_cover_has_decisions_after_each_operation(op: Op) -> None:
    cover = Cover(NodeId("b"), NOW)
    assert not cover.has_decisions
    batch = Batch(op, [KEY], [1])

    cover.log_row(batch, decide_batch(Engine(max_keys=1), batch, NOW), 0, lambda key: MINUTE, NOW)

    assert cover.has_decisions
