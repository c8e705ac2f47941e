"""Messages that request the members, rules and statistics of a node, and their answers."""

from typing import TypeAlias

from msgspec import Struct

__all__ = ["AskMembers", "AskRules", "AskStats", "MemberRow", "Members", "Plain", "Rules", "Stats"]


Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""JSON-like data as msgpack carries it."""


class AskMembers(Struct, frozen=True):
    """Request for the members of the cluster."""

    seq: int


class MemberRow(Struct, frozen=True):
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


class Members(Struct, frozen=True):
    """Answer to `AskMembers`: the members of the cluster sorted by name, and a hash of that
    list."""

    seq: int
    view: int
    members: list[MemberRow]


class AskRules(Struct, frozen=True):
    """Request for the rules of a node."""

    seq: int


class Rules(Struct, frozen=True):
    """Answer to `AskRules`: rules as nested lists, which `RuleSet.from_plain` reads."""

    seq: int
    version: int
    plain: Plain


class AskStats(Struct, frozen=True):
    """Request for the statistics of a node."""

    seq: int


class Stats(Struct, frozen=True):
    """Answer to `AskStats`: counts by name."""

    seq: int
    counters: dict[str, int]
