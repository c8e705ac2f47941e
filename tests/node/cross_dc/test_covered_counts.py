"""Counts of a standby that another data center receives, without any network."""

from collections.abc import Callable
from random import Random
from typing import cast

from hashring import Member, NodeId, View, shard_of
from node.cross_dc.counts import CrossDcCounts
from node.cross_dc.global_keys import GlobalKeys
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Engine
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Batch, Done, Message, Op, Pull, WindowCounts
from tests.node.cluster import CONTAINMENT

SECOND = 1_000_000_000
NOW = 1_800_000_000 * SECOND
RULES = load_text("""
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 50, algorithm: fixed_window, scope: global}
""").rules
[RULE] = RULES.rules()
KEY = encode_key(RULE.id, ["x"])
SHARD = shard_of(KEY)


class Host:
    """Node in the data center `eu` whose messages to `us` are recorded."""

    def __init__(self, name: str) -> None:
        self.name = NodeId(name)
        self.now = NOW
        self.sent: list[int] = []
        """Units of the key in each message."""
        self.engine = Engine(max_keys=100)
        self.keys = GlobalKeys(self.engine, lambda: self.now, lambda: self.now)
        self.ownership = ShardOwnership(
            *(self.name, self.engine, Counters(), lambda key: 86_400 * SECOND),
            *(self.keys.on_arrived, lambda shards: None),
            max_keys=100,
        )
        self.counts = CrossDcCounts(
            *("eu", self.engine, self.ownership, Counters()),
            *(lambda name: cast(Link, self), self.keys, lambda: self.now, lambda: self.now),
            *(Random(1), CONTAINMENT),
        )
        self.counts.set_rules(RULES)
        view = View.of([Member(NodeId("e1"), "eu"), Member(NodeId("u1"), "us")])
        self.counts.set_view(view, view)

    def call(self, make: Callable[[int], Message], on_reply: Callable[[object], None]) -> None:
        message = make(1)
        assert isinstance(message, WindowCounts)
        self.sent += [cells[1] for cells in message.cells]
        on_reply(Done(1))

    def flush(self) -> None:
        for _ in self.counts.flush():
            pass

    def spend(self, units: int) -> None:
        batch = Batch(Op.CHECK, [KEY], [units])
        self.ownership.record_decided(batch, decide_batch(self.engine, batch, self.now), self.now)
        self.keys.on_arrived([KEY])


def test_a_standby_sends_no_counts_that_the_owner_may_have_too() -> None:
    owner, standby = Host("e1"), Host("e2")
    owner.ownership.start([SHARD])
    standby.ownership.take_over(SHARD, owner.name, [], NOW)
    owner.spend(5)
    standby.spend(5)  # The same checks, which callers sent to both.

    standby.ownership.keep_replica(owner.name, owner.ownership.snapshot([KEY], NOW), NOW)
    standby.flush()
    assert (standby.engine.used(KEY, NOW), standby.sent) == (10, [])

    standby.now += 6 * SECOND  # The owner has not fetched the shard, so it may be unreachable.
    standby.flush()
    assert standby.sent == [5]  # A merge would remove the other units.


def test_a_standby_sends_possible_duplicates_when_the_owner_does_not_return() -> None:
    owner, standby = Host("e1"), Host("e2")
    owner.ownership.start([SHARD])
    standby.ownership.take_over(SHARD, owner.name, [], NOW)
    owner.spend(5)
    standby.spend(7)  # Five of them are the owner's checks, too.
    standby.ownership.keep_replica(owner.name, owner.ownership.snapshot([KEY], NOW), NOW)

    for seconds in (10, 20, 40):
        standby.now = NOW + seconds * SECOND
        standby.flush()

    assert standby.sent == [7, 7, 12]


def test_a_retaken_standby_sends_no_possible_duplicates() -> None:
    standby = retaken_standby()

    standby.now += 6 * SECOND
    standby.flush()

    assert standby.sent == [5]


def test_a_standby_sends_no_counts_while_an_overloaded_owner_sends_replicas() -> None:
    owner, standby = Host("e1"), Host("e2")
    owner.ownership.start([SHARD])
    standby.ownership.take_over(SHARD, owner.name, [], NOW)
    owner.spend(5)
    standby.spend(5)

    for seconds in (0, 3, 6, 9):  # The owner is too slow to fetch the shard.
        standby.now = NOW + seconds * SECOND
        replica = owner.ownership.snapshot([KEY], standby.now)
        standby.ownership.keep_replica(owner.name, replica, standby.now)
        standby.flush()

    assert standby.sent == []


def test_a_standby_whose_transfer_was_lost_sends_no_counts_of_the_owners_replica() -> None:
    standby = retaken_standby()

    standby.flush()

    assert (standby.engine.used(KEY, NOW), standby.sent) == (10, [])


def test_a_standby_sends_its_counts_while_the_owner_is_unreachable() -> None:
    standby = Host("e2")
    standby.ownership.take_over(SHARD, NodeId("e1"), [], NOW)
    standby.spend(5)

    standby.flush()

    assert standby.sent == [5]


def retaken_standby() -> Host:
    """Return a standby that has taken over a shard, answered the owner's pull of it, and taken it
    over again. It has the owner's replica of the same units."""
    owner, standby = Host("e1"), Host("e2")
    owner.ownership.start([SHARD])
    standby.ownership.take_over(SHARD, owner.name, [], NOW)
    owner.spend(5)
    standby.spend(5)
    standby.ownership.keep_replica(owner.name, owner.ownership.snapshot([KEY], NOW), NOW)
    sender = ShardSender(standby.ownership, standby.engine, Counters(), first_transfer=1)
    sender.index.start()
    sender.index.add([KEY])
    sender.answer(owner.name, Pull(1, [SHARD], 0), NOW, lambda shard: False)
    standby.ownership.take_over(SHARD, owner.name, [], NOW)
    return standby
