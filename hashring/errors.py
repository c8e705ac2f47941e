"""What can be wrong with members, or with a question to a ring; each error carries its facts."""

__all__ = [
    "ConflictingMembers",
    "EmptyRing",
    "InvalidMember",
    "MixedDatacenters",
    "RingError",
    "UnknownShard",
]


class RingError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidMember(RingError, ValueError):
    """A field of a member is outside its range; the message names the field and how to fix it."""


class ConflictingMembers(RingError, ValueError):
    """One name stands for two different members, so the owner of a shard would be ambiguous."""

    def __init__(self, name: str) -> None:
        super().__init__(f"two different members are called {name!r}; give each its own name")
        self.name = name


class MixedDatacenters(RingError, ValueError):
    """Members of several data centers were put on one ring; each data center has its own."""

    def __init__(self, datacenters: tuple[str, ...]) -> None:
        super().__init__(f"one ring cannot span the data centers {', '.join(datacenters)}")
        self.datacenters = datacenters


class EmptyRing(RingError, LookupError):
    """The ring has no member, so the shard has no owner."""

    def __init__(self) -> None:
        super().__init__("the ring has no members")


class UnknownShard(RingError, LookupError):
    """There is no shard of this number."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"there is no shard {shard}")
        self.shard = shard
