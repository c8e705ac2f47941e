"""State of the members of one host, as their supervisor sees it."""

import trio
from msgspec import Struct, field

from node.config.settings import NodeSettings
from node.supervisor.member_plan import member_settings, operator_address
from ringfence.transport.interface import Address

__all__ = ["Host", "HostMember"]


class HostMember(Struct):
    """A member of the host, independent of its current process."""

    index: int
    name: str
    address: str
    """`HOST:PORT` that other members use."""
    operator_address: Address | None
    process: trio.Process | None = None
    is_up: bool = False
    """Whether it serves."""
    was_ever_up: bool = False
    is_leaving: bool = False
    """Whether its process has begun to leave on request."""
    has_left: bool = False
    """Whether the member has left on request."""
    restarts: int = 0
    began: trio.Event = field(default_factory=trio.Event)
    """Set when its first process serves or has ended."""
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancelled when the process takes too long to exit."""


class Host(Struct, frozen=True):
    """All members of one host, in the order of their index."""

    name: str
    members: tuple[HostMember, ...]

    @staticmethod
    def of(settings: NodeSettings) -> "Host":
        """Return the members of a host from their shared settings."""
        members = []
        for index in range(settings.processes):
            own = member_settings(settings, index, [])
            address = own.advertise or own.listen
            members.append(HostMember(index, own.name, address, operator_address(settings, index)))
        return Host(settings.name, tuple(members))
