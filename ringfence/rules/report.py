"""What `ringfence rules check` shows: the tree of rules as rows, with what each rule costs.

Rows are values; how they are printed, as a table or as JSON, is the command line's. For tools:
clients do not import this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ringfence.limiter import bytes_per_key, over_admission
from ringfence.rules.model import Rule
from ringfence.rules.ruleset import RuleSet
from ringfence.rules.source import Problem
from ringfence.rules.strings import format_limit
from ringfence.rules.tree import Row, label, place

__all__ = ["ReportRow", "describe"]


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
    worst: int | None = None
    """Most cost that any window of one period may let through while no node fails."""
    bound: str = ""
    """Why `worst` is what it is."""
    name: str = ""
    flags: tuple[str, ...] = ()
    """`shadow`, `quota`, `share`, `replaces NAME`, `on_failure deny` and the like."""
    warnings: tuple[str, ...] = ()
    """What is legal here yet perhaps not meant, each with its file and line."""


def describe(rules: RuleSet, warnings: Sequence[Problem] = ()) -> list[ReportRow]:
    """Lay out all domains in file order; every warning stands at the row it is about."""
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
            rows.append(_row(row, tuple(found)))
    if notes and rows:
        # A place that no row has, as a rule's metadata: better at the top than lost.
        rest = tuple(text for found in notes.values() for text in found)
        rows[0] = ReportRow(0, rows[0].label, warnings=(*rows[0].warnings, *rest))
    return rows


def _row(row: Row, warnings: tuple[str, ...]) -> ReportRow:
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
        worst=None if forecast is None else forecast.worst,
        bound="" if forecast is None else forecast.reason,
        name=row.name,
        flags=tuple(_flags(row)),
        warnings=warnings,
    )


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
    return flags
