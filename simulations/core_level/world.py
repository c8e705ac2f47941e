"""The hosts of a core-level run: how a scenario becomes nodes, and what each fault does to them."""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from gossip import Membership, Message
from hashring import View
from node.membership.peer_links import member_of
from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import load_text
from simulations.core_level.client import CoreClient
from simulations.core_level.event_loop import EventLoop
from simulations.core_level.machine import Machine
from simulations.core_level.network import CoreNetwork, both_ways
from simulations.core_level.node import CoreNode
from simulations.core_level.slots import Wakeable
from simulations.core_level.unsupported_faults import NodeLevelFaults
from simulations.core_level.watch import Watch
from simulations.node_level.virtual_time import HostClock
from simulations.reporting.events import Events
from simulations.scenarios.latency import Place
from simulations.scenarios.scenario import Fault, Scenario
from simulations.scenarios.seeds import stream

__all__ = ["CoreWorld", "drive"]

_VIEWS_KEPT = 64
_VIEWERS = 9


class CoreWorld(NodeLevelFaults):
    """All hosts, clients, and the heap that they live on."""

    def __init__(
        self, scenario: Scenario, seed: int, events: Events, faults: Sequence[Fault]
    ) -> None:
        """`faults` are those that the watch knows of."""
        self.scenario = scenario
        self.rules: RuleSet = load_text(scenario.rules).rules
        self.agenda = EventLoop()
        self.network = CoreNetwork(self.agenda, stream(seed, "network"), scenario.network)
        self.machines: dict[str, Machine] = {}
        self.clients: list[CoreClient] = []
        self.datacenters = [f"dc{number + 1}" for number in range(scenario.datacenters)]
        self._seed = seed
        self._events = events
        self._past: Counter[str] = Counter()
        self._views: OrderedDict[int, tuple[View, View]] = OrderedDict()
        for number in range(scenario.nodes):
            datacenter = f"dc{number % scenario.datacenters + 1}"
            zone = f"z{number // scenario.datacenters % scenario.zones + 1}"
            name = f"n{number + 1}"
            clock = HostClock(lambda: self.agenda.seconds)
            self.machines[name] = Machine(name, datacenter, zone, clock)
            self.network.place(name, (datacenter, zone))
        self.watch = Watch(self, faults)

    @property
    def now(self) -> float:
        """Seconds since the load began, which is when everything does."""
        return self.agenda.seconds

    def names(self) -> list[str]:
        """All hosts."""
        return list(self.machines)

    def in_datacenter(self, datacenter: str) -> list[str]:
        """The hosts of a data center."""
        return [each.name for each in self.machines.values() if each.datacenter == datacenter]

    def in_zone(self, zone: str) -> list[str]:
        """The hosts of a zone, in all data centers."""
        return [each.name for each in self.machines.values() if each.zone == zone]

    def place_of(self, name: str) -> Place:
        """Where a host stands."""
        return self.machines[name].place

    def nodes(self) -> list[CoreNode]:
        """The nodes that run."""
        return [each.node for each in self.machines.values() if each.node is not None]

    def node_at(self, name: str) -> CoreNode | None:
        """The node that runs on a host."""
        return self.machines[name].node

    def home_of(self, name: str) -> Wakeable | None:
        """The client or the node of a name, if it runs."""
        client = next((each for each in self.clients if each.name == name), None)
        return client or self.node_at(name)

    # -- lives ---------------------------------------------------------------------------------

    def found(self) -> None:
        """Start everybody, in a ring that all know."""
        nodes = [self._live(machine, is_founder=True) for machine in self.machines.values()]
        records = [node.membership.me for node in nodes]
        for node in nodes:
            node.found(records)

    def connect(self, datacenter: str) -> None:
        """Start a client in a data center."""
        number = len(self.clients)
        name = f"client-{number}"
        self.network.place(name, (datacenter, "z1"))
        client = CoreClient(self, name, datacenter, stream(self._seed, "client", number))
        client.begin(self.nodes()[0].view)
        self.clients.append(client)

    async def start(self, name: str) -> None:
        """Start a node, which joins those that run."""
        machine = self.machines[name]
        if machine.node is not None:
            machine.wants_start = True
            return
        seeds = [node.name for node in self.nodes()]
        node = self._live(machine, is_founder=False)
        self.note(name, "starts")
        node.join(seeds)

    def _live(self, machine: Machine, *, is_founder: bool) -> CoreNode:
        machine.lives += 1
        random = stream(self._seed, "node", machine.name, machine.lives)
        machine.node = CoreNode(self, machine, self.rules, random, is_founder=is_founder)
        return machine.node

    def crash(self, name: str) -> None:
        """End a node as a power failure would."""
        node = self.machines[name].node
        if node is not None:
            self.note(name, "crashes")
            self.watch.crashed(node)
            self._end(node)

    async def leave(self, name: str) -> None:
        """Have a node hand over and leave; it ends later."""
        node = self.machines[name].node
        if node is not None:
            self.note(name, "leaves")
            node.due(node.leave)

    def ended(self, node: CoreNode) -> None:
        """A node that left has ended."""
        self.note(node.name, "has left")
        machine = self.machines[node.name]
        self._end(node)
        if machine.wants_start:
            machine.wants_start = False
            drive(self.start(node.name))

    def _end(self, node: CoreNode) -> None:
        self.machines[node.name].node = None
        node.end()
        self._past.update(_counters(node))
        self.watch.ended(node.name)

    def pause(self, name: str, is_paused: bool) -> None:
        """Have a host stand still, or go on."""
        machine = self.machines[name]
        self.note(name, "stands still" if is_paused else "goes on")
        if is_paused:
            machine.is_paused = True
        elif machine.is_paused:
            machine.go_on()

    def step_clock(self, name: str, seconds: float) -> None:
        """Set a host's clock."""
        self.machines[name].clock.step(seconds)
        self.note(name, f"clock set by {seconds:g} s")

    def drift_clock(self, name: str, ppm: float) -> None:
        """Have a host's clock run fast or slow."""
        self.machines[name].clock.drift(ppm)
        self.note(name, f"clock drifts by {ppm:g} ppm")

    def plant_errors(self, name: str, count: int) -> None:
        """Have the next calls and tasks of a node meet an internal error."""
        node = self.machines[name].node
        if node is not None:
            node.containment.planted = count

    def met_bug(self, error: Exception) -> None:
        """An internal error that nobody planted breaks the run."""
        raise error

    # -- links ---------------------------------------------------------------------------------

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Carry nothing between them, or only back; clients stand beside the nodes of theirs."""
        for way in self._ways(some, others, one_way=one_way):
            self.network.cut(way)

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Undo `cut`."""
        for way in self._ways(some, others, one_way=False):
            self.network.heal(way)

    def set_loss(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams between them."""
        self.network.set_loss(share, both_ways(some, others))

    def set_repeats(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have this share of the datagrams between them come twice."""
        self.network.set_repeats(share, both_ways(some, others))

    def set_slow(self, extra: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have everything between them take so many seconds longer; 0 is as ever."""
        self.network.set_slow(extra, both_ways(some, others))

    def _ways(
        self, some: Sequence[str], others: Sequence[str], *, one_way: bool
    ) -> list[tuple[str, str]]:
        ways = [(one, other) for one in some for other in others if one != other]
        for number, client in enumerate(self.clients):
            near = self.in_datacenter(client.datacenter)
            beside = near[number % len(near)]
            for here, there in ((some, others), (others, some)):
                if beside in here:
                    ways += [(client.name, name) for name in there]
        return ways if one_way else [*ways, *((there, here) for here, there in ways)]

    def send(self, here: str, there: str, message: Message) -> None:
        """Send a datagram."""
        machine = self.machines.get(there)
        if machine is not None:
            self.network.datagram(here, there, message, machine.take)

    # -- what is seen --------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """Add to the history."""
        self._events.add(self.agenda.seconds, who, what)

    def views_of(self, membership: Membership, view: View, placement: View) -> tuple[View, View]:
        """Find the routed and the placed view; they follow from the digest, so all share them.

        `view` and `placement` are those of before.
        """
        found = self._views.get(membership.digest)
        if found is None:
            routed = View.of(map(member_of, membership.routed()), like=view)
            placed = View.of(map(member_of, membership.placed()), like=placement)
            # Different digests may name equal members: whose rings need not be built twice.
            same = {each.hash: each for pair in self._views.values() for each in pair}
            routed = same.get(routed.hash, routed)
            placed = same.get(placed.hash, routed if placed == routed else placed)
            found = self._views[membership.digest] = routed, placed
            if len(self._views) > _VIEWS_KEPT:
                self._views.popitem(last=False)
        return found

    def views(self) -> list[dict[str, str]]:
        """How some of the nodes see all members: among a thousand, most say the same."""
        return [node.states() for node in self.nodes()[:_VIEWERS]]

    def staleness(self) -> list[tuple[str, tuple[str, int], dict[str, int]]]:
        """Per node that runs its data center, which life it is, and how old what it told was."""
        if len(self.datacenters) == 1:
            return []
        machines = [each for each in self.machines.values() if each.node is not None]
        return [
            (each.datacenter, (each.name, each.lives), each.node.worldwide.stats())
            for each in machines
            if each.node is not None
        ]

    def counters(self) -> Counter[str]:
        """All counters, over all lives of all nodes."""
        found = Counter(self._past)
        for node in self.nodes():
            found.update(_counters(node))
        return found


def _counters(node: CoreNode) -> Counter[str]:
    found = Counter(node.counters.as_dict())
    for name, count in node.membership.counters.items():
        found[f"gossip_{name}"] += count
    for place, count in node.containment.by_place.items():
        found[f"internal_errors_{place}"] += count
    found.update(node.worldwide.stats())
    return found


def drive(coroutine: object) -> None:
    """Run a coroutine that waits for nothing: faults are written for both levels."""
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration:
        return
    raise RuntimeError("a fault of the core level has waited for something")
