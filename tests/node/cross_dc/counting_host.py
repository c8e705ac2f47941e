"""Nodes of several data centers that exchange counts over links in memory, for tests."""

from collections.abc import Callable
from random import Random
from typing import cast

from hashring import Member, NodeId, View
from node.cross_dc.counts import CrossDcCounts
from node.cross_dc.global_keys import GlobalKeys
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from ringfence.limiter import Engine
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.rules import Rule
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import (
    Batch,
    Digest,
    Message,
    Op,
    RecoverCounts,
    Results,
    Source,
    WindowCounts,
    decode,
    encode,
)
from tests.node.cluster import CONTAINMENT

MS = 1_000_000
SECOND = 1_000_000_000
DAY = 86_400 * SECOND
NOW = 20_000 * DAY
WINDOW = 20_000
"""Number of the window at `NOW`."""
RULES_TEXT = """
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 50, algorithm: fixed_window, scope: global}
  - key: part
    rate_limit: {unit: day, requests_per_unit: 10, algorithm: fixed_window, global: {mode: split}}
  - key: home
    rate_limit: {unit: day, requests_per_unit: 10, global: {mode: home, home: us}}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: fixed_window}
  - key: quota
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: fixed_window}
"""
RULES = load_text(RULES_TEXT).rules
USER, PART, HOME, SHADOW, QUOTA = RULES.rules()
MEMBERS = {"e1": "eu", "u1": "us", "u2": "us", "p1": "ap"}


def key_of_rule(rule: Rule, value: int) -> bytes:
    return encode_key(rule.id, [str(value)])


def key_of(value: int) -> bytes:
    return key_of_rule(USER, value)


def part_of(value: int) -> bytes:
    return key_of_rule(PART, value)


def view_of(*names: str) -> View:
    return View.of([Member(NodeId(name), MEMBERS[name]) for name in names])


class CountingHost:
    """Node whose messages to other data centers are recorded; the test may delay the replies."""

    def __init__(self, name: str, others: "dict[str, CountingHost] | None" = None) -> None:
        self.datacenter = MEMBERS[name]
        self.others = {} if others is None else others
        self.others[name] = self
        self.now = NOW
        self.is_linked = True
        self.random = Random(1)
        self.sent: list[tuple[str, Message]] = []
        """Messages with the names of their receivers."""
        self.pending: list[Callable[[object], None]] | None = None
        """Callbacks of messages that the test answers later; None when messages arrive at once."""
        self.engine = Engine(max_keys=10_000)
        self.counters = Counters()
        self.keys = GlobalKeys(self.engine, self.time, self.time)
        self.ownership = ShardOwnership(
            *(NodeId(name), self.engine, Counters(), lambda key: DAY),
            *(self.keys.on_arrived, lambda shards: None),
            max_keys=10_000,
        )
        self.counts = CrossDcCounts(
            *(self.datacenter, self.engine, self.ownership, self.counters, self._link_to),
            *(self.keys, self.time, self.time, self.random, CONTAINMENT),
        )
        self.counts.set_rules(RULES)

    def time(self) -> int:
        return self.now

    def see(self, *names: str) -> None:
        """Set the members."""
        self.counts.set_view(view_of(*names), view_of(*names))

    def spend(self, *keys: bytes, units: int = 1) -> list[int]:
        """Check keys; return the codes."""
        batch = Batch(Op.CHECK, [*keys], [units] * len(keys))
        outcomes = decide_batch(self.engine, batch, self.now)
        self.ownership.record_decided(batch, outcomes, self.now)
        self.keys.on_decided(batch, Results(outcomes, [Source.OWNER] * len(keys)))
        return outcomes.codes

    def flush(self, *, are_all_due: bool = False) -> None:
        """Send changed counts, in one go."""
        for _ in self.counts.flush(are_all_due=are_all_due):
            pass

    def send_digests(self) -> None:
        """Forget expired counts, and send digests."""
        for _ in self.keys.forget_expired():
            pass
        for _ in self.counts.send_digests():
            pass

    def used(self, *keys: bytes) -> list[int]:
        return [self.engine.used(key, self.now) for key in keys]

    def count(self, name: str) -> int:
        return self.counters.as_dict()[name]

    def sent_keys(self, receiver: str | None = None) -> list[list[bytes]]:
        """Return the keys of each message with counts since the last call."""
        found = [
            message.keys
            for to, message in self.sent
            if isinstance(message, WindowCounts) and receiver in (None, to)
        ]
        self.sent.clear()
        return found

    def digests(self) -> list[list[int]]:
        """Return the shards of each digest since the last call."""
        found = [message.shards for _, message in self.sent if isinstance(message, Digest)]
        self.sent.clear()
        return found

    def answer(self, reply: object) -> None:
        """Answer the oldest pending message."""
        assert self.pending is not None
        self.pending.pop(0)(reply)

    def _link_to(self, name: NodeId) -> Link | None:
        return cast(Link, _Way(self, name)) if self.is_linked else None


class _Way:
    """Link from a node to a member."""

    def __init__(self, host: CountingHost, name: NodeId) -> None:
        self._host = host
        self._name = name

    def call(self, make: Callable[[int], Message], on_reply: Callable[[object], None]) -> None:
        message = decode(encode(make(1)))
        host = self._host
        host.sent.append((self._name, message))
        if host.pending is not None:
            host.pending.append(on_reply)
            return
        there = host.others[self._name].counts
        match message:
            case WindowCounts():
                on_reply(there.receive_counts(host.datacenter, message))
            case Digest():
                on_reply(there.receive_digest(host.datacenter, message))
            case RecoverCounts():
                on_reply(there.receive_recovery_request(host.datacenter, message))
            case _:
                raise AssertionError(message)


def pair() -> tuple[CountingHost, CountingHost]:
    """Return a node in each of two data centers that know each other."""
    hosts: dict[str, CountingHost] = {}
    eu, us = CountingHost("e1", hosts), CountingHost("u1", hosts)
    eu.see("e1", "u1")
    us.see("e1", "u1")
    return eu, us


def alone(*others: str) -> CountingHost:
    """Return a node whose messages to members of other data centers wait for an answer."""
    host = CountingHost("e1")
    host.pending = []
    host.see("e1", *others)
    return host
