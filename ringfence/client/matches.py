"""Counters that requests of one descriptor met lately, so that a check need not look them up again.

Holds only what the shortest path can use: one descriptor, one rule with a limit of its own that
counts units. Everything else is matched each time.
"""

from collections.abc import Sequence

from ringfence.limiter import Algorithm
from ringfence.rules import Descriptor, Rule, RuleSet
from ringfence.rules.ruleset import Entries

__all__ = ["Matches"]

_MOST = 16_384
"""Counters remembered; then all are forgotten, and found again as they come by."""

_Known = dict[Entries, tuple[Rule, bytes]]
_NOTHING = (None, b"")


class Matches:
    """What the rules in force said last, by domain and entries; bounded."""

    __slots__ = ("_by_domain", "_count", "_rules")

    def __init__(self) -> None:
        self._rules: RuleSet | None = None
        self._by_domain: dict[str, _Known] = {}
        self._count = 0

    def find(
        self, rules: RuleSet, domain: str, descriptors: object
    ) -> tuple[Rule | None, bytes] | None:
        """Find the rule and key of a request; None when it must be matched in the usual way.

        The rule is None when none applies.
        """
        if type(descriptors) is dict:
            entries: Entries | None = tuple(descriptors.items())
        else:
            entries = _entries_of(descriptors)
        if not entries:
            return None
        if rules is not self._rules or self._count >= _MOST:
            self._rules, self._by_domain, self._count = rules, {}, 0
        try:
            known = self._by_domain.get(domain)
            if known is None:
                known = self._by_domain[domain] = {}
                self._count += 1
            found = known.get(entries)
            if found is None:
                found = rules.counter(domain, entries)
                if found is None:
                    return _NOTHING if _are_text(entries) else None
                if not _is_plain(found[0]):
                    return None
                known[entries] = found
                self._count += 1
        except (AttributeError, TypeError):
            return None  # Something is no text; whoever matches as usual says what.
        return found

    def find_all(
        self, rules: RuleSet, domain: str, requests: Sequence[object]
    ) -> tuple[list[Rule], list[bytes]] | None:
        """Find what many requests meet, as two columns; None when one must be matched as usual."""
        known = self._by_domain.get(domain, {}) if rules is self._rules else {}
        try:
            all_ = [known[tuple(each.items())] for each in requests]  # type: ignore[attr-defined]
        except (AttributeError, KeyError, TypeError):
            # Not all were seen lately, or are of this kind.
            all_ = []
            for each in requests:
                found = self.find(rules, domain, each)
                rule, key = _NOTHING if found is None else found
                if rule is None:
                    return None
                all_.append((rule, key))
        return [rule for rule, _ in all_], [key for _, key in all_]


def _entries_of(descriptors: object) -> Entries | None:
    """Read a descriptor that stands alone, without limit or cost of its own."""
    if isinstance(descriptors, list) and len(descriptors) == 1:
        descriptors = descriptors[0]
    if type(descriptors) is dict:
        return tuple(descriptors.items())
    if type(descriptors) is not Descriptor:
        return None
    is_plain = descriptors.limit is None and descriptors.cost is None
    return descriptors.entries if is_plain else None


def _are_text(entries: Entries) -> bool:
    return all([isinstance(key, str) and isinstance(value, str) for key, value in entries])


def _is_plain(rule: Rule) -> bool:
    limit = rule.limit
    return limit is not None and not rule.carried and limit.algorithm is not Algorithm.CONCURRENCY
