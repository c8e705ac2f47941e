"""Recovery of counts that this data center lost, from other data centers.

Decides when to request the counts and how to charge them. `gossip.cross_dc.lost_counts` computes
the missing units.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from gossip.cross_dc.digested_counts import DigestedCounts
from gossip.cross_dc.lost_counts import LostCounts
from hashring import NodeId, Ring, shard_of
from node.shards.ownership.ownership import ShardOwnership
from ringfence.limiter import NS_PER_SECOND, Engine, Limit
from ringfence.peering.link import Link
from ringfence.wire import RecoverCounts, RecoverCountsReply

__all__ = ["CountRecovery"]

_KEYS_PER_ANSWER = 1000
"""Maximum keys of one shard, and of all but the last shard of an answer."""


class CountRecovery:
    """Requests lost counts of shards that started without counters from other data centers; answers
    such requests."""

    def __init__(
        self,
        engine: Engine,
        ownership: ShardOwnership,
        link_to: Callable[[NodeId], Link | None],
        clock: Callable[[], int],
        limit_of: Callable[[bytes], Limit | None],
        lost: LostCounts,
    ) -> None:
        """`limit_of` returns the limit of a key if its rule applies across data centers."""
        self._engine = engine
        self._ownership = ownership
        self._link_to = link_to
        self._clock = clock
        self._limit_of = limit_of
        self._lost = lost
        self._asked: set[NodeId] = set()
        """Owners with a request in flight: each has one at a time."""

    def ask(self, here: Ring, elsewhere: Mapping[str, Ring]) -> None:
        """Request the missing counts of shards from their owners in other data centers.

        When a shard was transferred, its new owner continues the request.
        """
        held = self._ownership.held
        for datacenter, ring in elsewhere.items():
            wanted = self._lost.to_request(datacenter)
            if not wanted:
                continue
            given = [shard for shard in wanted if not held[shard]]
            passed_on = self._lost.unanswered(given)
            self._lost.stop(set(given) - set(passed_on))
            if here.members:
                self._ask_owners("", here, passed_on)
            if not self._asked.issuperset([member.name for member in ring.members]):
                self._ask_owners(datacenter, ring, [shard for shard in wanted if held[shard]])

    def _ask_owners(self, datacenter: str, ring: Ring, shards: Iterable[int]) -> None:
        owners, asked = ring.owner_by_shard, self._asked
        by_owner: defaultdict[NodeId, list[int]] = defaultdict(list)
        for shard in shards:
            if owners[shard] not in asked:
                by_owner[owners[shard]].append(shard)
        for owner, theirs in by_owner.items():
            link = self._link_to(owner)
            if link is not None:
                self._ask(link, datacenter, owner, theirs)

    def _ask(self, link: Link, datacenter: str, owner: NodeId, shards: list[int]) -> None:
        """Request lost counts from a shard's owner. An owner in this data center ("") continues the
        request instead."""
        self._asked.add(owner)

        def on_reply(reply: object) -> None:
            self._asked.discard(owner)
            if isinstance(reply, RecoverCountsReply) and not datacenter:
                self._lost.stop(reply.shards)
            elif isinstance(reply, RecoverCountsReply):
                self._count(reply)
                self._lost.on_answer(datacenter, reply.shards)
                answered = set(reply.shards)
                left = [shard for shard in shards if shard not in answered]
                if answered and left:
                    self._ask(link, datacenter, owner, left)

        link.call(lambda seq: RecoverCounts(seq, shards), on_reply)

    def _count(self, reply: RecoverCountsReply) -> None:
        """Charge counts that other data centers returned to the local counters, with the age of
        their window."""
        now = self._clock()
        rows: dict[bytes, list[int]] = {}
        for key, own, remembered in zip(
            reply.keys, self._engine.local_counts(reply.keys, now), reply.cells, strict=True
        ):
            limit = self._limit_of(key)
            if limit is None or not self._ownership.held[shard_of(key)]:
                continue
            for number, units in self._lost.missing(key, own, remembered):
                rows.setdefault(key, []).extend((_age_ns(limit, number, now), units))
        self._ownership.restore_lost(rows, now)

    def take_over_request(self, message: RecoverCounts) -> RecoverCountsReply:
        """Continue the requests for lost counts of shards that a peer in this data center has
        transferred here."""
        shards = [shard for shard in message.shards if self._ownership.held[shard]]
        self._lost.start(shards)
        return RecoverCountsReply(message.seq, shards, [], [])

    def answer(
        self, writer: str, message: RecoverCounts, received: DigestedCounts
    ) -> RecoverCountsReply:
        """Return to the data center `writer` the counts that this node received from it earlier.

        `received` are the counts of this data center. Shards that this node does not hold are
        omitted. So are shards that do not fit into the message; the other data center requests them
        again.
        """
        held = self._ownership.held
        shards = [shard for shard in message.shards if held[shard]]
        keys: list[bytes] = []
        for at, shard in enumerate(shards):
            if len(keys) >= _KEYS_PER_ANSWER:
                del shards[at:]
                break
            keys += islice(received.keys_of(shard), _KEYS_PER_ANSWER)
        cells = self._engine.remote_counts(writer, keys, self._clock())
        known = [(key, row) for key, row in zip(keys, cells, strict=True) if row]
        return RecoverCountsReply(
            message.seq, shards, [key for key, _ in known], [row for _, row in known]
        )


def _age_ns(limit: Limit, number: int, now: int) -> int:
    """Return the time since the end of a window, or since the start of a calendar window."""
    if limit.calendar is not None:
        return max(0, now - number * NS_PER_SECOND)
    return max(0, now - (number + 1) * (limit.period_ns // limit.slots) + 1)
