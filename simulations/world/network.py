"""A memory network whose links have more wrong with them: bursts, spikes, queues, forgeries, clogs.

Delay, loss, repeats and cuts are the memory network's. What is set here holds for one direction,
from and to, or for all that passes one host.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from ringfence import runtime
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Address
from ringfence.transport.memory import MemoryNetwork, MemoryTransport
from simulations.scenarios.latency import Place, delay_s
from simulations.scenarios.scenario import Network

__all__ = ["SimulatedNetwork"]

Way: TypeAlias = tuple[Address, Address]

_BURST = (0.02, 0.3)
"""Chance that a burst begins, and that it ends, at each datagram."""
_REMEMBERED = 20
"""Datagrams of a way that may be replayed."""
_REPLAYED_WITHIN = 60.0
_SPIKE = 5.0
"""Longest spike, in seconds."""
_QUEUE = 1.0
"""Seconds of a narrow link's work that may wait; more is dropped."""


@dataclass(slots=True)
class _Way:
    """What is wrong with one direction of a link."""

    burst_loss: float = 0.0
    """Part that is lost while a burst lasts."""
    corrupt: float = 0.0
    """Part whose bits are changed, or which is cut short."""
    replay: float = 0.0
    """Chance that an old datagram comes again, up to a minute late."""
    is_in_burst: bool = False
    past: deque[bytes] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    held: list[tuple[MemoryTransport, bytes]] | None = None
    """Datagrams that wait for a clog to end; None when there is no clog."""


class SimulatedNetwork(MemoryNetwork):
    """The links of one run. One seed and one order of calls give one history."""

    def __init__(self, random: Random, links: Network, *, jitter: float) -> None:
        super().__init__(
            random,
            jitter=jitter,
            loss=links.loss,
            repeats=links.repeats,
            clock=runtime.clock(),
        )
        self._preset = links.latency
        self._places: dict[Address, Place] = {}
        self._base_delays: dict[tuple[Place, Place], float] = {}
        self._extra_delays: dict[frozenset[Address], float] = {}
        self.datagrams = 0
        """Datagrams that were sent so far."""
        self._chance = random
        self._ways: dict[Way, _Way] = {}
        self._spikes: dict[frozenset[Address], float] = {}
        self._costs: dict[Address, float] = {}
        self._busy: dict[Address, float] = {}
        self._queued: dict[Address, float] = {}
        """Until when a host works on what came before."""

    def place(self, address: Address, place: Place) -> None:
        """Put a host or client somewhere; the distance decides the delay of its links."""
        self._places[address] = place

    def set_extra_delay(self, a: Address, b: Address, seconds: float) -> None:
        """Have all between the two take so many seconds longer; 0 ends that."""
        self._extra_delays[frozenset((a, b))] = seconds

    def set_bursts(self, a: Address, b: Address, share: float) -> None:
        """Lose this share of the datagrams from `a` to `b` in bursts that come and go."""
        self._way(a, b).burst_loss = share

    def set_corrupt(self, a: Address, b: Address, share: float) -> None:
        """Spoil this share of the datagrams from `a` to `b`."""
        self._way(a, b).corrupt = share

    def set_replay(self, a: Address, b: Address, share: float) -> None:
        """Have old datagrams from `a` to `b` come again, this many for each new one."""
        self._way(a, b).replay = share

    def set_spikes(self, a: Address, b: Address, mean: float) -> None:
        """Have all between the two take longer by chance: a Pareto tail with this mean seconds."""
        self._spikes[frozenset((a, b))] = mean

    def set_cost(self, address: Address, seconds: float) -> None:
        """Have a host work for so long on each message, one after the other; 0 is as ever."""
        if seconds:
            self._costs[address] = seconds
        else:
            self._costs.pop(address, None)
            self._busy.pop(address, None)
            self._queued.pop(address, None)

    def clog(self, a: Address, b: Address) -> None:
        """Hold all between the two, datagrams too, until `unclog`."""
        self.cut(a, b)
        for way in ((a, b), (b, a)):
            self._way(*way).held = []

    def unclog(self, a: Address, b: Address) -> None:
        """Let go what was held, all at once."""
        self.heal(a, b)
        for way in ((a, b), (b, a)):
            held, self._way(*way).held = self._way(*way).held or [], None
            for sender, datagram in held:
                self.carry(sender, datagram, way[1])

    def reset(self, a: Address, b: Address) -> None:
        """End the connections between the two, as a middlebox that forgets them does."""
        for end in [end for end in self._ends if end.link == frozenset((a, b))]:
            end.lose(TransportCode.QUIC, "reset by the simulation")

    def carry(self, sender: MemoryTransport, datagram: bytes, address: Address) -> None:
        """See `MemoryNetwork`."""
        self.datagrams += 1
        way = self._ways.get((sender.address, address))
        if way is None:
            if not self._overflows(address):
                super().carry(sender, datagram, address)
            return
        if way.held is not None:
            way.held.append((sender, datagram))
            return
        if way.burst_loss:
            chance = self._chance.random()
            way.is_in_burst = chance >= _BURST[1] if way.is_in_burst else chance < _BURST[0]
            if way.is_in_burst and self._chance.random() < way.burst_loss:
                return
        if way.replay:
            if way.past and self._chance.random() < way.replay:
                self._play_again(sender, way, address)
            way.past.append(datagram)
        if way.corrupt and self._chance.random() < way.corrupt:
            datagram = self._spoilt(datagram)
        if self._overflows(address):
            return
        super().carry(sender, datagram, address)

    def delay(self, link: frozenset[Address]) -> float:
        """See `MemoryNetwork`."""
        places = self._places
        one, other = min(link), max(link)
        if one not in places or other not in places:
            return super().delay(link)
        way = places[one], places[other]
        base = self._base_delays.get(way)
        if base is None:
            base = self._base_delays[way] = delay_s(self._preset, *way)
        return base + self._extra_delays.get(link, 0.0) if self._extra_delays else base

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """See `MemoryNetwork`."""
        at = super().arrival(link, not_before)
        spike = self._spikes.get(link, 0.0)
        if spike:
            # With exponent 1.5 the mean is three times the least.
            at += min(_SPIKE, spike / 3 * self._chance.paretovariate(1.5))
            at = max(at, not_before)
        for address in sorted(link) if self._costs else ():
            cost = self._costs.get(address, 0.0)
            self._queued[address] = 0.0
            if cost:
                begins = max(at, self._busy.get(address, 0.0))
                self._queued[address] = begins - at
                at = self._busy[address] = begins + cost
        return at

    def queued_s(self, address: Address) -> float:
        """See `MemoryNetwork`."""
        return self._queued.get(address, 0.0)

    def _overflows(self, address: Address) -> bool:
        return self._busy.get(address, 0.0) > self.now() + _QUEUE

    def _play_again(self, sender: MemoryTransport, way: _Way, address: Address) -> None:
        target = self._running.get(address)
        if target is not None:
            old, source = self._chance.choice(way.past), sender.address
            when = self.now() + self._chance.uniform(0.0, _REPLAYED_WITHIN)
            target.call_at(when, lambda: target.take_sealed(old, source))

    def _spoilt(self, datagram: bytes) -> bytes:
        if self._chance.random() < 0.2:
            return datagram[: self._chance.randrange(1, len(datagram))]
        spoilt = bytearray(datagram)
        # The first byte tells sealed datagrams from others.
        spoilt[self._chance.randrange(1, len(spoilt))] ^= 1 << self._chance.randrange(8)
        return bytes(spoilt)

    def _way(self, a: Address, b: Address) -> _Way:
        return self._ways.setdefault((a, b), _Way())
