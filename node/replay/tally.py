"""What a replay counts, and the descriptors it makes of a log's line."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from node.replay.logs import Entry
from ringfence.client.decision import Decision
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, Rule, RuleSet

__all__ = [
    "DOMAIN",
    "KEPT_CLIENTS",
    "RuleTally",
    "Shape",
    "Tally",
    "ThrottledClient",
    "Values",
    "need_domain",
]

DOMAIN = "log"
"""The domain of every check that a replay makes."""

KEPT_CLIENTS = 65_536
"""Clients whose counts are kept at least; beyond twice as many the least denied are dropped."""

Values: TypeAlias = str | tuple[str, ...]
"""One field of a line alone, or several."""

_FIELDS = ("client", "method", "path", "status")


@dataclass(frozen=True, slots=True)
class Shape:
    """Which fields of a line make which descriptor."""

    descriptors: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "Shape":
        """Read `client`, `client,path` and so on, one descriptor each."""
        shape = tuple(tuple(name.strip() for name in text.split(",")) for text in texts)
        for names in shape:
            for name in names:
                if name not in _FIELDS:
                    raise ConfigError(
                        f"--descriptor: a line has no {name!r}; choose from {', '.join(_FIELDS)}"
                    )
        return cls(shape)

    def of(self, entry: Entry) -> tuple[Descriptor, ...]:
        """Describe one line."""
        return self.describe(self.reader()(entry))

    def reader(self) -> Callable[[Entry], Values]:
        """Give the function that reads the fields of a line that `describe` needs."""
        return attrgetter(*[name for names in self.descriptors for name in names])

    def describe(self, values: Values) -> tuple[Descriptor, ...]:
        """Make the descriptors of lines with these fields."""
        rest = iter((values,) if isinstance(values, str) else values)
        return tuple(
            [
                Descriptor(tuple([(name, next(rest)) for name in names]))
                for names in self.descriptors
            ]
        )


class ThrottledClient(NamedTuple):
    """A client that was denied."""

    client: str
    denied: int
    checked: int
    rule: Rule | None
    """The rule that denied it most often; None when no rule did, but `on_failure`."""


@dataclass(slots=True)
class RuleTally:
    """What one rule did."""

    rule: Rule
    checks: int = 0
    denied: int = 0
    """Checks over its limit; a shadow rule would have denied them."""


@dataclass(slots=True)
class Tally:
    """The counts of one replay."""

    checks: int = 0
    allowed: int = 0
    denied: int = 0
    errors: int = 0
    """Checks that no member decided, at least for one of their counters: `on_failure` did."""
    no_rule: int = 0
    """Checks that met no rule at all, and so were allowed."""
    late: int = 0
    """Lines too far out of order to be counted at their own time."""
    most_late_ns: int = 0
    """How far the time of the worst of them lay back."""
    rules: dict[int, RuleTally] = field(default_factory=dict)
    """Every rule with a limit that was met, by its id."""
    denied_by_client: Counter[str] = field(default_factory=Counter)
    checked_by_client: Counter[str] = field(default_factory=Counter)
    denied_by_rule: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Denials by client and id of the rule."""
    clients_dropped: bool = False
    """Whether there were too many clients to count: then what is known by client is a minimum."""

    @classmethod
    def of(cls, rules: RuleSet) -> "Tally":
        """Begin a tally that knows all rules which a line may meet."""
        known = [rule for rule in rules.rules() if rule.domain == DOMAIN and rule.limit is not None]
        return cls(rules={rule.id: RuleTally(rule) for rule in known})

    def add(self, entry: Entry, decision: Decision, *, is_undecided: bool = False) -> None:
        """Count one decision."""
        self.errors += is_undecided
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
        """Count the client of every denied check, and the client and id of every rule behind it.

        Comes before `add_lines` of the same checks.
        """
        self.denied += len(clients)
        self.denied_by_client.update(clients)
        self.denied_by_rule.update(pairs)

    def add_lines(self, clients: Sequence[str]) -> None:
        """Count the client of every check."""
        self.checks += len(clients)
        self.allowed = self.checks - self.denied
        self.checked_by_client.update(clients)
        if len(self.checked_by_client) > 2 * KEPT_CLIENTS:
            self._drop_clients()

    def most_throttled(self, count: int) -> list[ThrottledClient]:
        """The clients denied most often."""
        return [
            ThrottledClient(client, denied, self.checked_by_client[client], self._rule_of(client))
            for client, denied in self.denied_by_client.most_common(count)
        ]

    def rules_by_denials(self) -> list[RuleTally]:
        """Every rule that was met, the one that denied most first."""
        return sorted(self.rules.values(), key=lambda tally: -tally.denied)

    def _rule_of(self, client: str) -> Rule | None:
        worst = max(
            self.rules, key=lambda number: self.denied_by_rule[client, number], default=None
        )
        if worst is None or not self.denied_by_rule[client, worst]:
            return None
        return self.rules[worst].rule

    def _drop_clients(self) -> None:
        """Keep the clients denied most, then those that asked most."""
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


def need_domain(rules: RuleSet, where: str) -> None:
    """Raise `ConfigError` when the rules say nothing of the domain that a replay checks in."""
    if not rules.knows_domain(DOMAIN):
        known = ", ".join(rules.domains) or "none"
        raise ConfigError(
            f"{where}: no rules for domain {DOMAIN!r}, in which a log's lines are checked "
            f"(domains there: {known}); begin the rule file with `domain: {DOMAIN}`"
        )
