"""Links between simulated hosts, and the faults of these links."""

from collections.abc import Sequence
from random import Random

from ringfence import runtime
from ringfence.transport.interface import Address
from simulations.judging.broken_connections import Reset
from simulations.scenarios.scenario import Network
from simulations.world.hosts import Client, Hosts
from simulations.world.network import SimulatedNetwork

__all__ = ["Links"]


class Links:
    """Links between the hosts of a run; arguments are the host names at both ends."""

    def __init__(self, hosts: Hosts, network: SimulatedNetwork, links: Network) -> None:
        self._hosts = hosts
        self._network = network
        self._links = links
        self.resets: list[Reset] = []
        """All breaks of connections so far."""

    def _each(self, some: Sequence[str], others: Sequence[str]) -> list[tuple[Address, Address]]:
        """Return all pairs of one host from each side."""
        return [
            (self._hosts.by_name[one].address, self._hosts.by_name[other].address)
            for one in some
            for other in others
            if one != other
        ]

    def _both_ways(
        self, some: Sequence[str], others: Sequence[str]
    ) -> list[tuple[Address, Address]]:
        links = self._each(some, others)
        return [*dict.fromkeys(way for one, other in links for way in ((one, other), (other, one)))]

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Drop all messages between two groups of hosts, in both directions or in one.

        The cut also affects the clients beside a cut host.
        """
        change = self._network.cut_one_way if one_way else self._network.cut
        for one, other in [*self._each(some, others), *self._client_links(some, others)]:
            change(one, other)

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Undo `cut`, so that messages arrive again."""
        for one, other in [*self._each(some, others), *self._client_links(some, others)]:
            self._network.heal(one, other)

    def set_loss(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that are lost."""
        for one, other in self._each(some, others):
            self._network.set_loss(one, other, max(share, self._links.loss))

    def set_repeats(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that arrive twice."""
        for one, other in self._each(some, others):
            self._network.set_repeats(one, other, max(share, self._links.repeats))

    def set_bursts(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that are lost in bursts."""
        for one, other in self._both_ways(some, others):
            self._network.set_bursts(one, other, share)

    def set_corrupt(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that are corrupted."""
        for one, other in self._both_ways(some, others):
            self._network.set_corrupt(one, other, share)

    def set_replay(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Repeat old datagrams between two groups of hosts; `share` is their number per new
        datagram."""
        for one, other in self._both_ways(some, others):
            self._network.set_replay(one, other, share)

    def set_spikes(self, mean: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Add a random delay of `mean` seconds on average between two groups of hosts."""
        for one, other in self._each(some, others):
            self._network.set_spikes(one, other, mean)

    def set_clog(self, is_on: bool, some: Sequence[str], others: Sequence[str]) -> None:
        """Hold all messages between two groups of hosts, or deliver the held messages together."""
        change = self._network.clog if is_on else self._network.unclog
        for one, other in self._each(some, others):
            change(one, other)

    def reset(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Close all connections between two groups of hosts."""
        for one, other in self._each(some, others):
            self._reset(one, other)

    def set_slow(self, extra: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Add a fixed delay, in seconds, to all messages between two groups of hosts."""
        for one, other in self._each(some, others):
            self._network.set_extra_delay(one, other, extra)

    async def break_connections(self, per_second: float, seconds: float, random: Random) -> None:
        """Break connections between random pairs of hosts for `seconds` of the load."""
        while True:
            await runtime.sleep(random.expovariate(per_second))
            addresses = [host.address for host in self._hosts.by_name.values()]
            one = random.choice([*addresses, *(client.address for client in self._hosts.clients)])
            other = random.choice(addresses)
            if self._hosts.began > 0 and self._hosts.now < seconds and one != other:
                self._reset(one, other)

    def _reset(self, one: Address, other: Address) -> None:
        self.resets.append(Reset(self._hosts.now, frozenset((one[0], other[0]))))
        self._network.reset(one, other)

    def _client_links(
        self, some: Sequence[str], others: Sequence[str]
    ) -> list[tuple[Address, Address]]:
        """Return the links between clients and nodes that a cut between hosts also affects."""
        links: list[tuple[Address, Address]] = []
        for client in self._hosts.clients:
            beside = self._home_of(client)
            for here, there in ((some, others), (others, some)):
                if beside in here:
                    ways = [(client.address, self._hosts.by_name[name].address) for name in there]
                    links += ways if here is some else [way[::-1] for way in ways]
        return links

    def _home_of(self, client: Client) -> str:
        names = [h.name for h in self._hosts.by_name.values() if h.datacenter == client.datacenter]
        return names[int(client.address[0].rsplit("-", 1)[1]) % len(names)]
