"""Counters that requests of one descriptor met lately, so that a check need not look them up again.

Holds only what the shortest path can use: one mapping, one rule with a limit of its own that counts
units. Everything else is matched each time.
"""

from collections.abc import Sequence

from ringfence.limiter import Algorithm
from ringfence.rules import Descriptor, Match, RuleSet

__all__ = ["Matches"]

_MOST = 8192
"""Matches in a generation; there are two, and what both hold too long ago is dropped."""

_Known = dict[tuple[tuple[str, str], ...], Match]


class Matches:
    """What the rules in force said last, by domain and entries; bounded."""

    __slots__ = ("_count", "_old", "_rules", "_young")

    def __init__(self) -> None:
        self._rules: RuleSet | None = None
        self._young: dict[str, _Known] = {}
        self._old: dict[str, _Known] = {}
        self._count = 0

    def find(self, rules: RuleSet, domain: str, descriptors: object) -> Match | None:
        """Find the counter of a request; None when it must be matched in the usual way."""
        if rules is self._rules and type(descriptors) is dict:
            try:
                return self._young[domain][tuple(descriptors.items())]
            except (KeyError, TypeError):  # Not seen lately, or no text.
                pass
        return self._learn(rules, domain, descriptors)

    def find_all(
        self, rules: RuleSet, domain: str, requests: Sequence[object]
    ) -> list[Match] | None:
        """Find the counters of many requests; None when one of them must be matched as usual."""
        if rules is self._rules:
            try:
                known = self._young[domain]
                return [known[tuple(each.items())] for each in requests]  # type: ignore[attr-defined]
            except (AttributeError, KeyError, TypeError):
                pass
        found: list[Match] = []
        for each in requests:
            match = self.find(rules, domain, each)
            if match is None:
                return None
            found.append(match)
        return found

    def _learn(self, rules: RuleSet, domain: str, descriptors: object) -> Match | None:
        if rules is not self._rules:
            self._rules = rules
            self._young, self._old, self._count = {}, {}, 0
        if type(descriptors) is not dict or not descriptors:
            return None
        entries = tuple(descriptors.items())
        try:
            match = self._old.get(domain, {}).get(entries)
            if match is None:
                match = rules.match(domain, (Descriptor(entries),))[0]
        except (AttributeError, TypeError):
            return None  # Something is no text; whoever matches as usual says what.
        if match is None or not _is_plain(match):
            return None
        if self._count >= _MOST:
            self._old, self._young, self._count = self._young, {}, 0
        self._young.setdefault(domain, {})[entries] = match
        self._count += 1
        return match


def _is_plain(match: Match) -> bool:
    limit = match.rule.limit
    return (
        limit is not None
        and not match.rule.carried
        and limit.algorithm is not Algorithm.CONCURRENCY
    )
