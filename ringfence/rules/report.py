"""Report of `ringfence rules check`: the tree of rules as rows, with the cost of each rule.

The command line prints the rows as a table or as JSON. Clients do not import this module.
"""

from collections.abc import Sequence

from msgspec import Struct

from ringfence.limiter import NS_PER_SECOND, Limit, bytes_per_key, over_admission
from ringfence.rules.cross_dc_bounds import CrossDcBounds, cross_dc_bounds, shortest_ns
from ringfence.rules.descriptor_tree import Row, label, place
from ringfence.rules.limit_strings import format_limit
from ringfence.rules.loading.build import LoadedRules
from ringfence.rules.loading.problems import Problem
from ringfence.rules.model import Rule
from ringfence.rules.ruleset import RuleSet

__all__ = ["Datacenters", "ReportRow", "describe", "too_short"]


class ReportRow(Struct, frozen=True):
    """Row of the report: a domain, an inner node of the tree, or a rule."""

    depth: int
    """Depth in the tree; 0 for a domain."""
    label: str
    """The domain's name, `key=value`, or `key` for any value."""
    limit: str = ""
    """Text of `format_limit`, or `unlimited`; empty when this row has no limit."""
    identity: str = ""
    """Id of the rule, 16 hexadecimal digits."""
    algorithm: str = ""
    bytes_per_key: int | None = None
    """Memory of one active counter; None when nothing is counted."""
    usual: int | None = None
    """Maximum cost admitted in one period when requests are evenly spaced."""
    worst: int | None = None
    """Maximum cost admitted in any interval of one period while no node fails."""
    bound: str = ""
    """Explanation of `worst`."""
    scope: str = ""
    """`datacenter`, or the mode for all data centers: `global`, `split` or `home`."""
    cross_dc: CrossDcBounds | None = None
    """Bounds over several data centers; None for one data center."""
    name: str = ""
    flags: tuple[str, ...] = ()
    """`shadow`, `quota`, `share`, `replaces NAME`, `on_failure deny` and the like."""
    warnings: tuple[str, ...] = ()
    """Warnings about this place, each with file and line."""


class Datacenters(Struct, frozen=True):
    """Number and distance of data centers for which the bounds of global rules are computed."""

    count: int
    """Number of data centers, at least 1."""
    rtt_ns: int
    """Round trip between two data centers."""
    demand: float = 2.0
    """Total demand as a multiple of the limit, even over data centers."""


def describe(
    rules: RuleSet,
    warnings: Sequence[Problem] = (),
    where: Datacenters | None = None,
    *,
    is_compiled: bool = True,
) -> list[ReportRow]:
    """Return the rows of all domains in file order, each with the warnings about it.

    With `where`, rows of global rules get their bounds over those data centers. The memory is that
    of the compiled engine, or else of the reference engine.
    """
    notes: dict[str, list[str]] = {}
    for warning in warnings:
        notes.setdefault(warning.place, []).append(str(warning))
    rows: list[ReportRow] = []
    for domain in rules.contents:
        found = notes.pop(domain.name, [])
        rows.append(ReportRow(0, domain.name, warnings=tuple(found)))
        for row in domain.rows:
            here = place(domain.name, row.path)
            found = notes.pop(here, [])
            found += notes.pop(f"{here} > rate_limit", [])
            rows.append(_row(row, tuple(found), where, is_compiled=is_compiled))
    if notes and rows:
        # Places without a row, such as metadata of a rule, are reported in the first row.
        rest = tuple(text for found in notes.values() for text in found)
        rows[0] = ReportRow(0, rows[0].label, warnings=(*rows[0].warnings, *rest))
    return rows


def too_short(loaded: LoadedRules, where: Datacenters) -> list[Problem]:
    """Return a problem for each global rule whose period is too short for the delay between data
    centers."""
    least = -(-shortest_ns(where.rtt_ns) * 10 // NS_PER_SECOND) / 10
    return [
        Problem(
            *loaded.places[rule.id],
            f"{place(rule.domain, rule.path)} > rate_limit",
            f"with a round trip of {where.rtt_ns / 1e6:g} ms, counts of other data centers arrive "
            f"too late for {format_limit(rule.limit)}",
            f"use a period of at least {least:g} s, `scope: datacenter`, `global: {{mode: split}}`"
            " or `global: {mode: home, home: NAME}`",
        )
        for rule in loaded.rules.rules()
        if rule.limit is not None
        and (bounds := _cross_dc_bounds(rule.limit, rule.scope, where)) is not None
        and bounds.is_too_short
    ]


def _row(
    row: Row, warnings: tuple[str, ...], where: Datacenters | None, *, is_compiled: bool
) -> ReportRow:
    name = label(*row.path[-1])
    if not isinstance(row, Rule):
        return ReportRow(len(row.path), name, warnings=warnings)
    limit = row.limit
    estimate = None if limit is None else over_admission(limit)
    return ReportRow(
        depth=len(row.path),
        label=name,
        limit="unlimited" if limit is None else format_limit(limit),
        identity=f"{row.id:016x}",
        algorithm="" if limit is None else limit.algorithm.value,
        bytes_per_key=None if limit is None else bytes_per_key(limit, is_compiled=is_compiled),
        usual=None if estimate is None else estimate.usual,
        worst=None if estimate is None else estimate.worst,
        bound="" if estimate is None else estimate.reason,
        scope=row.scope,
        cross_dc=None if limit is None else _cross_dc_bounds(limit, row.scope, where),
        name=row.name,
        flags=tuple(_flags(row)),
        warnings=warnings,
    )


def _cross_dc_bounds(limit: Limit, scope: str, where: Datacenters | None) -> CrossDcBounds | None:
    if where is None or scope == "datacenter":
        return None
    return cross_dc_bounds(limit, scope, where.count, where.rtt_ns, where.demand)


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
