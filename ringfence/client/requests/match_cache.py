"""Match cache: rule and key of recent requests, so that they need not be matched again.

It contains only requests with one descriptor that match one rule with a limit of units. Other
requests are matched each time. If a rule matches every value of an entry, the key of a request with
only this entry is computed. This takes a fifth of the time of matching, and little more than a
search in the cache.
"""

from ringfence.client.requests.check_ops import Matches
from ringfence.limiter import Algorithm
from ringfence.rules import Descriptor, Rule, RuleSet
from ringfence.rules.ruleset import Entries

__all__ = ["MatchCache"]

_MAX_RECENT = 16_384
"""Counters found most recently. When there are so many, they become the older counters, and the
older ones that were not found again are removed."""

_Known = dict[tuple[str, ...], dict[object, tuple[Rule, bytes]]]
_NOTHING = (None, b"")


class MatchCache(Matches):
    """Bounded cache of the matches between requests and the current rules.

    A flood of keys that are seen once does not remove the keys that are seen again and again.
    """

    __slots__ = ("_count", "_older")

    def __init__(self) -> None:
        super().__init__()
        self._older: _Known = {}
        self._count = 0

    def match(
        self, rules: RuleSet, domain: str, descriptors: object
    ) -> tuple[Rule | None, bytes] | None:
        """Find a request that was not found recently."""
        if rules is not self.rules:
            self._use(rules)
            return self.find(rules, domain, descriptors)
        entries = _entries_of(descriptors)
        if not entries:
            return None
        try:
            place, sought = _place_of(domain, entries)
            found = _found_in(self.known, place, sought)
            if found is None:
                found = _found_in(self._older, place, sought) or rules.counter(domain, entries)
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
        self.rules, self.known, self._older, self._count = rules, {}, {}, 0
        self.of_any_value = {
            place: (rule, rule.id.to_bytes(8, "big"))
            for place, rule in rules.rules_of_any_value().items()
            if _is_plain(rule)
        }

    def _add(self, place: tuple[str, ...], sought: object, found: tuple[Rule, bytes]) -> None:
        if self._count >= _MAX_RECENT:
            self._older, self.known, self._count = self.known, {}, 0
        self.known.setdefault(place, {})[sought] = found
        self._count += 1


def _place_of(domain: str, entries: Entries) -> tuple[tuple[str, ...], object]:
    """Return where the rule and key of a descriptor are cached: name of a table, and key in it."""
    if len(entries) == 1:
        ((name, value),) = entries
        return (domain, name), value
    return (domain,), entries


def _found_in(matches: _Known, place: tuple[str, ...], sought: object) -> tuple[Rule, bytes] | None:
    found = matches.get(place)
    return None if found is None else found.get(sought)


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
