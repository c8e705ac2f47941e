"""Invariants of membership during a run, from `docs/concepts/membership.md`.

A record replaces only records that it supersedes. No healthy node is declared dead while the
network works. All members detect a death in bounded time. Queues stay within their bounds.
"""

from collections import Counter
from collections.abc import Sequence
from math import inf, log10

from gossip import Changed, Status
from gossip import Settings as GossipSettings
from hashring import NodeId
from ringfence import runtime
from simulations.reporting.outcome import Violation
from simulations.scenarios.scenario import Fault
from simulations.world.hosts import Host, Hosts

__all__ = ["MembershipWatch", "detection_bound"]

_MAX_VIOLATIONS = 10
"""Maximum number of reported violations per invariant."""
_SETTINGS = GossipSettings.lan()
_UNWELL = ("cut", "pause", "stall", "slow", "bursts", "spikes", "clog", "busy")
"""Faults that may make a healthy member seem dead."""
_LOSSES = ("loss", "corrupt")
"""Faults that may do so if their share is large."""
_MUCH_LOSS = 0.1
_ROUNDS = 12
"""Probe intervals in which one of many members probes a given member, except in one of 100,000
runs."""


def detection_bound(members: int) -> float:
    """Return the seconds in which all members of a data center detect a crash.

    The bound assumes a working network and healthy members. It adds the time until a member probes
    the dead one, the duration of the probe, the longest suspicion, and the dissemination.
    """
    local_dc = _SETTINGS.local_dc
    least = local_dc.suspicion_factor * max(1.0, log10(max(1, members))) * local_dc.interval
    is_confirmed = min(_SETTINGS.confirmations, members - 2) > 0
    longest = least * (local_dc.suspicion_max_factor if is_confirmed else 2)
    return (_ROUNDS + 2) * local_dc.interval + longest + _ROUNDS * local_dc.gossip_interval


class MembershipWatch:
    """Checker of membership invariants during a run."""

    def __init__(self, hosts: Hosts, faults: Sequence[Fault]) -> None:
        self.violations: list[Violation] = []
        self.detections: list[float] = []
        """Seconds from each crash until all running members of its data center declared it dead."""
        self.false_deaths = 0
        """Number of times that a node declared a running member dead."""
        self.most_pending = 0
        """Largest number of updates queued on one node."""
        self.converged_at = 0.0
        """Last time at which the member tables of all running nodes became equal."""
        self._hosts = hosts
        self._violated: Counter[str] = Counter()
        self._crashes: dict[tuple[str, int], tuple[float, set[str]]] = {}
        """Name and generation of each dead node, its time of death, and the members that have
        not detected it."""
        self._digests: dict[str, int] = {}
        """Digest of the member table of each running node; empty until `run` begins."""
        self._is_converged = True
        unwell = [fault for fault in faults if _is_unwell(fault)]
        self._unwell_from = min([fault.at for fault in unwell], default=inf)
        self._unwell_until = max([fault.until or inf for fault in unwell], default=-inf)

    def _add_violation(self, name: str, text: str) -> None:
        self._violated[name] += 1
        if self._violated[name] <= _MAX_VIOLATIONS:
            self.violations.append(Violation(name, self._hosts.now, text))

    # -- during the run -------------------------------------------------------------------------

    def crashed(self, host: Host) -> None:
        """Record that a node has crashed."""
        assert host.node is not None
        generation = host.node.membership.me.generation
        others = {
            each.name
            for each in self._hosts.running()
            if each is not host and each.datacenter == host.datacenter
        }
        self._crashes[host.name, generation] = self._hosts.now, others

    def ended(self, name: str) -> None:
        """Record that a node has ended, so that it is not expected to detect other deaths."""
        for key in list(self._crashes):
            self._record_detection(key, name)
        self._digests.pop(name, None)
        self._compare_tables()

    def changed(self, name: NodeId, changes: Sequence[Changed]) -> None:
        """Check the changes in the member table of one node against the invariants of
        membership."""
        for change in changes:
            before, after = change.before, change.after
            if before is not None and before.name != name and not after.replaces(before):
                self._add_violation("order", f"{name} took {after} for {before}")
            if after.is_gone:
                self._record_detection((after.name, after.generation), name)
                if after.status is Status.DEAD:
                    self._hosts.note(name, f"holds {after.name} dead")
                    self._check_death(name, change)
            elif before is not None and before.generation < after.generation:
                self._record_detection((after.name, before.generation), name)
        node = self._hosts.by_name[name].node
        if node is not None and self._digests:
            self._digests[name] = node.membership.digest
            self._compare_tables()

    async def run(self) -> None:
        """Check all nodes once a second until cancelled."""
        while True:
            self._check_all()
            await runtime.sleep(1.0)

    def _check_all(self) -> None:
        for node in self._hosts.nodes():
            membership = node.membership
            self.most_pending = max(self.most_pending, membership.pending)
            if membership.pending > 2 * len(membership.records):
                text = f"{node.name} has {membership.pending} news to send"
                self._add_violation("memory", text)
            self._digests[node.name] = membership.digest
        self._compare_tables()
        self._check_detections()

    def _compare_tables(self) -> None:
        is_converged = len({*self._digests.values()}) <= 1
        if is_converged != self._is_converged:
            self._is_converged = is_converged
            self._hosts.note("views", "are equal" if is_converged else "differ")
            if is_converged:
                self.converged_at = self._hosts.now

    def _check_detections(self) -> None:
        for (name, generation), (since, unaware) in list(self._crashes.items()):
            members = self._hosts.in_datacenter(self._hosts.by_name[name].datacenter)
            bound = detection_bound(len(members))
            if self._hosts.now - since > bound:
                del self._crashes[name, generation]
                trusting = sorted(each for each in unaware if self._trusts(each, name, generation))
                if trusting and not self._was_unwell(since, self._hosts.now):
                    some = ", ".join(trusting[:5])
                    text = f"{len(trusting)} do not know after {bound:.1f} s of {name}: {some}"
                    self._add_violation("detection", text)

    def _trusts(self, viewer: str, name: str, generation: int) -> bool:
        """Return whether a node considers a member's process of the given generation as running."""
        node = self._hosts.by_name[viewer].node
        record = None if node is None else node.membership.records.get(name)
        return record is not None and record.generation == generation and not record.is_gone

    def _record_detection(self, key: tuple[str, int], by: str) -> None:
        crash = self._crashes.get(key)
        if crash is not None:
            since, unaware = crash
            unaware.discard(by)
            if not unaware:
                del self._crashes[key]
                self.detections.append(self._hosts.now - since)

    def _check_death(self, name: NodeId, change: Changed) -> None:
        """Report a violation if a healthy node was declared dead while the network worked."""
        after = change.after
        subject = self._hosts.by_name[after.name].node
        if subject is None or subject.membership.me.generation != after.generation:
            return
        self.false_deaths += 1
        if not self._was_unwell(self._hosts.now, self._hosts.now):
            text = f"{name} holds {after.name} dead, which is well"
            self._add_violation("false_death", text)

    def _was_unwell(self, begin: float, end: float) -> bool:
        """Return whether a fault may have affected links or hosts between two instants."""
        after = detection_bound(len(self._hosts.names())) + _SETTINGS.announce_every
        return self._unwell_from <= end and begin <= self._unwell_until + after


def _is_unwell(fault: Fault) -> bool:
    if fault.verb in _LOSSES:
        return float(fault.args["share"]) > _MUCH_LOSS
    return fault.verb in _UNWELL
