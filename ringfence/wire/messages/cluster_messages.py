"""Questions about the members, rules and counters of a node, and their answers."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["AskMembers", "AskRules", "AskStats", "MemberRow", "Members", "Plain", "Rules", "Stats"]


Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""What msgpack carries: data without behaviour."""


@dataclass(frozen=True, slots=True)
class AskMembers:
    """Ask for the members."""

    seq: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member as another sees it."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    state: str
    """`joining`, `alive`, `suspect`, `forwarding`, `leaving`, `dead` or `left`; only those that are
    alive or suspect are in the ring."""


@dataclass(frozen=True, slots=True)
class Members:
    """The members, sorted by name, and the hash of that view."""

    seq: int
    view: int
    members: list[MemberRow]


@dataclass(frozen=True, slots=True)
class AskRules:
    """Ask for the rules."""

    seq: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules as plain data; `RuleSet.from_plain` reads them."""

    seq: int
    version: int
    plain: Plain


@dataclass(frozen=True, slots=True)
class AskStats:
    """Ask for the node's counters."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The node's counters by name."""

    seq: int
    counters: dict[str, int]
