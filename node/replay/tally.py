"""Counts of a replay by rule and client, and the descriptors of a log line."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from node.replay.log_formats import Entry
from ringfence.client.decision import Decision
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, Rule, RuleSet
from ringfence.rules.periods import suggest
from ringfence.rules.unmatched_requests import unknown_path

__all__ = [
    "DOMAIN",
    "KEPT_CLIENTS",
    "RuleTally",
    "Shape",
    "Tally",
    "ThrottledClient",
    "Values",
]

DOMAIN = "log"
"""The domain of the checks that a replay makes, unless another is chosen."""

KEPT_CLIENTS = 65_536
"""Number of clients to keep; beyond twice as many, those with the fewest denials are dropped."""

Values: TypeAlias = str | tuple[str, ...]
"""One field of a line alone, or several."""

_FIELDS = ("client", "method", "path", "status")


class Shape(Struct, frozen=True):
    """The request that a log line stands for: its domain, and the fields in its descriptors."""

    descriptors: tuple[tuple[tuple[str, str], ...], ...]
    """Key and field of each entry, by descriptor."""
    domain: str = DOMAIN

    @classmethod
    def parse(cls, texts: Sequence[str], domain: str = DOMAIN) -> "Shape":
        """Parse texts such as `client` or `remote_address=client,path`, one for each descriptor.

        The key of an entry is the name of its field, unless another key stands before it.
        """
        shape = [tuple(map(_entry_of, text.split(","))) for text in texts]
        return cls(tuple(shape), domain)

    def require_domain(self, rules: RuleSet, where: str) -> None:
        """Raise `ConfigError` when the rules lack the domain."""
        if not rules.knows_domain(self.domain):
            known = ", ".join(rules.domains) or "none"
            raise ConfigError(
                f"{where}: no rules for domain {self.domain!r}, in which a log's lines are checked "
                f"(domains there: {known}); choose one with --domain"
            )

    def unmatched(self, rules: RuleSet) -> list[str]:
        """Return a message for each descriptor whose keys are the path of no rule."""
        paths = [[key for key, _ in entries] for entries in self.descriptors]
        found = [unknown_path(rules, self.domain, path) for path in paths]
        return [problem for problem in found if problem is not None]

    def of(self, entry: Entry) -> tuple[Descriptor, ...]:
        """Return the descriptors of one log line."""
        return self.describe(self.reader()(entry))

    def reader(self) -> Callable[[Entry], Values]:
        """Return a function that extracts the fields for `describe` from a line."""
        return attrgetter(*[name for entries in self.descriptors for _, name in entries])

    def describe(self, values: Values) -> tuple[Descriptor, ...]:
        """Return the descriptors of log lines with the given field values."""
        rest = iter((values,) if isinstance(values, str) else values)
        return tuple(
            [
                Descriptor(tuple([(key, next(rest)) for key, _ in entries]))
                for entries in self.descriptors
            ]
        )


def _entry_of(word: str) -> tuple[str, str]:
    """Return the key of an entry and its field of a log line."""
    key, equals, name = map(str.strip, word.rpartition("="))
    if name not in _FIELDS or (equals and not key):
        hint = suggest(name, _FIELDS)  # Without a similar word it repeats the list.
        raise ConfigError(
            f"--descriptor must have words FIELD or KEY=FIELD, with the fields "
            f"{', '.join(_FIELDS)}, got {word!r}" + (f"; {hint}" if hint.startswith("did") else "")
        )
    return key or name, name


class ThrottledClient(NamedTuple):
    """Client with at least one denial, and its counts."""

    client: str
    denied: int
    checked: int
    rule: Rule | None
    """The rule with the most denials of the client; None when only `on_failure` denied it."""


class RuleTally(Struct):
    """Checks and denials of one rule in a replay."""

    rule: Rule
    checks: int = 0
    denied: int = 0
    """Checks over its limit; a shadow rule would have denied them."""


class Tally(Struct):
    """Counts of one replay: checks and denials by rule and by client."""

    checks: int = 0
    allowed: int = 0
    denied: int = 0
    undecided: int = 0
    """Checks with a counter that `on_failure` decided instead of a member."""
    no_rule: int = 0
    """Checks that matched no rule and so were allowed."""
    late: int = 0
    """Lines that were too late to be counted at their own time."""
    most_late_ns: int = 0
    """Largest delay of such a line."""
    evicted: int = 0
    """Counters that an offline replay evicted while in use; without them it denies too little."""
    rules: dict[int, RuleTally] = field(default_factory=dict)
    """Matched rules with a limit, by id."""
    denied_by_client: Counter[str] = field(default_factory=Counter)
    checked_by_client: Counter[str] = field(default_factory=Counter)
    denied_by_rule: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Denials by client and id of the rule."""
    clients_dropped: bool = False
    """Whether clients were dropped; then counts per client are minimums."""

    @classmethod
    def of(cls, rules: RuleSet, domain: str) -> "Tally":
        """Create empty counts for all rules that a line may match."""
        known = [rule for rule in rules.rules() if rule.domain == domain and rule.limit is not None]
        return cls(rules={rule.id: RuleTally(rule) for rule in known})

    def add(self, entry: Entry, decision: Decision, *, is_undecided: bool = False) -> None:
        """Count the decision for one line."""
        self.undecided += is_undecided
        self.no_rule += all([status.rule is None for status in decision.statuses])
        pairs: list[tuple[str, int]] = []
        for status in decision.statuses:
            rule = status.rule
            if rule is None or rule.limit is None:
                continue
            tally = self.rules.setdefault(rule.id, RuleTally(rule))
            tally.checks += 1
            tally.denied += status.over_shadow or not status.allowed
            if not status.allowed:
                pairs.append((entry.client, rule.id))
        if not decision.allowed:
            self.deny([entry.client], pairs)
        self.add_lines([entry.client])

    def deny(self, clients: Sequence[str], pairs: Iterable[tuple[str, int]]) -> None:
        """Count denials by client, with the id of each denying rule.

        Call it before `add_lines` of the same checks.
        """
        self.denied += len(clients)
        self.denied_by_client.update(clients)
        self.denied_by_rule.update(pairs)

    def add_lines(self, clients: Sequence[str]) -> None:
        """Count one check for the client of each line."""
        self.checks += len(clients)
        self.allowed = self.checks - self.denied
        self.checked_by_client.update(clients)
        if len(self.checked_by_client) > 2 * KEPT_CLIENTS:
            self._drop_clients()

    def most_throttled(self, count: int) -> list[ThrottledClient]:
        """Return the clients with the most denials, in descending order."""
        return [
            ThrottledClient(client, denied, self.checked_by_client[client], self._rule_of(client))
            for client, denied in self.denied_by_client.most_common(count)
        ]

    def rules_by_denials(self) -> list[RuleTally]:
        """Return every rule that matched a line, the rule with the most denials first."""
        return sorted(self.rules.values(), key=lambda tally: -tally.denied)

    def _rule_of(self, client: str) -> Rule | None:
        worst = max(
            self.rules, key=lambda number: self.denied_by_rule[client, number], default=None
        )
        if worst is None or not self.denied_by_rule[client, worst]:
            return None
        return self.rules[worst].rule

    def _drop_clients(self) -> None:
        """Drop the counts of clients beyond the bound, first those with few denials, then those
        with few checks."""
        self.clients_dropped = True
        denied, checked = self.denied_by_client, self.checked_by_client
        kept = set(
            nlargest(KEPT_CLIENTS, checked, key=lambda client: (denied[client], checked[client]))
        )
        self.checked_by_client = Counter({client: checked[client] for client in kept})
        self.denied_by_client = Counter(
            {client: count for client, count in denied.items() if count and client in kept}
        )
        self.denied_by_rule = Counter(
            {key: count for key, count in self.denied_by_rule.items() if key[0] in kept}
        )
