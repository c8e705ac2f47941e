"""Refunds and resets by a standby of units that a paused owner still counts."""

import pytest

from hashring import shard_of
from ringfence.limiter import Algorithm, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import Batch, Op
from tests.node.shards.merging.paused_owner import LIMITS, S, names, paused, refund, reset, resume
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, Host


def reset_by_both(limit: Limit, refunded: int, parts: int = 1) -> tuple[Host, Host]:
    """Return an owner with 20 units and a standby with 5 units since a reset that both have
    applied."""
    owner, standby = paused(limit, parts=parts)
    standby.spend(7, check_id=(9, 1, 0))
    refund(standby, refunded, seq=2)
    reset(standby, seq=3)
    standby.spend(5, check_id=(9, 4, 0))
    owner.now = standby.now = NOW + 2 * S
    owner.spend(7, check_id=(9, 1, 0))
    refund(owner, refunded, seq=2)
    reset(owner, seq=3)
    owner.spend(20, check_id=(9, 5, 0))
    return owner, standby


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize(
    ("spent", "refunded", "later", "used"),
    [
        pytest.param(0, 60, 0, 40, id="owned units"),
        pytest.param(7, 60, 0, 47, id="logged units first"),
        pytest.param(7, 5, 0, 102, id="only logged units"),
        pytest.param(0, 60, 7, 47, id="units after the refund"),
        pytest.param(0, 300, 5, 5, id="more than were charged"),
    ],
)
def test_an_owner_removes_units_that_its_standby_has_refunded(
    limit: Limit, spent: int, refunded: int, later: int, used: int
) -> None:
    owner, standby = paused(limit)
    if spent:
        standby.spend(spent)
    refund(standby, refunded)
    if later:
        standby.spend(later)
    assert standby.used == used

    resume(owner, standby)

    assert owner.used == used


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("later", [0, 5])
def test_an_owner_removes_the_units_of_a_key_that_its_standby_has_reset(
    limit: Limit, later: int
) -> None:
    owner, standby = paused(limit)
    refund(standby, 10)
    standby.spend(7)
    reset(standby)
    if later:
        standby.spend(later)

    resume(owner, standby)

    assert (standby.used, owner.used) == (0, later)


@pytest.mark.parametrize("limit", LIMITS, ids=names)
def test_a_refund_that_owner_and_standby_apply_counts_once(limit: Limit) -> None:
    owner, standby = paused(limit)
    refund(standby, 60)
    owner.now = standby.now
    refund(owner, 60)

    resume(owner, standby)

    assert owner.used == 40


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("spent", [0, 7, 70])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_refund_by_both_counts_once_when_their_transfers_cross(
    limit: Limit, spent: int, parts: int
) -> None:
    owner, standby = paused(limit, parts=parts)
    if spent:
        standby.spend(spent)
    refund(standby, 60)
    owner.now = standby.now = NOW + 2 * S
    refund(owner, 60)

    [group] = owner.ask(standby).groups
    standby.pull(owner)
    merged = standby.used
    standby.ownership.acknowledge(owner.name, group.shards, group.transfer_id, standby.now)

    assert (merged, standby.used) == (40 + spent, 40)


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("other", [0, 20])
@pytest.mark.parametrize(
    ("before", "way"),
    [(0, "resume"), (0, "cross"), (100, "resume"), (100, "pull"), (100, "cross")],
)
def test_a_refund_counts_when_its_check_was_also_decided_by_the_owner(
    limit: Limit, other: int, before: int, way: str
) -> None:
    """The owner was paused before it could replicate and answer the check."""
    owner, standby = Host("b", limit), Host("a", limit)
    owner.start(before)
    owner.copy_to(standby)
    owner.now = standby.now = NOW + S // 10
    owner.spend(39, check_id=(9, 1, 0))
    owner.now = standby.now = NOW + S
    standby.cover("b")
    standby.spend(39, check_id=(9, 1, 0))
    if other:
        standby.spend(other)
    refund(standby, 39, seq=2)

    owner.now = standby.now = NOW + 3 * S
    if way == "cross":
        owner.ask(standby)
    receiver, sender = (owner, standby) if way == "resume" else (standby, owner)
    receiver.pull(sender)

    assert receiver.used == before + other


@pytest.mark.parametrize("limit", LIMITS, ids=names)
def test_refunded_units_that_a_log_lacks_are_removed_once(limit: Limit) -> None:
    owner, standby = paused(limit)
    for seq in range(1, 4):
        standby.spend(10, check_id=(9, seq, 0))
    refund(standby, 10, seq=4)
    standby.ownership.covers[shard_of(KEY)].log.forget(KEY)  # as after an eviction of the counter
    owner.now = standby.now = NOW + 2 * S
    for seq in range(1, 4):
        owner.spend(10, check_id=(9, seq, 0))

    standby.pull(owner)

    assert standby.used == 120


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("way", ["resume", "pull", "cross"])
def test_a_reset_by_the_standby_removes_checks_that_the_owner_has_decided_too(
    limit: Limit, way: str
) -> None:
    owner, standby = paused(limit)
    standby.spend(39, check_id=(9, 1, 0))
    reset(standby, seq=2)
    standby.spend(5)
    owner.now = standby.now = NOW + 2 * S
    owner.spend(39, check_id=(9, 1, 0))

    if way == "cross":
        owner.ask(standby)
    receiver, sender = (owner, standby) if way == "resume" else (standby, owner)
    receiver.pull(sender)

    assert receiver.used == 5


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("way", ["resume", "pull", "cross"])
@pytest.mark.parametrize("is_replicated", [False, True])
@pytest.mark.parametrize("later", [0, 5])
def test_a_reset_by_the_standby_removes_a_check_once_that_the_owner_had_decided_before(
    limit: Limit, way: str, is_replicated: bool, later: int
) -> None:
    owner, standby = Host("b", limit), Host("a", limit)
    owner.start(100)
    owner.copy_to(standby)
    owner.now = standby.now = NOW + S
    owner.spend(39, check_id=(9, 1, 0))
    owner.now = standby.now = NOW + 2 * S
    if is_replicated:
        owner.copy_to(standby)
    owner.now = standby.now = NOW + 3 * S
    standby.cover("b")
    standby.spend(39, check_id=(9, 1, 0))
    reset(standby, seq=2)
    standby.spend(later)
    owner.spend(50)

    if way == "cross":
        owner.ask(standby)
    receiver, sender = (owner, standby) if way == "resume" else (standby, owner)
    receiver.pull(sender)

    assert receiver.used == 50 + later


@pytest.mark.parametrize(
    "base", ["late replica", "retaken", "followed", "same instant", "sent by another standby"]
)
def test_a_reset_contains_the_instant_of_the_replica_that_its_standby_had(
    base: str,
) -> None:
    owner, standby, third = [Host(name, LIMITS[0]) for name in "bac"]
    owner.start(100)
    owner.now = NOW + S
    owner.spend(39, check_id=(9, 1, 0))
    owner.now = standby.now = third.now = NOW + 2 * S
    if base == "late replica":
        owner.copy_to(third)
        standby.cover("b", "c")
        standby.ask_late(third)
    elif base == "followed":
        standby.cover("b")
        owner.copy_to(standby)
    else:
        owner.copy_to(standby)
        standby.cover("b")
    if base == "retaken":
        standby.spend(1)
        owner.ask(standby)
        standby.cover("b")
    standby.spend(39, check_id=(9, 1, 0))
    reset(standby, seq=2)
    sender = standby
    if base == "sent by another standby":
        third.pull(standby)
        sender = third
    owner.spend(50)

    owner.pull(sender)

    assert owner.used == 50


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("refunded", [0, 10])
def test_a_reset_by_both_removes_no_later_units(limit: Limit, refunded: int) -> None:
    owner, standby = reset_by_both(limit, refunded)

    resume(owner, standby)

    assert owner.used == 25


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("refunded", [0, 10])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_reset_by_both_removes_no_later_units_when_their_transfers_cross(
    limit: Limit, refunded: int, parts: int
) -> None:
    owner, standby = reset_by_both(limit, refunded, parts=parts)

    [group] = owner.ask(standby).groups
    standby.pull(owner)
    merged = standby.used
    standby.ownership.acknowledge(owner.name, group.shards, group.transfer_id, standby.now)

    assert (merged, standby.used) == (25, 20)


@pytest.mark.parametrize("limit", LIMITS, ids=names)
def test_a_refund_by_both_before_a_reset_by_the_standby_adds_no_units(limit: Limit) -> None:
    owner, standby = paused(limit)
    refund(standby, 25, seq=2)
    reset(standby, seq=3)
    standby.spend(5)
    owner.now = standby.now = NOW + 2 * S
    refund(owner, 25, seq=2)

    standby.pull(owner)

    assert standby.used == 5


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("resets", [[3], [3, 4]])
@pytest.mark.parametrize("is_crossing", [False, True])
def test_a_standby_that_receives_the_owners_counters_keeps_units_after_their_common_reset(
    limit: Limit, resets: list[int], is_crossing: bool
) -> None:
    owner, standby = paused(limit)
    for seq in resets:
        reset(standby, seq)
    standby.spend(5)
    owner.now = standby.now = NOW + 2 * S
    reset(owner, seq=3)
    owner.spend(20)

    if is_crossing:
        owner.ask(standby)
    standby.pull(owner)

    assert standby.used == 25


@pytest.mark.parametrize("limit", LIMITS, ids=names)
def test_an_owner_knows_the_reset_of_its_standby(limit: Limit) -> None:
    owner, standby = paused(limit)
    reset(standby, seq=3)

    resume(owner, standby)

    assert owner.checks.find([(8, 3, 0)])


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_check_by_both_counts_once_when_their_transfers_cross(limit: Limit, parts: int) -> None:
    owner, standby = paused(limit, parts=parts)
    standby.spend(7, check_id=(9, 1, 0))
    owner.now = standby.now = NOW + 2 * S
    owner.spend(7, check_id=(9, 1, 0))

    owner.ask(standby)
    standby.pull(owner)

    assert standby.used == 107


@pytest.mark.parametrize("limit", LIMITS, ids=names)
def test_a_standby_that_receives_the_counters_of_the_owner_removes_refunded_units(
    limit: Limit,
) -> None:
    owner, standby = paused(limit)
    refund(standby, 60)
    standby.spend(7)

    owner.now = standby.now = NOW + 3 * S
    standby.pull(owner)

    assert standby.holds
    assert standby.used == 47


@pytest.mark.parametrize("limit", LIMITS, ids=names)
def test_an_owner_counts_units_after_the_resets_of_two_standbys(limit: Limit) -> None:
    """The owner charged the units of an unused key under an unknown limit, so they expired."""
    owner, first = paused(limit)
    second = Host("c", limit)
    second.now = first.now
    owner.copy_to(second)
    second.cover("b")
    for seq, standby in enumerate((first, second), 1):
        reset(standby, seq)
        standby.spend(32, check_id=(9, 3, 0))

    second.now = NOW + 2 * S
    second.pull(first)
    owner.now = second.now = NOW + 3 * S
    owner.pull(second)
    owner.now += S

    assert owner.used == 32


def test_an_owner_releases_slots_of_a_key_that_its_standby_has_reset() -> None:
    owner, standby = paused(Limit.of_ns(1000, DAY, Algorithm.CONCURRENCY))
    reset(standby)

    resume(owner, standby)

    assert owner.used == 0


def test_a_refund_does_not_reach_a_later_window() -> None:
    limit = Limit.of_ns(1000, 10 * S, Algorithm.FIXED_WINDOW)
    owner, standby = Host("b", limit), Host("a", limit)
    owner.start(100)
    owner.copy_to(standby)
    owner.now = standby.now = NOW + 9 * S
    standby.cover("b")
    refund(standby, 60)
    owner.now = standby.now = NOW + 11 * S
    standby.spend(3)

    owner.pull(standby)

    assert owner.used == 3


@pytest.mark.parametrize(
    "limit",
    [
        Limit.of_ns(1000, 10 * S, Algorithm.FIXED_WINDOW),
        Limit.of_ns(1000, 10 * S),
        Limit.of_ns(1000, 10 * S, slots=5),
        Limit.of_ns(1000, 10 * S, Algorithm.SLIDING_WINDOW_LOG),
        Limit.of_ns(1000, 10 * S, Algorithm.TOKEN_BUCKET),
        Limit.of_ns(1000, 10 * S, Algorithm.LEAKY_BUCKET),
    ],
    ids=names,
)
def test_a_refund_of_units_that_no_longer_count_removes_no_later_units(limit: Limit) -> None:
    owner, standby = Host("b", carried=limit), Host("a", carried=limit)
    owner.start(100)
    owner.copy_to(standby)
    standby.cover("b")
    standby.spend(60)
    owner.now = standby.now = NOW + 21 * S
    standby.spend(60)

    batch = Batch(Op.REFUND, [KEY], [60], limits=[limit], which=[1], ages_ns=[21 * S])
    outcomes = decide_batch(standby.engine, batch, standby.now)
    standby.ownership.record_decided(batch, outcomes, standby.now)
    assert standby.used == 60
    owner.pull(standby)

    assert owner.used == 60


def test_a_refund_removes_at_most_the_units_that_are_left_after_refunds_of_other_times() -> None:
    _, standby = paused(LIMITS[0], units=100)
    removed: list[int] = []
    for seq in range(1, 5):
        standby.now += DAY // 100
        refund(standby, 30, seq)
        removed.append(standby.checks.of_shard(shard_of(KEY), 0, standby.now)[-1].cost)

    assert removed == [30, 30, 30, 10]
