"""Messages that request the members, rules and statistics of a node, and their answers."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["AskMembers", "AskRules", "AskStats", "MemberRow", "Members", "Plain", "Rules", "Stats"]


Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""JSON-like data as msgpack carries it."""


@dataclass(frozen=True, slots=True)
class AskMembers:
    """Request for the members of the cluster."""

    seq: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of the cluster, as the answering node sees it."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    state: str
    """`joining`, `alive`, `suspect`, `forwarding`, `leaving`, `dead` or `left`. The ring contains
    members that are alive, suspect or leaving."""


@dataclass(frozen=True, slots=True)
class Members:
    """Answer to `AskMembers`: the members of the cluster sorted by name, and a hash of that
    list."""

    seq: int
    view: int
    members: list[MemberRow]


@dataclass(frozen=True, slots=True)
class AskRules:
    """Request for the rules of a node."""

    seq: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Answer to `AskRules`: rules as nested lists, which `RuleSet.from_plain` reads."""

    seq: int
    version: int
    plain: Plain


@dataclass(frozen=True, slots=True)
class AskStats:
    """Request for the statistics of a node."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Answer to `AskStats`: counts by name."""

    seq: int
    counters: dict[str, int]
