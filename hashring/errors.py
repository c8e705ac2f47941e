"""Errors of the hash ring: invalid members, and invalid calls."""

__all__ = [
    "ConflictingMembers",
    "EmptyRing",
    "InvalidMember",
    "MixedDatacenters",
    "RingError",
    "UnknownShard",
]


class RingError(Exception):
    """Base class of all errors of the hash ring."""


class InvalidMember(RingError, ValueError):
    """Error for a member's field that is out of range. The message names the field and the fix."""


class ConflictingMembers(RingError, ValueError):
    """Error for two different members with the same name, so that the owner of a shard is
    ambiguous."""

    def __init__(self, name: str) -> None:
        super().__init__(f"two different members are called {name!r}; give each its own name")
        self.name = name


class MixedDatacenters(RingError, ValueError):
    """Error for a ring with members of several data centers. Each data center has its own ring."""

    def __init__(self, datacenters: tuple[str, ...]) -> None:
        super().__init__(f"one ring cannot span the data centers {', '.join(datacenters)}")
        self.datacenters = datacenters


class EmptyRing(RingError, LookupError):
    """Error for a ring without members, where a shard has no owner."""

    def __init__(self) -> None:
        super().__init__("the ring has no members")


class UnknownShard(RingError, LookupError):
    """Error for a shard number that is out of range."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"there is no shard {shard}")
        self.shard = shard
