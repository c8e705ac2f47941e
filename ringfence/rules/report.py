"""What `ringfence rules check` shows: the tree of rules as rows, with what each rule costs.

Rows are values; how they are printed, as a table or as JSON, is the command line's. For tools:
clients do not import this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ringfence.limiter import NS_PER_SECOND, Limit, bytes_per_key, over_admission
from ringfence.rules.cross_dc_bounds import Reach, reach_of, shortest_ns
from ringfence.rules.descriptor_tree import Row, label, place
from ringfence.rules.limit_strings import format_limit
from ringfence.rules.loading.build import Loaded
from ringfence.rules.loading.source import Problem
from ringfence.rules.model import Rule
from ringfence.rules.ruleset import RuleSet

__all__ = ["Datacenters", "ReportRow", "describe", "too_short"]


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One line of the tree: a domain, a step on the way, or a rule."""

    depth: int
    """0 for a domain."""
    label: str
    """The domain's name, `key=value`, or `key` for any value."""
    limit: str = ""
    """As `format_limit` writes it, or `unlimited`; empty when no limit stands here."""
    identity: str = ""
    """The rule's 64-bit identity, 16 hex digits."""
    algorithm: str = ""
    bytes_per_key: int | None = None
    """Memory of one active counter; None where nothing is counted."""
    usual: int | None = None
    """Cost that a window of one period lets through at most when requests come evenly."""
    worst: int | None = None
    """Most cost that any window of one period may let through while no node fails."""
    bound: str = ""
    """Why `worst` is what it is."""
    scope: str = ""
    """`datacenter`, or how the limit holds in all of them: `global`, `split` or `home`."""
    reach: Reach | None = None
    """What that holds over the data centers asked about; None within one."""
    name: str = ""
    flags: tuple[str, ...] = ()
    """`shadow`, `quota`, `share`, `replaces NAME`, `on_failure deny` and the like."""
    warnings: tuple[str, ...] = ()
    """What is legal here yet perhaps not meant, each with its file and line."""


@dataclass(frozen=True, slots=True)
class Datacenters:
    """Where rules of global scope are to hold."""

    count: int
    """1 or more."""
    rtt_ns: int
    """Round trip between two of them."""
    demand: float = 2.0
    """What all callers ask together, as a multiple of the limit, evenly from everywhere."""


def describe(
    rules: RuleSet, warnings: Sequence[Problem] = (), where: Datacenters | None = None
) -> list[ReportRow]:
    """Lay out all domains in file order; every warning stands at the row it is about.

    `where`, when given, adds what rules of global scope hold over those data centers.
    """
    notes: dict[str, list[str]] = {}
    for warning in warnings:
        notes.setdefault(warning.place, []).append(str(warning))
    rows: list[ReportRow] = []
    for domain in rules.contents:
        held = notes.pop(domain.name, [])
        rows.append(ReportRow(0, domain.name, warnings=tuple(held)))
        for row in domain.rows:
            here = place(domain.name, row.path)
            found = notes.pop(here, [])
            found += notes.pop(f"{here} > rate_limit", [])
            rows.append(_row(row, tuple(found), where))
    if notes and rows:
        # A place that no row has, as a rule's metadata: better at the top than lost.
        rest = tuple(text for found in notes.values() for text in found)
        rows[0] = ReportRow(0, rows[0].label, warnings=(*rows[0].warnings, *rest))
    return rows


def too_short(loaded: Loaded, where: Datacenters) -> list[Problem]:
    """Find the rules whose period is too short for counts that come from so far away."""
    least = -(-shortest_ns(where.rtt_ns) * 10 // NS_PER_SECOND) / 10
    return [
        Problem(
            *loaded.places[rule.id],
            f"{place(rule.domain, rule.path)} > rate_limit",
            f"with {where.rtt_ns / 1e6:g} ms there and back, counts of other data centers come too "
            f"late for {format_limit(rule.limit)}",
            f"use a period of at least {least:g} s, `scope: datacenter`, `global: {{mode: split}}`"
            " or `global: {mode: home, home: NAME}`",
        )
        for rule in loaded.rules.rules()
        if rule.limit is not None
        and (reach := _reach(rule.limit, rule.scope, where)) is not None
        and reach.is_too_short
    ]


def _row(row: Row, warnings: tuple[str, ...], where: Datacenters | None) -> ReportRow:
    name = label(*row.path[-1])
    if not isinstance(row, Rule):
        return ReportRow(len(row.path), name, warnings=warnings)
    limit = row.limit
    forecast = None if limit is None else over_admission(limit)
    return ReportRow(
        depth=len(row.path),
        label=name,
        limit="unlimited" if limit is None else format_limit(limit),
        identity=f"{row.id:016x}",
        algorithm="" if limit is None else limit.algorithm.value,
        bytes_per_key=None if limit is None else bytes_per_key(limit),
        usual=None if forecast is None else forecast.usual,
        worst=None if forecast is None else forecast.worst,
        bound="" if forecast is None else forecast.reason,
        scope=row.scope,
        reach=None if limit is None else _reach(limit, row.scope, where),
        name=row.name,
        flags=tuple(_flags(row)),
        warnings=warnings,
    )


def _reach(limit: Limit, scope: str, where: Datacenters | None) -> Reach | None:
    if where is None or scope == "datacenter":
        return None
    return reach_of(limit, scope, where.count, where.rtt_ns, where.demand)


def _flags(rule: Rule) -> list[str]:
    flags = [
        word
        for word, is_set in (
            ("shadow", rule.shadow),
            ("quota", rule.quota),
            ("share", "share" in rule.details),
        )
        if is_set
    ]
    flags += [f"replaces {name}" for name in rule.replaces]
    if rule.limit is not None:
        flags.append(f"on_failure {rule.on_failure.value}")
    if not rule.leases:
        flags.append("no leases")
    if rule.scope != "datacenter":
        flags.append(f"{rule.scope} {rule.home}".strip())
    return flags
