"""What must hold of the members while a core-level run goes on, and what must have been by its end.

Properties of `docs/concepts/membership.md`: records only ever give way to those that replace them;
nobody healthy is declared dead while the network is well; a death is known to all in bounded time;
queues and hops stay within bounds; and when all is calm again, views are equal and every shard has
one holder in each data center.
"""

from collections import Counter
from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING

from gossip import Changed, Status
from gossip import Settings as GossipSettings
from hashring import SHARDS
from simulations.reporting.outcome import Violation
from simulations.scenarios.scenario import Fault

if TYPE_CHECKING:
    from simulations.core_level.node import CoreNode
    from simulations.core_level.world import CoreWorld

__all__ = ["Watch", "detection_bound"]

_MOST_HOPS = 2
_MOST_TOLD = 10
"""Violations of one property that are told."""
_SETTINGS = GossipSettings.lan()
_UNWELL = ("cut", "pause", "stall", "slow", "loss")
"""Faults that may make a healthy member seem dead."""
_MUCH_LOSS = 0.1
_ROUNDS = 12
"""Nobody among many probes a member for so many intervals once in 100 000 runs."""


def detection_bound(members: int) -> float:
    """Seconds until all of so many members of one data center know that one has crashed.

    While the network is well and those alive are healthy: until somebody probes it, the probe, the
    longest suspicion, and the spread of its end.
    """
    near = _SETTINGS.near
    least = near.suspicion_factor * max(1.0, log10(max(1, members))) * near.interval
    is_confirmed = min(_SETTINGS.confirmations, members - 2) > 0
    longest = least * (near.suspicion_stretch if is_confirmed else 2)
    return (_ROUNDS + 2) * near.interval + longest + _ROUNDS * near.gossip_interval


class Watch:
    """Looks at a world while it runs."""

    def __init__(self, world: "CoreWorld", faults: Sequence[Fault]) -> None:
        self.violations: list[Violation] = []
        self.detections: list[float] = []
        """Seconds from each crash until all running members of the data center held it dead."""
        self.most_pending = 0
        self.converged_at = 0.0
        """When the views of all that run became equal, the last time that they did."""
        self._world = world
        self._faults = faults
        self._told: Counter[str] = Counter()
        self._crashes: dict[tuple[str, int], tuple[float, set[str]]] = {}
        """Name and generation of the dead, when they died and who has not noticed."""
        self._is_converged = True
        self._unwell_until = max(
            [(f.until or float("inf")) for f in faults if _is_unwell(f)], default=float("-inf")
        )
        self._unwell_from = min([f.at for f in faults if _is_unwell(f)], default=float("inf"))

    def tell(self, name: str, text: str) -> None:
        """Take note of a violation."""
        self._told[name] += 1
        if self._told[name] <= _MOST_TOLD:
            self.violations.append(Violation(name, self._world.now, text))

    # -- while it runs -------------------------------------------------------------------------

    def crashed(self, node: "CoreNode") -> None:
        """A node has ended without a word."""
        me = node.membership.me
        others = {
            each.name
            for each in self._world.nodes()
            if each is not node and each.membership.me.datacenter == me.datacenter
        }
        self._crashes[me.name, me.generation] = self._world.now, others

    def ended(self, name: str) -> None:
        """A node runs no more: it will notice nothing."""
        for key in list(self._crashes):
            self._noticed(key, name)

    def changed(self, node: "CoreNode", changes: Sequence[Changed]) -> None:
        """A node believes something else."""
        for change in changes:
            before, after = change.before, change.after
            if before is not None and before.name != node.name and not after.replaces(before):
                self.tell("order", f"{node.name} took {after} for {before}")
            if after.is_gone:
                self._noticed((after.name, after.generation), node.name)
                if after.status is Status.DEAD:
                    self._world.note(node.name, f"holds {after.name} dead")
                    self._judge_death(node, change)
            elif before is not None and before.generation < after.generation:
                self._noticed((after.name, before.generation), node.name)

    def asked(self, node: "CoreNode", hops: int) -> None:
        """A node is asked for a check."""
        if hops > _MOST_HOPS:
            self.tell("hops", f"{node.name} was asked after {hops} hops")

    def look(self) -> None:
        """Look at everybody: once a second."""
        digests: set[int] = set()
        known = 0
        for node in self._world.nodes():
            pending = node.membership.pending
            known = max(known, len(node.membership.records))
            self.most_pending = max(self.most_pending, pending)
            if pending > 2 * len(node.membership.records):
                self.tell("memory", f"{node.name} has {pending} news to send")
            digests.add(node.membership.digest)
        is_converged = len(digests) <= 1
        if is_converged != self._is_converged:
            self._is_converged = is_converged
            self._world.note("views", "are equal" if is_converged else "differ")
            if is_converged:
                self.converged_at = self._world.now
        for (name, generation), (since, unaware) in list(self._crashes.items()):
            bound = detection_bound(len(self._world.in_datacenter(self._world.place_of(name)[0])))
            if self._world.now - since > bound:
                del self._crashes[name, generation]
                if not self._was_unwell(since, self._world.now):
                    some = ", ".join(sorted(unaware)[:5])
                    text = f"{len(unaware)} do not know after {bound:.1f} s of {name}: {some}"
                    self.tell("detection", text)

    def _noticed(self, key: tuple[str, int], by: str) -> None:
        crash = self._crashes.get(key)
        if crash is not None:
            since, unaware = crash
            unaware.discard(by)
            if not unaware:
                del self._crashes[key]
                self.detections.append(self._world.now - since)

    def _judge_death(self, node: "CoreNode", change: Changed) -> None:
        """Nobody who runs and is well may be declared dead while the network is well."""
        after = change.after
        subject = self._world.node_at(after.name)
        if subject is None or subject.membership.me.generation != after.generation:
            return
        self.false_deaths_seen(node)
        if not self._was_unwell(self._world.now, self._world.now):
            self.tell("false_death", f"{node.name} holds {after.name} dead, which is well")

    def false_deaths_seen(self, node: "CoreNode") -> None:
        """Count a death that was none."""
        node.counters.add("false_deaths")

    def _was_unwell(self, begin: float, end: float) -> bool:
        """Whether any fault of links or hosts may still have had an effect between two instants."""
        after = detection_bound(len(self._world.names())) + _SETTINGS.announce_every
        return self._unwell_from <= end and begin <= self._unwell_until + after

    # -- by the end ----------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """What has not settled although all was calm."""
        running = {node.name for node in self._world.nodes()}
        found: list[str] = []
        for node in self._world.nodes():
            records = node.membership.records.values()
            seen = {r.name for r in records if r.status is Status.ALIVE}
            if seen != running:
                missing, ghosts = sorted(running - seen)[:5], sorted(seen - running)[:5]
                found.append(f"{node.name} misses {missing} and believes in {ghosts}")
        if len({node.membership.digest for node in self._world.nodes()}) > 1:
            found.append("views differ")
        return found[:_MOST_TOLD] + self._holders()

    def _holders(self) -> list[str]:
        """No shard is decided by two, or by nobody."""
        found: list[str] = []
        for datacenter in self._world.datacenters:
            nodes = [n for n in self._world.nodes() if n.membership.me.datacenter == datacenter]
            if not any(node.ring.members for node in nodes):
                continue
            counts = [0] * SHARDS
            misplaced = 0
            for node in nodes:
                owners = node.ring.owner_by_shard
                for shard, is_held in enumerate(node.holdings.held):
                    if is_held:
                        counts[shard] += 1
                        misplaced += owners[shard] != node.name
            twice, missing = sum(count > 1 for count in counts), counts.count(0)
            if twice or missing or misplaced:
                found.append(
                    f"{twice} shards of {datacenter} are held twice, {missing} by nobody, "
                    f"{misplaced} by another than their owner"
                )
        return found


def _is_unwell(fault: Fault) -> bool:
    if fault.verb == "loss":
        return float(fault.args["share"]) > _MUCH_LOSS
    return fault.verb in _UNWELL
