"""Node that replicates to the members of a ring, over links on which the test answers."""

from collections.abc import Callable
from typing import cast

from hashring import NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.replication import Replication
from ringfence.peering.link import Link
from ringfence.wire import Copy, Done, decode, encode
from tests.node.cluster import CONTAINMENT
from tests.node.shards.transfer_peers import NOW, RULE, A, Peer, ring

MS = 1_000_000
MANY = [RULE.to_bytes(8, "big") + b"%06d" % number for number in range(9000)]


class Links:
    """Links to all members, on which the test answers."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, Copy]] = []
        self.pending: list[Callable[[object], None]] = []
        self._receivers: list[NodeId] = []
        """Receivers of the pending frames."""
        self.are_down = False
        self.fail_at_once = False

    def to(self, name: NodeId) -> Link | None:
        return None if self.are_down else cast(Link, _Way(self, name))

    def wait_for(self, receiver: NodeId, on_reply: Callable[[object], None]) -> None:
        self._receivers.append(receiver)
        self.pending.append(on_reply)

    def answer(self, reply: object, place: int = 0) -> None:
        self._receivers.pop(place)
        self.pending.pop(place)(reply)

    def answer_all(self, except_of: NodeId | None = None) -> None:
        for place in reversed(range(len(self.pending))):
            if self._receivers[place] != except_of:
                self.answer(Done(1), place)

    def take(self) -> list[tuple[NodeId, list[bytes]]]:
        """Return the receiver and the keys of each frame since the last call."""
        found = [(to, copy.counts.unpack().keys) for to, copy in self.sent]
        self.sent.clear()
        return found


class _Way:
    def __init__(self, links: Links, name: NodeId) -> None:
        self._links = links
        self._name = name

    def call(self, make: Callable[[int], Copy], on_reply: Callable[[object], None]) -> None:
        copy = decode(encode(make(1)))
        assert isinstance(copy, Copy)
        self._links.sent.append((self._name, copy))
        if self._links.fail_at_once:
            on_reply(None)
            return
        self._links.wait_for(self._name, on_reply)


class World:
    """Node with its replication to the members of a ring."""

    def __init__(self, *members: NodeId, me: NodeId = A) -> None:
        self.now = NOW
        self.owner = Peer(me)
        self.links = Links()
        self.counters = Counters()
        self.replication = Replication(
            *(me, self.owner.ownership, self.owner.sender, self.owner.engine, self.counters),
            *(self.links.to, lambda: self.now, CONTAINMENT),
            max_keys=100_000,
        )
        self.second = self.replication._second
        if members:
            self.replication.on_ring_change(ring(), *[ring(*members)] * 2)
            self.replication.shards_with_new_standby()

    def hold(self, *keys: bytes) -> None:
        self.owner.ownership.start(dict.fromkeys(map(shard_of, keys)))

    def fill(self, *keys: bytes, hits: int) -> None:
        """Mark keys with hits at different instants as changed; each hit takes about 4 bytes."""
        self.hold(*keys)
        for key in keys:
            ages_ns = [10 * MS * number for number in range(hits, 0, -1)]
            self.owner.engine.charge([key] * hits, [1] * hits, ages_ns, NOW)
        self.owner.ownership.changed.update(keys)

    def spend(self, *keys: bytes) -> None:
        for key in keys:
            self.owner.spend(key)

    def round(self) -> int:
        """Send all changes; return the number of steps."""
        return sum(1 for _ in self.replication.send_changes())

    def count(self, name: str) -> int:
        return self.counters.as_dict()[name]


def held_by(owner: NodeId, standby: NodeId, of_ring: Ring) -> bytes:
    """Return a key with the given owner and standby."""
    return next(
        key
        for key in MANY
        if (of_ring.owner(shard_of(key)), of_ring.standby(shard_of(key))) == (owner, standby)
    )
