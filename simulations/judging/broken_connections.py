"""Connections that broke without a fault, and the answers that this explains.

A standby decides when neither the asking side nor the standby itself reaches the owner. The failure
policy decides when one asking member reaches neither the owner nor the standby.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from ringfence.peering.link import LinkSettings
from ringfence.peering.routing.hedging import MIN_MARGIN
from ringfence.wire import BY_POLICY, Source
from simulations.judging.ledger import Answered
from simulations.scenarios.latency import delay_s

__all__ = ["BrokenConnections", "Deciders", "Reset"]

_RECONNECT_S = 4 * LinkSettings().min_backoff
"""Longest pause of a link after its third break without an answer in between.

The first attempt to reconnect is made at once. The later pauses are at most two and four times the
minimum."""
_JOIN_S = 0.25
"""Seconds after the start of a run until the nodes connect to other data centers."""
_HANDSHAKE_DELAYS = 4
"""One-way delays until a new connection can be used: one round trip of the transport, and one of
`Hello` and `Welcome`."""
_LONGEST_DELAY = 1.5
"""Longest delay of a datagram, as a multiple of the delay of an idle path; see `draw_delay_s`."""


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
    """In the order of their times."""
    datacenters: Mapping[str, str] = field(default_factory=dict)
    """Data center of each node, by the node's name."""
    deciders_of: Callable[[str, str, str], Iterable[Deciders]] = lambda *_: ()
    """Returns owner and standby by data center of the client, rule and key. A key has several while
    a node is away from the cluster."""
    latency: str = "zero"
    """Preset of the delays between hosts; see `delay_s`."""

    def explain(self, rule: str, answer: Answered, *, may_borrow: bool) -> bool:
        """Return whether a standby or the failure policy gave this answer because of breaks near
        the check.

        For a standby, a connection between the owner and the client, or a node that forwards for
        the client, must have broken. So must one between the owner and the standby, which asks the
        owner first. For the failure policy, the client or one such node must have lost both. A node
        that waits for its connections counts as busy, so the source may also be `SHED`.

        With `may_borrow`, the owner may wait for units of another data center. Then the client asks
        the standby as well, without a break, when the answer takes longer than a hedging delay.
        """
        is_hedged = may_borrow and answer.answered_at - answer.asked_at >= MIN_MARGIN
        if answer.source not in (Source.STANDBY, Source.LOCAL, *BY_POLICY):
            return False
        nodes = {name for name, where in self.datacenters.items() if where == answer.datacenter}
        for deciders in self.deciders_of(answer.datacenter, rule, answer.key):
            owner, standby = deciders
            askers = {answer.client, *nodes}
            if answer.source is Source.STANDBY:
                is_lost = (
                    standby is not None
                    and self.has_lost(owner, standby, answer)
                    and (
                        is_hedged
                        or any(
                            self.has_lost(owner, each, answer) for each in askers - {owner, standby}
                        )
                    )
                )
            else:
                is_lost = any(
                    all(self.has_lost(name, each, answer) for name in deciders)
                    for each in askers - {owner, standby}
                )
            if is_lost:
                return True
        return False

    def has_lost(self, decider: str | None, other: str, answer: Answered) -> bool:
        """Return whether a decider and another host may have had no connection during a check.

        Their connection broke during the check, or shortly before it. A connection to another data
        center does not exist yet at the start of a run.
        """
        if decider is None:
            return True
        one, two = (self.datacenters.get(name, answer.datacenter) for name in (decider, other))
        connect_s = 0.0
        if one != two:
            delay = delay_s(self.latency, (one, ""), (two, ""))
            connect_s = _HANDSHAKE_DELAYS * _LONGEST_DELAY * delay
            if answer.asked_at <= _JOIN_S + connect_s:
                return True
        first, last = answer.asked_at - _RECONNECT_S - connect_s, answer.answered_at
        hosts = frozenset((decider, other))
        return any(first <= reset.at <= last and reset.hosts == hosts for reset in self.resets)

    def is_near(self, hosts: Collection[str], begin: float, end: float) -> bool:
        """Return whether two of some hosts may have had no connection between two instants.

        Their connection broke in this time, or shortly before it.
        """
        first = bisect_left(self.resets, begin - _RECONNECT_S, key=itemgetter(0))
        last = bisect_right(self.resets, end, key=itemgetter(0))
        return any(reset.hosts.issubset(hosts) for reset in self.resets[first:last])
