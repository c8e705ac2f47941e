"""Changes of its shards that a node records: for standbys, for covered owners, and for itself."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from ringfence.limiter import Code, Limit, Outcomes
from ringfence.wire import Batch, Op
from tests.node.shards.ownership.ownership_host import KEY, NOW, RULE, Host, member

KEYS = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(300)]
SHARD = shard_of(KEY)


def outcomes(codes: Sequence[Code], slot_ids: Sequence[int] = ()) -> Outcomes:
    zeros = [0] * len(codes)
    columns = [code.value for code in codes], zeros, zeros, zeros, zeros, zeros
    return Outcomes(*columns, [*slot_ids] or zeros)


def decide(host: Host, op: Op, *codes: Code, costs: Sequence[int] = ()) -> None:
    batch = Batch(op, KEYS[: len(codes)], [*costs] or [1] * len(codes))
    host.ownership.record_decided(batch, outcomes(codes), NOW)


@pytest.mark.parametrize(
    ("op", "codes", "changed"),
    [
        (Op.CHECK, (Code.ALLOWED, Code.ALLOWED), [0, 1]),
        (Op.CHECK, (Code.ALLOWED, Code.OVER_SOFT), [0, 1]),
        (Op.CHECK, (Code.DENIED, Code.ALLOWED, Code.OVER_SOFT, Code.UNCHARGED), [1, 2]),
        (Op.CHECK, (Code.NEVER,), []),
        (Op.CHECK, (Code.UNKNOWN_RULE,), []),
        (Op.CHARGE, (Code.OVERDRAWN, Code.ALLOWED), [0, 1]),
        (Op.REFUND, (Code.DENIED, Code.ALLOWED), [0, 1]),
        (Op.RESET, (Code.NEVER,), [0]),
        (Op.RENEW, (Code.DENIED,), [0]),
    ],
)
def test_all_keys_that_may_have_changed_are_replicated(
    op: Op, codes: tuple[Code, ...], changed: list[int]
) -> None:
    host = Host("a")

    decide(host, op, *codes)

    assert [*host.ownership.changed.keys] == [KEYS[at] for at in changed]


def test_at_most_255_frames_of_changed_keys_wait_to_be_merged() -> None:
    host = Host("a")

    for number in range(1000):
        decide(host, Op.CHECK, *[Code.ALLOWED] * (1 + number % 300))
        assert len(host.ownership.changed.frames) == (number + 1) % 256

    assert [*host.ownership.changed.keys] == KEYS


async def test_the_first_changed_key_wakes_the_replication(autojump_clock: MockClock) -> None:
    host = Host("a")
    woken: list[float] = []

    async def wait() -> None:
        for _ in range(2):
            await host.ownership.changed.wait()
            woken.append(trio.current_time())
            host.ownership.changed.clear()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(wait)
            for _ in range(2):
                await trio.sleep(1)
                decide(host, Op.CHECK, Code.ALLOWED)

    assert [round(at - began) for at in woken] == [1, 2]


def test_a_node_is_empty_when_another_member_has_acknowledged_all_its_shards() -> None:
    host, receiver = Host("a"), Host("b")
    assert host.ownership.is_empty
    host.start(3)
    assert (host.ownership.count, host.ownership.is_empty) == (1, False)

    reply = receiver.ask(host)
    assert (host.ownership.count, host.ownership.is_empty) == (0, False)
    [group] = reply.groups
    host.ownership.acknowledge(receiver.name, group.shards, group.transfer_id, NOW)

    assert host.ownership.is_empty


# -- log of units admitted in the owner's place ----------------------------------------------------


def logged(host: Host) -> list[int]:
    return host.ownership.covers[SHARD].log.row(KEY, NOW)[1::2]


@pytest.mark.parametrize(
    ("op", "cost", "code", "units"),
    [
        (Op.CHECK, 3, Code.ALLOWED, [8]),
        (Op.CHECK, 3, Code.OVER_SOFT, [8]),
        (Op.CHECK, 3, Code.DENIED, [5]),
        (Op.CHECK, 0, Code.ALLOWED, [5]),
        (Op.CHARGE, 3, Code.OVERDRAWN, [8]),
        (Op.REFUND, 3, Code.ALLOWED, [2]),
        (Op.REFUND, 9, Code.ALLOWED, []),
        (Op.RESET, 1, Code.ALLOWED, []),
    ],
)
def test_the_log_of_a_covered_shard_follows_each_operation(
    op: Op, cost: int, code: Code, units: list[int]
) -> None:
    host = Host("a")
    host.cover("b")
    host.spend(5)

    batch = Batch(op, [KEYS[0], KEY], [7, cost])
    decided = outcomes([Code.DENIED, code])
    decided.slot_ids[1] = min(cost, 5) if op is Op.REFUND else 0
    host.ownership.record_decided(batch, decided, NOW)

    assert logged(host) == units
    assert host.ownership.covers[SHARD].log.keys == ([KEY] if units else [])


@pytest.mark.parametrize(
    ("op", "slot_ids", "code", "slots"),
    [
        (Op.CHECK, [11], Code.ALLOWED, [9, 11]),
        (Op.CHECK, [0], Code.DENIED, [9]),
        (Op.REFUND, [9], Code.ALLOWED, []),
        (Op.REFUND, [8], Code.ALLOWED, [9, 8]),  # The owner has granted it.
        (Op.RENEW, [8], Code.ALLOWED, [9, 8]),
        (Op.RENEW, [0], Code.DENIED, [9]),
        (Op.RESET, [0], Code.ALLOWED, []),
    ],
)
def test_the_log_of_a_covered_shard_has_the_slots_that_changed(
    op: Op, slot_ids: list[int], code: Code, slots: list[int]
) -> None:
    host = Host("a")
    host.cover("b")
    granted = Batch(Op.CHECK, [KEY], [1])
    host.ownership.record_decided(granted, outcomes([Code.ALLOWED], [9]), NOW)

    batch = Batch(op, [KEY], [1], slot_ids=slot_ids if op is Op.REFUND else [])
    host.ownership.record_decided(batch, outcomes([code], slot_ids), NOW)

    assert [*host.ownership.covers[SHARD].log.slots(KEY)] == slots


@pytest.mark.parametrize(("is_carried", "parts"), [(True, 2), (False, 1)])
def test_units_are_logged_in_parts_of_the_period_of_their_limit(
    *, is_carried: bool, parts: int
) -> None:
    limit = Limit.of_ns(100, 128 * 10**9)
    host = Host("a", carried=limit) if is_carried else Host("a", limit)
    host.cover("b")
    host.spend(2)
    host.spend(3, at=NOW + 10**9)  # A part of the period of this limit, but not of a day.

    assert len(logged(host)) == parts
    assert sum(logged(host)) == 5


# -- members ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "generation", "is_restarted"),
    [("b", 2, True), ("b", 1, False), ("b", 0, False), ("c", 2, False)],
)
def test_only_a_newer_generation_of_the_owner_is_a_restart(
    *, name: str, generation: int, is_restarted: bool
) -> None:
    host = Host("a")
    host.cover("b")

    before, after = member(name), member(name, generation=generation)
    host.ownership.on_member_change(before, after)

    assert host.ownership.covers[SHARD].is_owner_restarted is is_restarted
    host.ownership.on_member_change(None, member("b", generation=5))
    assert host.ownership.covers[SHARD].is_owner_restarted is is_restarted


def test_takeovers_and_received_keys_are_counted() -> None:
    owner, host = Host("b"), Host("a")
    owner.start(3)

    host.pull(owner)
    host.pull(owner)
    assert (host.ownership.count, host.used) == (1, 3)
    assert host.counters.as_dict()["shards_pulled"] == 1
    assert host.counters.as_dict()["keys_pulled"] == 1

    other = Host("c")
    other.ownership.take_over_blind([1, 2, 3], NodeId("b"), NOW, [])
    other.ownership.take_over_blind([3, 4], NodeId("b"), NOW, [])
    other.cover("b")
    assert other.counters.as_dict()["shards_taken"] == 5
    assert sorted(other.started) == sorted([1, 2, 3, 4, SHARD])
