"""What a supervisor knows of the members of its host."""

from dataclasses import dataclass, field

import trio

from node.config.settings import NodeSettings
from node.supervisor.member_plan import member_settings, operator_address
from ringfence.transport.interface import Address

__all__ = ["Host", "HostMember"]


@dataclass(slots=True)
class HostMember:
    """One member, whichever process it is at the moment."""

    index: int
    name: str
    address: str
    """`HOST:PORT` under which the others reach it."""
    operator_address: Address | None
    process: trio.Process | None = None
    is_up: bool = False
    """Whether it serves."""
    was_ever_up: bool = False
    has_left: bool = False
    """Whether it was asked to leave and did."""
    restarts: int = 0
    began: trio.Event = field(default_factory=trio.Event)
    """Set once its first process serves, or has ended."""
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancelled when the process takes too long to end."""


@dataclass(frozen=True, slots=True)
class Host:
    """The members of a host, in order."""

    name: str
    members: tuple[HostMember, ...]

    @staticmethod
    def of(settings: NodeSettings) -> "Host":
        """Work the members out of the settings that they share."""
        members = []
        for index in range(settings.processes):
            own = member_settings(settings, index, [])
            address = own.advertise or own.listen
            members.append(HostMember(index, own.name, address, operator_address(settings, index)))
        return Host(settings.name, tuple(members))
