"""Simulated network with additional faults: loss bursts, delay spikes, queues, corruption, clogged
links.

`MemoryNetwork` provides delay, loss, repeats and cuts. Each fault of this module applies to one
direction of a link or to one host.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeAlias

from msgspec import Struct, field

from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Address
from ringfence.transport.memory import MemoryNetwork, MemoryTransport
from ringfence.transport.memory_connection import MemoryConnection
from simulations.runtimes.virtual_time import clock, open_timed_calls
from simulations.scenarios.latency import Place, delay_s
from simulations.scenarios.scenario import Network

__all__ = ["SimulatedNetwork"]

Way: TypeAlias = tuple[Address, Address]

_BURST_CHANCES = (0.02, 0.3)
"""Probabilities that a burst begins, and that it ends, at each datagram."""
_KEPT_FOR_REPLAY = 20
"""Maximum number of datagrams per direction kept for replay."""
_REPLAY_DELAY_S = 60.0
_MAX_SPIKE_S = 5.0
"""Longest spike, in seconds."""
_MAX_QUEUE_S = 1.0
"""Maximum seconds of work in the queue of a busy host; further datagrams are dropped."""


class _DirectionFaults(Struct):
    """Faults of one direction of a link."""

    burst_loss: float = 0.0
    """Share of datagrams that a burst drops."""
    corrupt: float = 0.0
    """Share of datagrams that are corrupted or truncated."""
    replay: float = 0.0
    """Probability of a replay of an old datagram, up to a minute late."""
    is_in_burst: bool = False
    past: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_FOR_REPLAY))
    held: list[Callable[[], None]] | None = None
    """Deliveries of datagrams and of new connections that wait until the clog ends; None without a
    clog."""


class SimulatedNetwork(MemoryNetwork):
    """Network of one run; equal seeds and equal calls give equal histories."""

    def __init__(self, random: Random, links: Network, *, jitter: float) -> None:
        super().__init__(
            random,
            jitter=jitter,
            loss=links.loss,
            repeats=links.repeats,
            clock=clock(),
            open_timed_calls=open_timed_calls,
        )
        self._preset = links.latency
        self._places: dict[Address, Place] = {}
        self._base_delays: dict[frozenset[Address], float] = {}
        self._extra_delays: dict[frozenset[Address], float] = {}
        self.datagrams = 0
        """Number of datagrams sent so far."""
        self._chance = random
        self._directions: dict[Way, _DirectionFaults] = {}
        self._spikes: dict[frozenset[Address], float] = {}
        self._costs: dict[Address, float] = {}
        self._busy: dict[Address, float] = {}
        """Time at which each host finishes its earlier messages."""
        self._queued: dict[Address, float] = {}
        """Queueing delay of the latest message at each host, in seconds."""
        self.longest_queue_s = 0.0
        """Longest time that busy hosts have held one message up."""

    def place(self, address: Address, place: Place) -> None:
        """Set the data center and zone of a host or client; they determine the delay of its
        links."""
        self._places[address] = place
        self._base_delays.clear()

    def set_extra_delay(self, a: Address, b: Address, seconds: float) -> None:
        """Add a fixed delay, in seconds, between two hosts; 0 removes it."""
        self._extra_delays[frozenset((a, b))] = seconds

    def set_bursts(self, a: Address, b: Address, share: float) -> None:
        """Set the share of datagrams from `a` to `b` that are lost in bursts."""
        self._direction(a, b).burst_loss = share

    def set_corrupt(self, a: Address, b: Address, share: float) -> None:
        """Set the share of datagrams from `a` to `b` that are corrupted or truncated."""
        self._direction(a, b).corrupt = share

    def set_replay(self, a: Address, b: Address, share: float) -> None:
        """Repeat old datagrams from `a` to `b`; `share` is their number per new datagram."""
        self._direction(a, b).replay = share

    def set_spikes(self, a: Address, b: Address, mean: float) -> None:
        """Add a random delay between two hosts, with a Pareto distribution; the mean is in
        seconds."""
        self._spikes[frozenset((a, b))] = mean

    def set_cost(self, address: Address, seconds: float) -> None:
        """Set the time that a host needs to process each message; 0 resets it. Messages wait for
        each other."""
        if seconds:
            self._costs[address] = seconds
        else:
            self._costs.pop(address, None)
            self._busy.pop(address, None)
            self._queued.pop(address, None)

    def clog(self, a: Address, b: Address) -> None:
        """Hold all messages and datagrams between two hosts until `unclog`."""
        self.cut(a, b)
        for direction in ((a, b), (b, a)):
            self._direction(*direction).held = []

    def unclog(self, a: Address, b: Address) -> None:
        """Deliver all messages and datagrams that `clog` has held."""
        self.heal(a, b)
        for direction in ((a, b), (b, a)):
            held, self._direction(*direction).held = self._direction(*direction).held or [], None
            for deliver in held:
                deliver()

    def reset(self, a: Address, b: Address) -> None:
        """Close the connections between two hosts, like a middlebox that loses its state."""
        for side in [side for side in self._sides if side.link == frozenset((a, b))]:
            side.abort(TransportCode.QUIC, "reset by the simulation")

    def deliver_open(self, side: MemoryConnection) -> None:
        """Deliver the first packet of a new connection, unless a clog holds it."""
        direction = self._directions.get((side.transport.address, side.address))
        if direction is not None and direction.held is not None:
            direction.held.append(partial(self.deliver_open, side))
        else:
            super().deliver_open(side)

    def deliver_sealed(self, sender: MemoryTransport, datagram: bytes, address: Address) -> None:
        """Deliver a datagram, as `MemoryNetwork.deliver_sealed` does, and apply the faults of its
        link."""
        self.datagrams += 1
        direction = self._directions.get((sender.address, address))
        if direction is None:
            if not self._overflows(address):
                super().deliver_sealed(sender, datagram, address)
            return
        if direction.held is not None:
            direction.held.append(partial(self.deliver_sealed, sender, datagram, address))
            return
        if direction.burst_loss:
            chance = self._chance.random()
            direction.is_in_burst = (
                chance >= _BURST_CHANCES[1] if direction.is_in_burst else chance < _BURST_CHANCES[0]
            )
            if direction.is_in_burst and self._chance.random() < direction.burst_loss:
                return
        if direction.replay:
            if direction.past and self._chance.random() < direction.replay:
                self._replay_one(sender, direction, address)
            direction.past.append(datagram)
        if direction.corrupt and self._chance.random() < direction.corrupt:
            datagram = self._corrupted(datagram)
        if self._overflows(address):
            return
        super().deliver_sealed(sender, datagram, address)

    def delay(self, link: frozenset[Address]) -> float:
        """Return the delay of a datagram, as `MemoryNetwork.delay` does, with spikes."""
        base = self._base_delays.get(link)
        if base is None:
            places = self._places
            one, other = min(link), max(link)
            if one not in places or other not in places:
                return super().delay(link)
            base = self._base_delays[link] = delay_s(self._preset, places[one], places[other])
        return base + self._extra_delays.get(link, 0.0) if self._extra_delays else base

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """Return the arrival time of a message, as `MemoryNetwork.arrival` does, plus the delay of
        busy hosts."""
        at = super().arrival(link, not_before)
        spike = self._spikes.get(link, 0.0) if self._spikes else 0.0
        if spike:
            # With exponent 1.5 the mean is three times the minimum.
            at += min(_MAX_SPIKE_S, spike / 3 * self._chance.paretovariate(1.5))
            at = max(at, not_before)
        arrives = at
        for address in sorted(link) if self._costs else ():
            cost = self._costs.get(address, 0.0)
            self._queued[address] = 0.0
            if cost:
                begins = max(at, self._busy.get(address, 0.0))
                self._queued[address] = begins - at
                at = self._busy[address] = begins + cost
        if at > arrives:
            self.longest_queue_s = max(self.longest_queue_s, at - arrives)
        return at

    def queued_s(self, address: Address) -> float:
        """Return the queueing delay of a host, as `MemoryNetwork.queued_s` does."""
        return self._queued.get(address, 0.0)

    def _overflows(self, address: Address) -> bool:
        busy_until = self._busy.get(address) if self._busy else None
        return busy_until is not None and busy_until > self.now() + _MAX_QUEUE_S

    def _replay_one(
        self, sender: MemoryTransport, direction: _DirectionFaults, address: Address
    ) -> None:
        target = self._running.get(address)
        if target is not None:
            old, source = self._chance.choice(direction.past), sender.address
            when = self.now() + self._chance.uniform(0.0, _REPLAY_DELAY_S)
            target.call_at(when, lambda: target.receive_sealed_datagram(old, source))

    def _corrupted(self, datagram: bytes) -> bytes:
        if self._chance.random() < 0.2:
            return datagram[: self._chance.randrange(1, len(datagram))]
        corrupted = bytearray(datagram)
        # The first byte distinguishes encrypted datagrams from others.
        corrupted[self._chance.randrange(1, len(corrupted))] ^= 1 << self._chance.randrange(8)
        return bytes(corrupted)

    def _direction(self, a: Address, b: Address) -> _DirectionFaults:
        return self._directions.setdefault((a, b), _DirectionFaults())
