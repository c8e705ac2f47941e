"""Questions about members, rules and statistics of a node, and their answers."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["AskMembers", "AskRules", "AskStats", "MemberRow", "Members", "Plain", "Rules", "Stats"]


Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""JSON-like data as msgpack carries it."""


@dataclass(frozen=True, slots=True)
class AskMembers:
    """Question for the members."""

    seq: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member as another member sees it."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    state: str
    """`joining`, `alive`, `suspect`, `forwarding`, `leaving`, `dead` or `left`. The ring contains
    members that are alive or suspect."""


@dataclass(frozen=True, slots=True)
class Members:
    """Members of the cluster, sorted by name, and the hash of this view."""

    seq: int
    view: int
    members: list[MemberRow]


@dataclass(frozen=True, slots=True)
class AskRules:
    """Question for the rules."""

    seq: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules as plain data, which `RuleSet.from_plain` reads."""

    seq: int
    version: int
    plain: Plain


@dataclass(frozen=True, slots=True)
class AskStats:
    """Question for the node's statistics."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of the node: counts by name."""

    seq: int
    counters: dict[str, int]
