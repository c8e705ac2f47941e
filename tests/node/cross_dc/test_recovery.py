"""Recovery of counts that a data center has lost, from the data centers that received them."""

from collections.abc import Callable
from typing import cast

import pytest

from gossip.cross_dc.digested_counts import DigestedCounts
from gossip.cross_dc.lost_counts import LostCounts
from hashring import Member, NodeId, Ring, shard_of
from node.cross_dc.recovery import CountRecovery
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from ringfence.limiter import Engine, EngineRule, Limit
from ringfence.peering.link import Link
from ringfence.wire import RecoverCounts, RecoverCountsReply

HOUR = 3600 * 10**9
RULE = 7
KEY = RULE.to_bytes(8, "big") + b"k"
SHARD = shard_of(KEY)
NOW = 1_800_000_000 * 10**9
NUMBER = NOW // HOUR
LIMIT = Limit.of_ns(1000, HOUR)


class Host:
    """One node, whose links keep replies in `waiting` until the test delivers them."""

    def __init__(
        self, name: str, datacenter: str, hosts: "dict[str, Host]", limit: Limit | None = None
    ) -> None:
        limit = limit or LIMIT
        self.datacenter = datacenter
        self._hosts = hosts
        hosts[name] = self
        self.engine = Engine(max_keys=4000)
        self.engine.set_rules({RULE: EngineRule(limit, is_shared=True)})
        lost = LostCounts()
        self.ownership = ShardOwnership(
            NodeId(name),
            self.engine,
            Counters(),
            lambda key: HOUR,
            lambda keys: None,
            lost.start,
            max_keys=100,
        )
        self.recovery = CountRecovery(
            self.engine, self.ownership, self._link_to, lambda: NOW, lambda key: limit, lost
        )
        self.waiting: list[Callable[[], None]] = []
        self.asked: list[tuple[str, list[int]]] = []

    def _link_to(self, name: NodeId) -> Link:
        return cast("Link", _Link(self, self._hosts[name], name))

    def spend(self, units: int) -> None:
        self.engine.charge([KEY], [units], [0], NOW)

    def send_counts(self, other: "Host") -> None:
        cells = self.engine.local_counts([KEY], NOW)
        other.engine.merge_remote(self.datacenter, [KEY], cells, NOW)

    def ask(self, *others: str) -> None:
        """Request lost counts from data centers; each has one host with its name."""
        own = [NodeId(n) for n, host in self._hosts.items() if host.datacenter == self.datacenter]
        owner = next(name for name in own if self._hosts[name].ownership.held[SHARD])
        self.recovery.ask(
            Ring.of([Member(owner)]), {name: Ring.of([Member(NodeId(name))]) for name in others}
        )
        while self.waiting:
            self.waiting.pop()()

    @property
    def used(self) -> int:
        return self.engine.used(KEY, NOW)


class _Link:
    def __init__(self, asker: Host, asked: Host, name: str) -> None:
        self._asker, self._asked, self._name = asker, asked, name

    def call(
        self, make: Callable[[int], RecoverCounts], on_reply: Callable[[object], None]
    ) -> None:
        message = make(1)
        self._asker.asked.append((self._name, message.shards))
        if self._asker.datacenter == self._asked.datacenter:
            reply = self._asked.recovery.take_over_request(message)
        else:
            received = DigestedCounts(lambda key: SHARD)
            received.put(KEY, [1, 1])
            reply = self._asked.recovery.answer(self._asker.datacenter, message, received)
        self._asker.waiting.append(lambda: on_reply(reply))


def two_empty_and_one_full(count: int) -> tuple[Host, Host, Host]:
    """Return two empty hosts of one data center, and one elsewhere that received `count` units."""
    hosts: dict[str, Host] = {}
    a, b, us = Host("a", "eu", hosts), Host("b", "eu", hosts), Host("us", "us", hosts)
    us.ownership.start([SHARD])
    us.engine.merge_remote("eu", [KEY], [[NUMBER, count]], NOW)
    return a, b, us


def test_recovered_counts_are_added_to_later_admissions() -> None:
    a, _, us = two_empty_and_one_full(100)
    a.ownership.start([SHARD])
    a.spend(20)
    a.send_counts(us)
    a.ask("us")
    a.ask("us")

    assert a.used == 120
    a.send_counts(us)
    assert us.used == 120


def test_a_node_that_received_the_shard_before_the_answer_requests_the_counts() -> None:
    a, b, _ = two_empty_and_one_full(100)
    a.ownership.start([SHARD])
    a.ownership.held[SHARD] = False
    b.engine.charge([KEY], [20], [0], NOW)
    b.ownership.held[SHARD] = True
    a.ask("us")
    b.ask("us")

    assert (a.used, b.used) == (0, 120)


def test_shards_that_another_node_continues_are_not_requested_again() -> None:
    a, b, _ = two_empty_and_one_full(100)
    a.ownership.start([SHARD, SHARD + 1])
    a.ownership.held[SHARD] = False
    b.ownership.held[SHARD] = True

    a.ask("us")
    a.asked.clear()
    a.ask("us")

    assert a.asked == [("us", [SHARD + 1])]  # `us` does not hold this shard.


def test_shards_that_no_other_node_holds_yet_are_passed_on_later() -> None:
    a, b, _ = two_empty_and_one_full(100)
    a.ownership.start([SHARD])
    a.ownership.held[SHARD] = False
    a.recovery.ask(Ring.of([Member(NodeId("b"))]), {"us": Ring.of([Member(NodeId("us"))])})
    a.waiting.pop()()

    b.ownership.held[SHARD] = True
    a.ask("us")
    assert a.asked == [("b", [SHARD])] * 2
    a.ask("us")
    assert a.asked == [("b", [SHARD])] * 2


def test_an_owner_has_one_request_at_a_time() -> None:
    a, _, us = two_empty_and_one_full(100)
    us.ownership.held[SHARD] = False
    a.ownership.start([SHARD])
    rings = Ring.of([Member(NodeId("a"))]), {"us": Ring.of([Member(NodeId("us"))])}

    for _ in range(2):
        a.recovery.ask(*rings)
    assert len(a.waiting) == 1
    a.waiting.pop()()
    a.recovery.ask(*rings)

    assert a.asked == [("us", [SHARD])] * 2


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("slots_ago", [0, 1, 3])
def test_recovered_units_are_charged_in_their_part_of_the_window(
    slots: int, slots_ago: int
) -> None:
    limit = Limit(1000, 3600.0, slots=slots)
    hosts: dict[str, Host] = {}
    a, us = Host("a", "eu", hosts, limit), Host("us", "us", hosts, limit)
    us.ownership.start([SHARD])
    slot = slots * NUMBER - slots_ago
    us.engine.merge_remote("eu", [KEY], [[slot, 5]], NOW)
    a.ownership.start([SHARD])

    a.ask("us")

    is_active = slots_ago <= slots
    assert a.engine.local_counts([KEY], NOW) == [[slot, 5] if is_active else []]


def test_the_larger_count_of_two_data_centers_is_recovered() -> None:
    a, _, us = two_empty_and_one_full(100)
    ap = Host("ap", "ap", us._hosts)
    ap.ownership.start([SHARD])
    ap.engine.merge_remote("eu", [KEY], [[NUMBER, 97]], NOW)
    a.ownership.start([SHARD])
    a.ask("us", "ap")

    assert a.used == 100


def test_a_node_that_does_not_hold_the_shard_yet_is_asked_again() -> None:
    a, _, us = two_empty_and_one_full(100)
    us.ownership.held[SHARD] = False
    a.ownership.start([SHARD])
    a.ask("us")
    assert a.used == 0

    us.ownership.held[SHARD] = True
    a.ask("us")
    assert a.used == 100


def test_an_answer_is_bounded_and_the_other_shards_are_requested_again() -> None:
    _, _, us = two_empty_and_one_full(100)
    us.ownership.start([SHARD + 1])
    received = DigestedCounts(lambda key: SHARD + (key == KEY))
    keys = [KEY[:8] + b"%d" % number for number in range(3000)]
    [cells] = us.engine.remote_counts("eu", [KEY], NOW)
    us.engine.merge_remote("eu", keys, [cells] * len(keys), NOW)
    for key in (*keys, KEY):
        received.put(key, cells)
    reply = us.recovery.answer("eu", RecoverCounts(1, [SHARD, SHARD + 1]), received)

    assert isinstance(reply, RecoverCountsReply)
    assert (reply.shards, len(reply.keys)) == ([SHARD], 1000)
