"""Hosts and clients of a run: their locations, and the membership state of their nodes."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from gossip import Record, Status
from node.node import Node
from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.limiter import Limiter
from ringfence.transport.interface import Address
from simulations.reporting.events import Events
from simulations.runtimes.virtual_time import HostClock
from simulations.scenarios.faults.faulty_containment import FaultyContainment
from simulations.scenarios.latency import Place
from simulations.scenarios.scenario import Scenario

__all__ = ["PORT", "Client", "Host", "Hosts", "is_majority_close"]

PORT = 7101
_VIEWERS = 9
_CLOSE_NS = 1_000_000_000
"""Difference below which two clocks agree."""


class Host(Struct):
    """Simulated machine on which nodes start and end."""

    name: str
    datacenter: str
    zone: str
    clock: HostClock
    node: Node | None = None
    scope: runtime.CancelScope | None = None
    errors: FaultyContainment | None = None
    starts: int = 0
    port: int = PORT
    is_seedless: bool = False
    """Whether the node gets wrong seed addresses."""
    limits_part: float = 1.0
    """Factor by which a fault lowers all limits of the host, also if its node starts later."""

    @property
    def is_damped(self) -> bool:
        """Return whether flap damping keeps the host's node out of the ring after too many
        suspicions."""
        return self.node is not None and self.node.membership.is_damped

    @property
    def is_distrusted(self) -> bool:
        """Return whether the host's node only forwards checks because its clock is suspect."""
        node = self.node
        if node is None or node.membership.is_damped:
            return False
        return node.membership.me.forward_only and node.clock.cluster.is_suspect

    @property
    def place(self) -> Place:
        """Return the data center and the zone of the host."""
        return self.datacenter, self.zone

    @property
    def address(self) -> Address:
        """Return the address of the host's node."""
        return self.name, self.port


class Client(Struct):
    """Simulated application with an embedded client in a data center."""

    datacenter: str
    address: Address
    cluster: Cluster
    limiter: Limiter


class Hosts:
    """All hosts and clients of one run."""

    def __init__(self, scenario: Scenario, events: Events, clock: Callable[[], float]) -> None:
        self.began = 0.0
        """Start of the load, on the clock of the runtime."""
        self.by_name: dict[str, Host] = {}
        self.clients: list[Client] = []
        self._states: dict[str, tuple[tuple[Record, ...], dict[str, str]]] = {}
        """Latest records of each viewer, with their states."""
        self._events = events
        self._clock = clock
        self.has_one_datacenter = scenario.datacenters == 1
        for number in range(scenario.nodes):
            datacenter = f"dc{number % scenario.datacenters + 1}"
            zone = f"z{number // scenario.datacenters % scenario.zones + 1}"
            name = f"n{number + 1}"
            self.by_name[name] = Host(name, datacenter, zone, HostClock(clock))

    @property
    def now(self) -> float:
        """Return the seconds since the start of the load."""
        return self._clock() - self.began

    def note(self, who: str, what: str) -> None:
        """Add an event to the history of the run."""
        self._events.add(self._clock(), who, what)

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        return list(self.by_name)

    def in_datacenter(self, datacenter: str) -> list[str]:
        """Return the hosts of a data center."""
        return [host.name for host in self.by_name.values() if host.datacenter == datacenter]

    def in_zone(self, zone: str) -> list[str]:
        """Return the hosts of a zone, in all data centers."""
        return [host.name for host in self.by_name.values() if host.zone == zone]

    def nodes(self) -> list[Node]:
        """Return all running nodes of the run."""
        return [host.node for host in self.by_name.values() if host.node is not None]

    def running(self) -> list[Host]:
        """Return the hosts with a running node."""
        return [host for host in self.by_name.values() if host.scope is not None]

    def in_ring(self) -> set[str]:
        """Return the running members that must be in the rings.

        Flap damping keeps a member out of the ring for minutes after too many suspicions. A suspect
        clock keeps its member out only while no majority of the other clocks agrees. This also
        requires that a member of the same data center is in the ring.
        """
        running = [host for host in self.running() if not host.is_damped]
        excused = {
            host.name
            for host in running
            if host.is_distrusted and not self._has_majority_without(host)
        }
        served = {host.datacenter for host in running if host.name not in excused}
        return {
            host.name
            for host in running
            if host.name not in excused or host.datacenter not in served
        }

    def _has_majority_without(self, member: Host) -> bool:
        """Return whether a majority of the other members' clocks agrees.

        Probes measure all members, also those of other data centers. The host clocks and the
        adjusted clocks are checked, so that a wrong adjustment does not excuse a member.
        """
        others = [host for host in self.running() if host is not member]
        clocks = [host.clock.now() for host in others]
        offsets = [0 if host.node is None else host.node.clock.cluster.offset_ns for host in others]
        adjusted = [clock + offset for clock, offset in zip(clocks, offsets, strict=True)]
        return is_majority_close(clocks) or is_majority_close(adjusted)

    def states(self, viewer: Host) -> Mapping[str, str]:
        """Return the state of each member in one node's member table."""
        assert viewer.node is not None
        records = viewer.node.membership.records
        before, states = self._states.get(viewer.name, ((), {}))
        present = (*records.values(),)
        if present != before:  # In large clusters, most tables rarely change.
            states = {name: _state_of(record) for name, record in records.items()}
            self._states[viewer.name] = present, states
        return states

    def has_suspicions(self) -> bool:
        """Return whether a running member suspects another one."""
        return any("suspect" in self.states(host).values() for host in self.running())

    def views(self) -> list[Mapping[str, str]]:
        """Return the member states in the member tables of some nodes; in large clusters most
        tables are equal."""
        return [self.states(host) for host in self.running()[:_VIEWERS]]

    def staleness(self) -> list[tuple[str, tuple[str, int], dict[str, int]]]:
        """Return data about the age of counts sent to other data centers, for each running node.

        Each row has the node's data center, the identity of its process (name and number of
        starts), and its metric counters.
        """
        if self.has_one_datacenter:
            return []
        return [
            (host.datacenter, (host.name, host.starts), host.node.queries.staleness())
            for host in self.running()
            if host.node is not None
        ]

    def is_settled(self) -> bool:
        """Return whether the rings of all nodes have the right members, and whether all nodes count
        exactly the shards that they own."""
        names = self.in_ring()
        for host in self.running():
            assert host.node is not None
            states = self.states(host)
            alive = {name for name, state in states.items() if state in ("alive", "suspect")}
            counters = host.node.queries.stats(1).counters
            if alive != names or counters["held_shards"] != counters["owned_shards"]:
                return False
        return True


def is_majority_close(clocks: Sequence[int]) -> bool:
    """Return whether more than half of the clocks are less than 1 s from their median.

    The clocks are in nanoseconds. A single clock never counts as a majority.
    """
    if len(clocks) < 2:
        return False
    differences = [clock - clocks[0] for clock in clocks]
    middle = median(differences)
    return sum(abs(each - middle) < _CLOSE_NS for each in differences) > len(clocks) / 2


def _state_of(record: Record) -> str:
    is_forwarding = record.forward_only and record.status in (Status.ALIVE, Status.SUSPECT)
    return "forwarding" if is_forwarding else record.status.name.lower()
