"""Operations of each check of a client, in Python; `_check_ops` is the compiled version."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from ringfence.client.decision import Decision
from ringfence.client.requests.descriptors import MAX_COST
from ringfence.limiter import LoneDecider
from ringfence.peering.clock import Clock
from ringfence.rules import Rule, RuleSet
from ringfence.rules.keys import bounded, with_length
from ringfence.wire import OutcomeRow, Source

__all__ = ["LocalCheck", "LocalChecks", "Matches", "decision_of", "decisions_of"]

_OWNER = Source.OWNER.value

LocalCheck: TypeAlias = Callable[[str, object, int], Decision | None]
"""`LocalChecks.check`."""
_Match: TypeAlias = tuple[Rule | None, bytes]


class Matches:
    """Rules and keys of requests with one descriptor, which need not be matched again.

    The subclass has the method `match`, which finds the requests that are not known here.
    """

    __slots__ = ("known", "of_any_value", "rules")

    def __init__(self) -> None:
        self.rules: RuleSet | None = None
        """Rules to which the other attributes belong."""
        self.known: dict[tuple[str, ...], dict[object, tuple[Rule, bytes]]] = {}
        """Rules and keys of requests: of one entry by domain and key name, then by value; of others
        by domain, then by entries. It takes half the time to find requests of one entry."""
        self.of_any_value: dict[tuple[str, str], tuple[Rule, bytes]] = {}
        """Rules that match every value of an entry, with the beginning of their keys, by domain and
        name of the entry."""

    def find(self, rules: RuleSet, domain: str, descriptors: object) -> _Match | None:
        """Return the rule and key of a request; None when the general matching must be used.

        The rule is None when no rule matches.
        """
        found = self._find_known(domain, descriptors) if rules is self.rules else None
        return self.match(rules, domain, descriptors) if found is None else found

    def find_all(
        self, rules: RuleSet, domain: str, requests: Sequence[object]
    ) -> tuple[list[Rule], list[bytes]] | None:
        """Return the rules and keys of many requests; None when one of them matches no rule, or
        needs general matching."""
        matched: list[Rule] = []
        keys: list[bytes] = []
        for each in tuple(requests):  # A copy, because a key's code in Python could change it.
            found = self.find(rules, domain, each)
            if found is None or found[0] is None:
                return None
            matched.append(found[0])
            keys.append(found[1])
        return matched, keys

    def match(self, rules: RuleSet, domain: str, descriptors: object) -> _Match | None:
        """Find a request as `find` does, by the rules themselves."""
        raise NotImplementedError  # `MatchCache`, the only subclass, implements it.

    def _find_known(self, domain: str, descriptors: object) -> _Match | None:
        if type(descriptors) is not dict:
            return None
        try:
            if len(descriptors) != 1:
                return self.known[domain,].get(tuple(descriptors.items()))
            ((name, value),) = descriptors.items()
            found = self.of_any_value.get((domain, name))
            if found is None:
                return self.known[domain, name].get(value)
        except (KeyError, TypeError):
            return None  # Not known, or no text.
        if not isinstance(value, str):
            return None
        rule, head = found
        return rule, bounded(head + with_length(value))


class LocalChecks:
    """Single checks by a limiter engine in this process, which any thread may make.

    The lock is needed although the compiled form holds the interpreter's lock: an engine sometimes
    runs code in Python, for example to evict keys, and another thread may run meanwhile.
    """

    __slots__ = ("_clock", "_decide_lone", "_lock", "_matches", "_rules")

    def __init__(
        self,
        matches: Matches,
        rules: RuleSet,
        lock: AbstractContextManager[object],
        clock: Clock,
        decide_lone: LoneDecider,
    ) -> None:
        """`decide_lone` is that of the engine; `lock`, a `threading.Lock`, protects the engine."""
        self._matches = matches
        self._rules = rules
        self._lock = lock
        self._clock = clock
        self._decide_lone = decide_lone

    def check(self, domain: str, descriptors: object, cost: int) -> Decision | None:
        """Decide a check that matches a single counter; None for other and invalid checks."""
        if type(cost) is not int or not 0 <= cost <= MAX_COST:
            return None
        rule, key = self._matches.find(self._rules, domain, descriptors) or (None, b"")
        return None if rule is None else self.decide(rule, key, cost)

    def decide(self, rule: Rule, key: bytes, cost: int) -> Decision:
        """Decide a check of the rule's key by the limit of the rule."""
        with self._lock:
            row = self._decide_lone(key, cost, self._clock.now(), _OWNER)
        return Decision(rule, row)


def decision_of(rule: Rule | None, row: OutcomeRow) -> Decision:
    """Create the decision of a result row."""
    return Decision(rule, row)


def decisions_of(rules: list[Rule], rows: list[OutcomeRow]) -> list[Decision]:
    """Create the decision of each result row. Raises `ValueError` when the lengths differ."""
    return [Decision(rule, row) for rule, row in zip(rules, rows, strict=True)]
