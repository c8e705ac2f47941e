"""Connections that broke without a fault, and the answers of standbys that this explains.

A standby decides when neither the asking side nor the standby itself reaches the owner.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ringfence.peering.link import LinkSettings
from ringfence.wire import Source
from simulations.judging.ledger import Answered

__all__ = ["BrokenConnections", "Deciders", "Reset"]

_RECONNECT_S = 4 * LinkSettings().min_backoff
"""Longest pause of a link after its third break without an answer in between: the first attempt to
reconnect is made at once, and the later pauses are at most two and four times the minimum."""


class Reset(NamedTuple):
    """One break of all connections between two hosts."""

    at: float
    """Seconds since the start of the load."""
    hosts: frozenset[str]
    """Names of the two hosts; a client is a host too."""


class Deciders(NamedTuple):
    """Nodes that decide a key, by name."""

    owner: str
    standby: str | None


@dataclass(slots=True)
class BrokenConnections:
    """Breaks of connections in a run, with the nodes that they may separate."""

    resets: list[Reset] = field(default_factory=list)
    datacenters: Mapping[str, str] = field(default_factory=dict)
    """Data center of each node, by the node's name."""
    deciders: dict[tuple[str, str, str], set[Deciders]] = field(default_factory=dict)
    """Owner and standby by data center of the client, rule and key. A key has several while a node
    is away from the cluster."""

    def explain(self, rule: str, answer: Answered) -> bool:
        """Return whether a standby gave this answer because of breaks near the check.

        A connection between the owner and the client, or a node that forwards for the client, must
        have broken. So must one between the owner and the standby, which asks the owner first.
        """
        if answer.source is not Source.STANDBY:
            return False
        for owner, standby in self.deciders.get((answer.datacenter, rule, answer.key), ()):
            nodes = {name for name, where in self.datacenters.items() if where == answer.datacenter}
            askers = {answer.client, *nodes} - {standby}
            if standby is not None and all(
                self._has_lost(owner, others, answer) for others in (askers, {standby})
            ):
                return True
        return False

    def _has_lost(self, owner: str, others: Iterable[str], answer: Answered) -> bool:
        """Return whether a connection between the owner and one of `others` broke during a check or
        so shortly before it that the link may still have been without a connection."""
        links = [frozenset((owner, other)) for other in others if other != owner]
        first, last = answer.asked_at - _RECONNECT_S, answer.answered_at
        return any(first <= reset.at <= last and reset.hosts in links for reset in self.resets)
