"""Counters that requests of one descriptor met lately, so that a check need not look them up again.

Holds only what the shortest path can use: one mapping, one rule with a limit of its own that counts
units. Everything else is matched each time.
"""

from collections.abc import Sequence

from ringfence.limiter import Algorithm
from ringfence.rules import Rule, RuleSet

__all__ = ["Matches"]

_MOST = 16_384
"""Counters remembered; then all are forgotten, and found again as they come by."""

_Known = dict[tuple[tuple[str, str], ...], tuple[Rule, bytes]]


class Matches:
    """What the rules in force said last, by domain and entries; bounded."""

    __slots__ = ("_by_domain", "_count", "_rules")

    def __init__(self) -> None:
        self._rules: RuleSet | None = None
        self._by_domain: dict[str, _Known] = {}
        self._count = 0

    def find(self, rules: RuleSet, domain: str, descriptors: object) -> tuple[Rule, bytes] | None:
        """Find the rule and key of a request; None when it must be matched in the usual way."""
        if type(descriptors) is not dict or not descriptors:
            return None
        if rules is not self._rules or self._count >= _MOST:
            self._rules, self._by_domain, self._count = rules, {}, 0
        entries = tuple(descriptors.items())
        try:
            known = self._by_domain.get(domain)
            if known is None:
                known = self._by_domain[domain] = {}
                self._count += 1
            found = known.get(entries)
            if found is None:
                found = rules.counter(domain, entries)
                if found is None or not _is_plain(found[0]):
                    return None
                known[entries] = found
                self._count += 1
        except (AttributeError, TypeError):
            return None  # Something is no text; whoever matches as usual says what.
        return found

    def find_all(
        self, rules: RuleSet, domain: str, requests: Sequence[object]
    ) -> list[tuple[Rule, bytes]] | None:
        """Find what many requests meet; None when one of them must be matched as usual."""
        if rules is self._rules:
            try:
                known = self._by_domain[domain]
                return [known[tuple(each.items())] for each in requests]  # type: ignore[attr-defined]
            except (AttributeError, KeyError, TypeError):
                pass  # Not all were seen lately, or are of this kind.
        all_: list[tuple[Rule, bytes]] = []
        for each in requests:
            found = self.find(rules, domain, each)
            if found is None:
                return None
            all_.append(found)
        return all_


def _is_plain(rule: Rule) -> bool:
    limit = rule.limit
    return limit is not None and not rule.carried and limit.algorithm is not Algorithm.CONCURRENCY
