"""Digests of sent counts, and the rounds in which one node sends counts and digests."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock

from hashring import shard_of
from ringfence.wire import Digest, DigestMismatch, Done, ErrorCode, Refused, WindowCounts
from tests.node.cross_dc.counting_host import DAY, NOW, SECOND, WINDOW, alone, key_of, pair

MANY = [key_of(value) for value in range(3000)]


def test_equal_counts_have_equal_digests() -> None:
    eu, us = pair()
    eu.spend(*MANY)  # Several keys in each shard, so that sums exceed 64 bits.
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()

    eu.send_digests()

    digests = eu.digests()
    shards = {shard_of(key) for key in MANY}
    assert sorted(shard for some in digests for shard in some) == sorted(shards)
    assert [len(some) for some in digests] == [1000, 1000, len(shards) - 2000]
    assert all(some == sorted(some) for some in digests)
    assert (eu.count("digests_sent"), eu.count("digests_differed")) == (3, 0)
    assert eu.counts.stats()["cells_waiting"] == 0
    assert us.used(*MANY) == [1] * 3000


def test_each_step_sends_at_most_one_digest_message() -> None:
    eu, _ = pair()
    eu.spend(*MANY)
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()

    assert [len(eu.digests()) for _ in eu.counts.send_digests()] == [1, 1, 1]


def test_no_digest_is_sent_of_a_shard_that_is_sent_again_since_the_first_step() -> None:
    eu, _ = pair()
    eu.spend(*MANY)
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()
    steps = eu.counts.send_digests()
    next(steps)
    [first] = eu.digests()
    later = {shard_of(key) for key in MANY} - set(first)
    resent = min(later)

    eu.keys.to_send["us"].resend([resent], eu.now)

    assert len([*steps]) == 2
    assert sorted(shard for some in eu.digests() for shard in some) == sorted(later - {resent})
    assert eu.count("digests_differed") == 0


def test_counts_of_shards_with_different_digests_are_sent_again() -> None:
    eu, us = pair()
    eu.spend(*MANY)
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()
    lost, changed = MANY[17], MANY[500]
    us.keys.received["eu"].pop(lost)
    us.keys.received["eu"].put(changed, [WINDOW, 2])

    eu.send_digests()
    eu.sent.clear()
    eu.now += SECOND
    eu.flush()

    shards = {shard_of(lost), shard_of(changed)}
    [sent] = eu.sent_keys()
    assert sorted(sent) == sorted(key for key in MANY if shard_of(key) in shards)
    assert eu.count("digests_differed") == 2
    eu.send_digests()
    assert eu.count("digests_differed") == 2


def test_a_digest_differs_for_counts_that_only_one_side_has() -> None:
    host = alone("u1")
    host.keys.on_received("us", key_of(1), [WINDOW, 3])
    empty = (shard_of(key_of(1)) + 1) % 1000

    reply = host.counts.receive_digest("us", Digest(8, "us", [shard_of(key_of(1)), empty], [0, 0]))
    assert reply == DigestMismatch(8, [shard_of(key_of(1))])
    reply = host.counts.receive_digest("us", Digest(9, "us", [empty], [1]))
    assert reply == DigestMismatch(9, [empty])


@pytest.mark.parametrize("reply", [None, Refused(1, ErrorCode.OVERLOADED, "busy")])
def test_a_digest_without_an_answer_changes_nothing(reply: Refused | None) -> None:
    host = alone("u1")
    host.spend(key_of(1), units=10)
    host.flush()
    host.answer(Done(1))
    host.send_digests()

    host.answer(reply)

    assert host.count("digests_differed") == 0
    assert host.counts.stats()["cells_waiting"] == 0


def test_no_digest_is_sent_without_a_link_or_acknowledged_counts() -> None:
    eu, _ = pair()
    eu.send_digests()
    eu.spend(key_of(1))
    eu.now += SECOND
    eu.flush()
    eu.is_linked = False
    eu.send_digests()

    assert eu.digests() == []
    assert eu.count("digests_sent") == 0


def test_digests_contain_no_expired_windows() -> None:
    eu, _ = pair()
    eu.spend(key_of(1))
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()

    eu.now = NOW + 3 * DAY - 1  # A window is kept for two more periods.
    eu.send_digests()
    assert eu.digests() == [[shard_of(key_of(1))]]
    eu.now += 2
    eu.send_digests()
    assert eu.digests() == []


# -- rounds ----------------------------------------------------------------------------------------


class Constant(Random):
    """Source of one number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.parametrize(("random", "wait"), [(0.0, 0.18), (0.5, 0.2), (1.0, 0.22)])
async def test_changed_counts_are_sent_180_to_220_ms_later(
    autojump_clock: MockClock, random: float, wait: float
) -> None:
    host = alone("u1")
    host.random.random = Constant(random).random  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.counts.run)
        await trio.sleep(5)
        host.spend(key_of(1), units=10)
        await trio.sleep(wait - 0.001)
        assert host.sent_keys() == []
        await trio.sleep(0.002)
        assert host.sent_keys() == [[key_of(1)]]
        nursery.cancel_scope.cancel()


async def test_digests_are_sent_every_ten_seconds(autojump_clock: MockClock) -> None:
    eu, _ = pair()
    eu.spend(key_of(1), units=10)
    eu.flush()
    eu.sent.clear()
    began, sent_at = trio.current_time(), list[float]()

    def record() -> Iterator[None]:
        sent_at.append(trio.current_time() - began)
        yield

    eu.counts.send_digests = record  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(eu.counts.run)
        await trio.sleep(35)
        nursery.cancel_scope.cancel()

    assert len(sent_at) == 3
    assert all(10 <= after - before <= 10.5 for before, after in pairwise([0, *sent_at]))


async def test_a_round_sends_digests_before_new_counts(autojump_clock: MockClock) -> None:
    eu, _ = pair()
    eu.spend(key_of(1), units=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(eu.counts.run)
        await trio.sleep(9.9)
        eu.sent.clear()
        eu.spend(key_of(2), units=10)
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()

    assert [type(message) for _, message in eu.sent] == [Digest, WindowCounts]
