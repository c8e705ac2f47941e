"""Queries for information about a node: members, counters, denied keys, shards and sizes."""

from collections import Counter

from gossip import Membership
from hashring import NodeId, shard_of
from node.context.node_context import NodeContext
from node.membership.cluster_view import ClusterView, state_of
from node.membership.peer_links import PeerLinks
from node.metrics.detailed import Metrics, MetricsSwitch
from node.requests.handler import RequestHandler
from node.requests.sessions.open_sessions import OpenSessions
from node.shards.shard_counters import ShardCounters
from ringfence.limiter import NS_PER_SECOND
from ringfence.peering.link.calls import fetch_counters, fetch_throttled
from ringfence.wire import MemberRow, Members, Stats, Throttled
from ringfence.wire import Peers as PeersMessage

__all__ = ["NodeQueries"]


class NodeQueries:
    """Answers queries of clients, the command line and the admin port about one node."""

    def __init__(
        self,
        node: NodeContext,
        membership: Membership,
        cluster: ClusterView,
        links: PeerLinks,
        shards: ShardCounters,
        handler: RequestHandler,
        sessions: OpenSessions,
        metrics: MetricsSwitch,
    ) -> None:
        self._node = node
        self._membership = membership
        self._cluster = cluster
        self._links = links
        self._shards = shards
        self._handler = handler
        self._sessions = sessions
        self._metrics = metrics

    def members(self, seq: int) -> Members:
        """Return the message with the members of the cluster."""
        rows = [
            MemberRow(
                record.name,
                record.host,
                record.port,
                record.datacenter,
                record.zone,
                record.weight,
                state_of(record),
            )
            for _, record in sorted(self._membership.records.items())
        ]
        return Members(seq, self._cluster.view.hash, rows)

    def peers(self, seq: int) -> PeersMessage:
        """Return the message with everything that this node has recorded about the members."""
        rows: list[object] = []
        uptime, clock = self._node.running.uptime(), self._node.clock.cluster
        for name, record in sorted(self._membership.records.items()):
            is_me = name == self._node.name
            rtt_ns = None if is_me else self._membership.rtt_ns(name)
            ring = self._cluster.view.ring(record.datacenter)
            rows.append(
                {
                    "name": name,
                    "host": record.host,
                    "port": record.port,
                    "datacenter": record.datacenter,
                    "zone": record.zone,
                    "weight": record.weight,
                    "state": state_of(record),
                    "state_for_s": (uptime - self._cluster.changed_at.get(name, 0)) / NS_PER_SECOND,
                    "generation": record.generation,
                    "incarnation": record.incarnation,
                    "version": record.version,
                    "owned_shards": ring.owned_count(NodeId(name)),
                    "rtt_ms": None if rtt_ns is None else rtt_ns / 1e6,
                    "clock_offset_ms": clock.offset_ns / 1e6 if is_me else None,
                    "clock_suspect": clock.is_suspect if is_me else None,
                }
            )
        return PeersMessage(seq, rows)  # type: ignore[arg-type]

    def stats(self, seq: int) -> Stats:
        """Return the counters and the current sizes: keys, shards, members, connections."""
        assert self._node.running.transport is not None
        counters = Counter(self._node.counters.as_dict())
        for cause, count in self._node.running.transport.refusals.items():
            counters[f"refused_{cause}"] += count
        for name, count in self._membership.counters.items():
            counters[f"gossip_{name}"] += count
        if self._cluster.gossip is not None:
            for cause, count in self._cluster.gossip.refused.items():
                counters[f"gossip_refused_{cause}"] += count
        for place, count in self._node.containment.by_place.items():
            counters[f"internal_errors_{place}"] += count
        counters.update(self._shards.cross_dc.stats())
        return Stats(
            seq,
            dict(counters)
            | {
                "connections": len(self._sessions),
                "unsent_bytes": self._sessions.unsent.total,
                "slot_waiters": len(self._handler.slots),
                "slot_waiters_refused": self._handler.slots.refused,
                "copied_keys": len(self._shards.ownership.replicas),
                "keys_to_copy": self._shards.replication.backlog,
                "copy_age_ms": self._shards.replication.age_ms,
                "evicted": self._shards.engine.evicted,
                "gossip_health": self._membership.health,
                "keys": len(self._shards.engine),
                "held_shards": self._shards.ownership.count,
                "owned_shards": self._shards.handoff.owned_count,
                "rules_version": self._node.rules.current.version,
                "rules_hash": self._node.rules.hash,
                "rules_refused": int(bool(self._node.rules.refusal)),
            },
        )

    def staleness(self) -> dict[str, int]:
        """Return the counters of `stats` about the age of counts for other data centers."""
        return self._shards.cross_dc.stats()

    def throttled(self, seq: int, count: int) -> Throttled:
        """Return the keys and the rules that this node denied most."""
        measures = self.measure()
        most = measures.throttled.most(count)
        rules = measures.most_denied_rules()
        return Throttled(
            seq,
            measures.throttled.total,
            [each.key for each in most],
            [each.denied for each in most],
            [each.error for each in most],
            [rule for rule, _ in rules],
            [number for _, results in rules for number in results],
            (self._node.running.uptime() - self._metrics.began) // NS_PER_SECOND,
        )

    async def counters_of(self, name: str) -> dict[str, int] | None:
        """Return the counters of a member; None when it does not answer."""
        if name == self._node.name:
            return self.stats(1).counters
        link = self._links.link(NodeId(name))
        return None if link is None else await fetch_counters(link)

    async def throttled_of(self, name: str, count: int) -> Throttled | None:
        """Return the keys that a member denied most; None when it does not answer."""
        if name == self._node.name:
            return self.throttled(1, count)
        link = self._links.link(NodeId(name))
        return None if link is None else await fetch_throttled(link, count)

    def held_map(self) -> bytes:
        """Return one byte per shard: 1 if this node holds the shard, else 0."""
        return bytes(self._shards.ownership.held)

    def held_states(self) -> bytes:
        """Return one byte per shard: the state in which this node holds the shard, else 0."""
        return self._shards.ownership.held_states()

    def used(self, key: bytes) -> int | None:
        """Return the used units of a key, including those above its limit; None when another node
        holds its shard."""
        is_here = self._shards.ownership.held[shard_of(key)]
        return self._shards.engine.used(key, self._node.clock.now()) if is_here else None

    def measure(self) -> Metrics:
        """Turn on the detailed metrics: decisions by rule, times, and denied keys."""
        return self._metrics.turn_on(self._node.rules.current, self._node.running.uptime())
