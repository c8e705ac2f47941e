"""Rules of a run by the names in the ledger: rules of the file, and limits in the requests.

A request may carry a limit in two ways. An ad-hoc limit is in no rule. An override replaces the
rules for one descriptor.
"""

from collections.abc import Sequence

from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import Algorithm
from ringfence.rules import (
    Descriptor,
    Match,
    Rule,
    RuleSet,
    adhoc_rule,
    encode_key,
    parse_limit,
)
from simulations.scenarios.scenario import Load

__all__ = ["DOMAIN", "NamedRules", "descriptors_of"]

DOMAIN = "sim"
_CARRIED = "(no rule here)"
"""Name of all limits in requests in the statistics of nodes."""


class NamedRules:
    """Rules that the loads of a run use, by name."""

    def __init__(self, rules: RuleSet, loads: Sequence[Load]) -> None:
        """Raises `ValueError` for a load whose rule is not in the file."""
        self._rules = rules
        self.in_force = rules
        """Rules of the file that the nodes use now."""
        self._carrying = {name: load for load in loads for name in load.limits}
        known = {rule.path[-1][0] for rule in rules.rules()} | self._carrying.keys()
        names = {name: None for load in loads for name in load.names}
        unknown = sorted(names.keys() - known)
        if unknown:
            raise ValueError(
                f"keys of loads must be one of {', '.join(sorted(known))}, got {', '.join(unknown)}"
            )
        self.repeated = [
            self.label(rule.path[-1][0])
            for rule in rules.rules()
            if rule.scope == "split"
            or (rule.limit is not None and rule.limit.algorithm is Algorithm.CONCURRENCY)
        ]
        """Names, as of `label`, of rules whose checks nodes may decide several times.

        Callers that wait for a slot check again. Data centers borrow units of a split limit."""
        self.names = list(names)
        """Names of the rules, in the order of the loads."""

    @property
    def in_file(self) -> list[str]:
        """Return the names of the rules that are in the file."""
        return [name for name in self.names if name not in self._carrying]

    def limited(self) -> dict[str, Rule]:
        """Return the rules that limit requests, by name."""
        found = {name: self.rule(name, "k0") for name in self.names}
        return {name: rule for name, rule in found.items() if rule is not None}

    def match(self, name: str, key: str) -> Match | None:
        """Return the rule and the counter of a key."""
        load = self._carrying.get(name)
        if load is not None and not load.overrides:
            rule = adhoc_rule(parse_limit(load.limit))
            return Match(rule, encode_key(rule.id, (key,)), "adhoc")
        descriptor = Descriptor(((name, key),)) if load is None else _descriptor(load, name, key)
        return self._rules.match(DOMAIN, [descriptor])[0]

    def rule(self, name: str, key: str) -> Rule | None:
        """Return the rule that limits a key; None if no rule does."""
        match = self.match(name, key)
        return None if match is None or match.rule.limit is None else match.rule

    def label(self, name: str) -> str:
        """Return the name that the statistics of nodes have for a rule."""
        return _CARRIED if name in self._carrying else f"{DOMAIN} > {name}"

    async def peek(self, limiter: Limiter, name: str, key: str) -> Decision:
        """Peek at the counter of a key."""
        load = self._carrying.get(name)
        if load is None:
            return await limiter.peek(DOMAIN, {name: key})
        if load.overrides:
            return await limiter.peek(DOMAIN, [_descriptor(load, name, key)])
        return await limiter.peek_limit(load.limit, key)


def descriptors_of(load: Load, key: str) -> list[Descriptor]:
    """Return the descriptors of one request of a load."""
    return [_descriptor(load, name, key) for name in load.names]


def _descriptor(load: Load, name: str, key: str) -> Descriptor:
    text = load.limits.get(name) if load.overrides else None
    return Descriptor(((name, key),), limit=None if text is None else parse_limit(text))
