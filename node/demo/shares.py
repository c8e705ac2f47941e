"""Number of checks that each node decided in the demo, counted by the client.

The client counts, so the checks of a killed node are included. Each decision has the role of its
decider (such as owner or standby). The ring gives the node with that role for the key.
"""

from collections.abc import Mapping

from msgspec import Struct

from hashring import NodeId, Ring
from ringfence.client.decision import Decision
from ringfence.wire import Source

__all__ = ["CLIENT", "NO_NODE", "Share", "Shares", "total_of"]

CLIENT = "client"
"""The client decides with cached denials and leases."""
NO_NODE = "no node"
"""No node answered in time; the rule's `on_failure` decided."""
_TAKEN_OVER_AFTER = 1.0
"""Seconds from a node's death to the earliest decision of the new owner of its keys. Members need
two seconds to declare it dead; the last answers of the dead node itself arrive within much less."""


class Share(Struct):
    """Number of checks that one node decided in each role."""

    checks: int = 0
    allowed: int = 0
    denied: int = 0
    as_standby: int = 0
    """Decided in place of an owner that did not answer."""


def total_of(shares: Mapping[str, Share]) -> Share:
    """Return the sum of the checks in all shares."""
    return Share(
        sum(share.checks for share in shares.values()),
        sum(share.allowed for share in shares.values()),
        sum(share.denied for share in shares.values()),
        sum(share.as_standby for share in shares.values()),
    )


class Shares:
    """Checks decided by each node and by the client itself, and checks without a decision."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._dead: NodeId | None = None
        self._died_at = 0.0
        self.by_name: dict[str, Share] = {}

    def died(self, name: str, now: float) -> None:
        """Record that a node was killed; the demo kills at most one."""
        self._dead, self._died_at = NodeId(name), now

    def add(self, decision: Decision, shard: int, received: float) -> None:
        """Count the decision of a check on a key of the given shard, received at the given time."""
        source = decision.source
        share = self.by_name.setdefault(self._decider(source, shard, received), Share())
        share.checks += 1
        share.allowed += decision.allowed
        share.denied += not decision.allowed
        share.as_standby += source is Source.STANDBY

    def _decider(self, source: Source, shard: int, received: float) -> str:
        if source in (Source.CACHE, Source.LEASE):
            return CLIENT
        if source not in (Source.OWNER, Source.STANDBY):
            return NO_NODE
        owner, *others = self._ring.owners(shard, 3)
        alive = [name for name in others if name != self._dead]
        if source is Source.STANDBY:
            return alive[0] if alive else owner
        if owner == self._dead and received > self._died_at + _TAKEN_OVER_AFTER and alive:
            return alive[0]
        return owner
