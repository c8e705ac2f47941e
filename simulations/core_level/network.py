"""The network of the core level: what is under way between hosts, and what becomes of it.

Datagrams are lost, come twice, late, and overtake each other. Streams are as QUIC's seem to those
who use them: in order, none lost but late when packets are; a cut holds them until it heals.
Messages are handed over as values. Every 16th datagram is written and read again by the codec that
ships, which must give the same message in at most as many bytes as a datagram carries.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import count
from random import Random

from gossip import Message, decode, encode
from simulations.core_level.event_loop import EventLoop
from simulations.scenarios.latency import Place, delay_s, drawn_s
from simulations.scenarios.scenario import Network

__all__ = ["CoreNetwork", "both_ways"]

_NS = 1_000_000_000
_ENCODED = 16
_MOST_BYTES = 1178
_SPIKES = 0.002
"""Part of all datagrams that queue somewhere for up to `_SPIKE_S` seconds, and are overtaken."""
_SPIKE_S = 0.05
_REPEAT_S = 1.0
"""Seconds within which a datagram comes again that does."""
_HELD_NS = 30 * _NS
"""How long a stream waits for a cut to heal before its connection is over."""
_RESEND_S = 0.05
_MOST_RESENDS = 12

_Way = tuple[str, str]


class CoreNetwork:
    """Carries messages between named places."""

    def __init__(self, agenda: EventLoop, random: Random, network: Network) -> None:
        self.problems: list[str] = []
        """Datagrams that do not fit, or that the codec does not give back."""
        self.datagrams = 0
        self._agenda = agenda
        self._sessions = count(1)
        self._random = random
        self._preset = network.latency
        self._loss = network.loss
        self._repeats = network.repeats
        self._places: dict[str, Place] = {}
        self._delays: dict[tuple[Place, Place], float] = {}
        self._losses: dict[_Way, float] = {}
        self._repeated: dict[_Way, float] = {}
        self._slow: dict[_Way, float] = {}
        self._held: dict[_Way, list[tuple[int, Callable[[], object]]]] = {}
        """Ways that carry nothing, with the streams that wait for them."""
        self._last: dict[_Way, int] = {}
        """When the latest message of each stream arrives."""

    def new_session(self) -> int:
        """Number a link, so that the checks asked over it have identities of their own."""
        return next(self._sessions)

    def place(self, name: str, place: Place) -> None:
        """Let a host or a client stand somewhere."""
        self._places[name] = place

    # -- faults --------------------------------------------------------------------------------

    def cut(self, way: _Way) -> None:
        """Carry nothing this way."""
        self._held.setdefault(way, [])

    def heal(self, way: _Way) -> None:
        """Carry everything this way again, also what waited for less than a connection lives."""
        for since, call in self._held.pop(way, []):
            if self._agenda.now - since < _HELD_NS:
                self.stream(*way, call)

    def is_cut(self, one: str, other: str) -> bool:
        """Whether no connection can come about between two."""
        return (one, other) in self._held or (other, one) in self._held

    def set_loss(self, share: float, ways: Collection[_Way]) -> None:
        """Lose this share of the datagrams, or what is lost when nothing is wrong."""
        _set(self._losses, ways, share if share > self._loss else None)

    def set_repeats(self, share: float, ways: Collection[_Way]) -> None:
        """Have this share of the datagrams come twice."""
        _set(self._repeated, ways, share if share > self._repeats else None)

    def set_slow(self, extra: float, ways: Collection[_Way]) -> None:
        """Have everything take so many seconds longer."""
        _set(self._slow, ways, extra or None)

    # -- carrying ------------------------------------------------------------------------------

    def datagram(
        self, here: str, there: str, message: Message, land: Callable[..., object]
    ) -> None:
        """Have `land` called with the message and `here`, if it arrives."""
        self.datagrams += 1
        if not self.datagrams % _ENCODED:
            self._try_codec(message)
        way = here, there
        if self._held and way in self._held:
            return
        random = self._random
        loss = self._losses.get(way, self._loss) if self._losses else self._loss
        if loss and random.random() < loss:
            return
        delay = self._delay(way)
        spike = random.random()
        if spike < _SPIKES:
            delay += _SPIKE_S * spike / _SPIKES
        self._agenda.at(self._agenda.now + round(delay * _NS), land, message, here)
        repeats = self._repeated.get(way, self._repeats) if self._repeated else self._repeats
        if repeats and random.random() < repeats:
            again = self._agenda.now + round((delay + _REPEAT_S * random.random()) * _NS)
            self._agenda.at(again, land, message, here)

    def stream(self, here: str, there: str, land: Callable[[], object]) -> None:
        """Have `land` called, after all that was sent this way before."""
        way = here, there
        held = self._held.get(way)
        if held is not None:
            held.append((self._agenda.now, land))
            return
        delay = self._delay(way)
        loss = self._losses.get(way, self._loss)
        for resend in range(_MOST_RESENDS):
            if not loss or self._random.random() >= loss:
                break
            delay += min(1.0, (_RESEND_S + 2 * delay) * 2.0**resend)
        arrival = max(self._last.get(way, 0), self._agenda.now + round(delay * _NS))
        self._last[way] = arrival
        self._agenda.at(arrival, land)

    def _delay(self, way: _Way) -> float:
        places = self._places[way[0]], self._places[way[1]]
        base = self._delays.get(places)
        if base is None:
            base = self._delays[places] = delay_s(self._preset, *places)
        if self._slow:
            base += self._slow.get(way, 0.0)
        return drawn_s(base, self._random)

    def _try_codec(self, message: Message) -> None:
        packed = encode(message)
        if len(packed) > _MOST_BYTES:
            self.problems.append(f"a {type(message).__name__} takes {len(packed)} bytes")
        if decode(packed) != message:
            self.problems.append(f"{message} is not what the codec makes of it")


def both_ways(some: Sequence[str], others: Sequence[str]) -> list[_Way]:
    """All ways between two sides."""
    pairs = [(one, other) for one in some for other in others if one != other]
    return [*pairs, *((other, one) for one, other in pairs)]


def _set(table: dict[_Way, float], ways: Collection[_Way], value: float | None) -> None:
    for way in ways:
        if value is None:
            table.pop(way, None)
        else:
            table[way] = value
