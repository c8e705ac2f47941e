"""Match cache: rule and key of recent requests, so that they need not be matched again.

It contains only requests with one descriptor that match one rule with a limit of units. Other
requests are matched each time. If a rule matches every value of an entry, the key of a request with
only this entry is computed. This takes a fifth of the time of matching, and little more than a
search in the cache.
"""

from collections.abc import Sequence

from ringfence.client.requests.batch_ops import find_lone, key_of_value, keys_of_values
from ringfence.limiter import Algorithm
from ringfence.rules import Descriptor, Rule, RuleSet
from ringfence.rules.ruleset import Entries

__all__ = ["MatchCache"]

_MAX_RECENT = 16_384
"""Counters found most recently. When there are so many, they become the older counters, and the
older ones that were not found again are removed."""

_Known = dict[object, tuple[Rule, bytes]]
"""Matches of one domain by their entries. Requests of one entry are stored by domain and key name,
then by value, which takes less than half the time to find."""
_NOTHING = (None, b"")


class MatchCache:
    """Bounded cache of the matches between requests and the current rules.

    A flood of keys that are seen once does not remove the keys that are seen again and again.
    """

    __slots__ = ("_count", "_known", "_of_any_value", "_older", "_rules")

    def __init__(self) -> None:
        self._rules: RuleSet | None = None
        self._known: dict[tuple[str, ...], _Known] = {}
        self._older: dict[tuple[str, ...], _Known] = {}
        self._count = 0
        self._of_any_value: dict[tuple[str, str], tuple[Rule, bytes]] = {}
        """Rules that match every value of an entry, with the beginning of their keys, by domain and
        name of the entry."""

    def find(
        self, rules: RuleSet, domain: str, descriptors: object
    ) -> tuple[Rule | None, bytes] | None:
        """Return the rule and key of a request; None when the general matching must be used.

        The rule is None when no rule matches.
        """
        if rules is not self._rules:
            self._use(rules)
        entries: Entries | None
        if type(descriptors) is dict:
            if len(descriptors) == 1:  # The usual case.
                lone = self._find_lone(domain, descriptors)
                if lone is not None:
                    return lone
            entries = tuple(descriptors.items())
        else:
            entries = _entries_of(descriptors)
        return self._find(rules, domain, entries) if entries else None

    def _find_lone(self, domain: str, entry: dict[str, str]) -> tuple[Rule, bytes] | None:
        """Return the rule and key of a request of one entry, if they can be computed or are
        cached."""
        ((name, value),) = entry.items()
        place = domain, name
        try:
            found = self._of_any_value.get(place)
            if found is None:
                return self._known[place][value]
        except (KeyError, TypeError):
            return None  # Not cached yet, or no text.
        key = key_of_value(found[1], value)
        return None if key is None else (found[0], key)

    def _find(
        self, rules: RuleSet, domain: str, entries: Entries
    ) -> tuple[Rule | None, bytes] | None:
        try:
            place, sought = _place_of(domain, entries)
            known = self._known.get(place)
            found = None if known is None else known.get(sought)
            if found is None:
                older = self._older.get(place)
                found = None if older is None else older.get(sought)
                if found is None:
                    found = rules.counter(domain, entries)
                    if found is None:
                        return _NOTHING if _are_text(entries) else None
                    if not _is_plain(found[0]):
                        return None
                self._add(place, sought, found)
        except (AttributeError, TypeError):
            return None  # A value is not text; general matching reports it.
        return found

    def _use(self, rules: RuleSet) -> None:
        """Forget the matches of other rules."""
        self._rules, self._known, self._older, self._count = rules, {}, {}, 0
        self._of_any_value = {
            place: (rule, rule.id.to_bytes(8, "big"))
            for place, rule in rules.rules_of_any_value().items()
            if _is_plain(rule)
        }

    def _add(self, place: tuple[str, ...], sought: object, found: tuple[Rule, bytes]) -> None:
        if self._count >= _MAX_RECENT:
            self._older, self._known, self._count = self._known, {}, 0
        self._known.setdefault(place, {})[sought] = found
        self._count += 1

    def find_all(
        self, rules: RuleSet, domain: str, requests: Sequence[object]
    ) -> tuple[list[Rule], list[bytes]] | None:
        """Return the rules and keys of many requests; None when one of them needs general
        matching."""
        if rules is not self._rules:
            self._use(rules)
        known = self._find_cached(domain, requests)
        if known is not None:
            return known
        matched: list[Rule] = []
        keys: list[bytes] = []
        for each in requests:
            found = self.find(rules, domain, each)
            rule, key = _NOTHING if found is None else found
            if rule is None:
                return None
            matched.append(rule)
            keys.append(key)
        return matched, keys

    def _find_cached(
        self, domain: str, requests: Sequence[object]
    ) -> tuple[list[Rule], list[bytes]] | None:
        """Return the rules and keys of many requests, if they can be computed or are all cached;
        otherwise None."""
        first = requests[0] if requests else None
        if type(first) is not dict:
            return None
        try:
            if len(first) == 1:
                (name,) = first
                found = self._of_any_value.get((domain, name))
                if found is not None:
                    keys = keys_of_values(found[1], name, requests)
                    return None if keys is None else ([found[0]] * len(requests), keys)
                return find_lone(self._known[domain, name], name, requests)
            known = self._known[domain,]
            matched = [known[tuple(each.items())] for each in requests]  # type: ignore[attr-defined]
        except (AttributeError, KeyError, TypeError):
            return None  # Not all are cached, or of this kind.
        return [rule for rule, _ in matched], [key for _, key in matched]


def _place_of(domain: str, entries: Entries) -> tuple[tuple[str, ...], object]:
    """Return where the rule and key of a descriptor are cached: name of a table, and key in it."""
    if len(entries) == 1:
        ((name, value),) = entries
        return (domain, name), value
    return (domain,), entries


def _entries_of(descriptors: object) -> Entries | None:
    """Return the entries of a request with a single descriptor that sets no limit or cost; None
    for other requests."""
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
