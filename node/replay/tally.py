"""What a replay counts, and the descriptors it makes of a log's line."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.replay.logs import Entry
from ringfence.client.decision import Decision
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, RuleSet

__all__ = ["DOMAIN", "Shape", "Tally", "need_domain"]

DOMAIN = "log"
"""The domain of every check that a replay makes."""

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
        return tuple(
            [
                Descriptor(tuple([(name, getattr(entry, name)) for name in names]))
                for names in self.descriptors
            ]
        )


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
    denied_by_client: Counter[str] = field(default_factory=Counter)
    checked_by_client: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Entry, decision: Decision, *, is_undecided: bool = False) -> None:
        """Count one decision."""
        self.checks += 1
        self.checked_by_client[entry.client] += 1
        self.errors += is_undecided
        self.no_rule += all([status.rule is None for status in decision.statuses])
        if decision.allowed:
            self.allowed += 1
        else:
            self.denied += 1
            self.denied_by_client[entry.client] += 1

    def most_throttled(self, count: int) -> list[tuple[str, int, int]]:
        """The clients denied most often: name, denied, checked."""
        return [
            (client, denied, self.checked_by_client[client])
            for client, denied in self.denied_by_client.most_common(count)
        ]


def need_domain(rules: RuleSet, where: str) -> None:
    """Raise `ConfigError` when the rules say nothing of the domain that a replay checks in."""
    if not rules.knows_domain(DOMAIN):
        known = ", ".join(rules.domains) or "none"
        raise ConfigError(
            f"{where}: no rules for domain {DOMAIN!r}, in which a log's lines are checked "
            f"(domains there: {known}); begin the rule file with `domain: {DOMAIN}`"
        )
