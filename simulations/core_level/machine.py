"""A host of the core level: its clock, its place, and the node that lives on it, if any."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gossip import Message
from ringfence.transport.interface import Address
from simulations.node_level.virtual_time import HostClock
from simulations.scenarios.latency import Place

if TYPE_CHECKING:
    from simulations.core_level.node import CoreNode

__all__ = ["Machine"]

_PORT = 7101


@dataclass(slots=True)
class Machine:
    """A host, on which nodes live and die."""

    name: str
    datacenter: str
    zone: str
    clock: HostClock
    node: "CoreNode | None" = None
    lives: int = 0
    is_paused: bool = False
    wants_start: bool = False
    """Whether a node is to start when the one that leaves has left."""
    held_up_ns: int = 0
    """How long what is being handled now had to wait because the host stood still."""
    _held: list[tuple[int, Callable[..., object], tuple[object, ...]]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.datacenter, self.zone

    @property
    def address(self) -> Address:
        """Where its node listens."""
        return self.name, _PORT

    def take(self, message: Message, sender: str) -> None:
        """A datagram arrives."""
        if self.is_paused:
            self.hold(self.take, message, sender)
        elif self.node is not None:
            self.node.take_datagram(message, sender)

    def hold(self, call: Callable[..., object], *args: object) -> None:
        """Do it when the host goes on."""
        self._held.append((self.clock.now(), call, args))

    def go_on(self) -> None:
        """Do all that was held, in order."""
        self.is_paused = False
        held, self._held = self._held, []
        for at, call, args in held:
            self.held_up_ns = max(0, self.clock.now() - at)
            call(*args)
        self.held_up_ns = 0
