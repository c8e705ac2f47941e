"""Units above the limit of a key in one period, counted in each part that the limit covers."""

from collections.abc import Callable

from msgspec import Struct

from ringfence.rules import Rule
from simulations.judging.ledger import Column, Ledger

__all__ = ["Excess", "excess_of", "limited_parts", "worst_excess"]


class Excess(Struct, frozen=True):
    """Units of a key above its limit in one period; 0 or more."""

    units: int = 0
    part: Column | None = None
    """Answers that exceeded the limit; None if no answers did."""
    subject: tuple[str, str] | None = None
    """Rule and key; None if no key exceeded its limit."""


def limited_parts(rule: Rule, column: Column) -> list[Column]:
    """Return the answers that one limit covers: those of all data centers, or of each one.

    A rule without a scope admits its whole limit in each data center.
    """
    return column.by_datacenter() if rule.scope == "datacenter" else [column]


def excess_of(rule: Rule, subject: tuple[str, str], column: Column) -> Excess:
    """Return the excess of the part of a key that exceeded its limit most."""
    assert rule.limit is not None
    worst = Excess()
    for part in limited_parts(rule, column):
        units = part.most_in(rule.limit.period_ns / 1e9)[0] - rule.limit.ceiling
        if units > worst.units:
            worst = Excess(units, part, subject)
    return worst


def worst_excess(ledger: Ledger, rule_of: Callable[[str, str], Rule | None]) -> Excess:
    """Return the largest excess of all keys. `rule_of` returns the rule that limits a key."""
    worst = Excess()
    for name in {name: None for name, _ in ledger.answers}:
        for key in ledger.keys(name):
            rule = rule_of(name, key)
            if rule is not None:
                found = excess_of(rule, (name, key), ledger.column(name, key))
                worst = max(worst, found, key=lambda each: each.units)
    return worst
