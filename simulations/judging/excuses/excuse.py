"""Excuses: when, where and why a decision need not be the decision of one exact counter.

An excuse is a value. It names its reason, its fault, the data centers and hosts that the fault
affects, and its interval. A decision outside of every excuse is judged exactly.

The interval begins with the fault. It ends when the world has observed that all shards of the data
center are on their usual owners again. At the latest, it ends a stated settling time after the
fault. Faults that overlap with this time extend it, since they may delay the recovery.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from simulations.judging.allowed_loss import (
    LINK_FAULTS,
    affected_hosts,
    hosts_of,
    is_strong,
    members_of,
)
from simulations.judging.disturbance import Disturbances
from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.scenario import Fault, Scenario

__all__ = [
    "NEWS_S",
    "REASONS",
    "REASON_OF",
    "SETTLING_S",
    "Excuse",
    "Place",
    "excuses_of",
    "until_of",
]

SETTLING_S = 30.0
"""Seconds after a fault in which its data center must have settled."""
NEWS_S = 1.0
"""Seconds after the observed settling until clients have the new members, and until answers that
were under way have arrived."""
_SPLITTING = ("cut", "clog", "pause", "slow", "spikes", "busy", "reset", "clock_step")
"""Faults during which two members may decide for one counter."""

REASONS = {
    "owner_away": "a node crashed, left or was suspended: its standby decides",
    "links": "messages are lost, late or held: the owner may be unreachable, or two members decide",
    "busy": "a host is slow: callers do not wait for it",
    "errors": "a node fails to handle requests, because a fault raises errors",
    "limits": "the limit changes around the check, or another node with lower limits may decide",
    "clock": "the clock of a host is wrong until the other members distrust or correct it",
    "divided": "the part of the asking data center is used up, but another may have unused units",
    "break": "connections broke around the check: a standby or the failure policy decides",
}
"""Reasons of excuses, with their meaning."""
REASON_OF = {
    **dict.fromkeys(("crash", "leave", "pause", "stall"), "owner_away"),
    **dict.fromkeys(LINK_FAULTS, "links"),
    "busy": "busy",
    "errors": "errors",
    "clock_step": "clock",
    "clock_drift": "clock",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a counter: its data center, its shard, and the hosts that may decide it.

    The owner is the first of the hosts. The standbys follow in their order.
    """

    datacenter: str
    shard: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Excuse:
    """Permission to differ from an exact counter, with reason, scope and interval."""

    reason: str
    """Name in `REASONS`."""
    fault: Fault
    datacenter: str
    hosts: frozenset[str]
    """Hosts that the fault affects directly."""
    reach: int
    """Number of hosts of a counter, the owner first, among which an affected one matters."""
    begin: float
    end: float

    @property
    def is_splitting(self) -> bool:
        """Return whether a second member may admit the whole limit again."""
        return (
            self.fault.verb in _SPLITTING
            or "seedless" in self.fault.args
            or "share" in self.fault.args
        )

    @property
    def is_alone(self) -> bool:
        """Return whether the affected host decides nothing meanwhile, so that one member decides
        each of its counters."""
        return self.fault.verb in ("crash", "leave") and "seedless" not in self.fault.args

    def concerns(self, place: Place, client_host: str = "") -> bool:
        """Return whether the excuse concerns a counter, or the client on `client_host`."""
        return place.datacenter == self.datacenter and (
            client_host in self.hosts or not self.hosts.isdisjoint(place.hosts[: self.reach])
        )


def excuses_of(scenario: Scenario, disturbances: Disturbances) -> Iterable[Excuse]:
    """Yield the excuses that the faults of a run grant."""
    strong = [each for each in scenario.faults if is_strong(each) or each.verb == "clock_step"]
    for fault in strong:
        for datacenter, hosts in sorted(affected_hosts(fault, scenario).items()):
            others = [
                other
                for other in strong
                if other is not fault and datacenter in affected_hosts(other, scenario)
            ]
            if fault.verb == "leave" and not _is_abrupt(fault, others, datacenter, scenario):
                continue  # A graceful leave transfers its shards, so every decision is exact.
            end = _end(fault, others, datacenter, disturbances)
            beside = [
                other
                for other in others
                if other.at <= end and until_of(other) >= fault.at - SETTLING_S
            ]
            reach = 2 + len({name for other in beside for name in hosts_of(other, scenario)})
            begin, reason = fault.at, REASON_OF[fault.verb]
            if "seedless" in fault.args:  # Started alone, the node decides for all shards.
                begin = until_of(fault)
                yield Excuse(reason, fault, datacenter, hosts, reach, fault.at, begin)
                reach = scenario.nodes
            yield Excuse(reason, fault, datacenter, hosts, reach, begin, end)


def _is_abrupt(fault: Fault, others: Sequence[Fault], datacenter: str, scenario: Scenario) -> bool:
    """Return whether a leave is more than a transfer of shards.

    It leaves no member in the data center, or the node later starts without a seed.
    """
    gone = set(hosts_of(fault, scenario))
    for other in others:
        is_away = other.at <= until_of(fault) and fault.at <= until_of(other) + SETTLING_S
        if other.verb in ("crash", "leave") and is_away:
            gone.update(hosts_of(other, scenario))
    members = members_of(scenario)
    return "seedless" in fault.args or all(
        name in gone for name, where in members.items() if where[0] == datacenter
    )


def until_of(fault: Fault) -> float:
    """Return when a fault ends: infinity if it never ends, its begin if it has no duration."""
    if VERBS[fault.verb].end is None:
        return fault.at
    return inf if fault.until is None else fault.until


def _end(
    fault: Fault, others: Sequence[Fault], datacenter: str, disturbances: Disturbances
) -> float:
    """Return when the effects of a fault must have ended.

    This is at the observed settling, or at the stated time after the last overlapping fault.
    """
    latest = until_of(fault) + SETTLING_S
    for other in sorted(others, key=lambda other: other.at):
        if other.at <= latest:
            latest = max(latest, until_of(other) + SETTLING_S)
    return min(latest, disturbances.settled_after(datacenter, until_of(fault)) + NEWS_S)
