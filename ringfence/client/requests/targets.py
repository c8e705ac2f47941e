"""Targets of a request: descriptors that match rules, or one counter of an ad-hoc limit."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from ringfence.client.requests.descriptors import require_domain, require_text
from ringfence.errors import ConfigError
from ringfence.limiter import Limit
from ringfence.rules import Descriptor, Match, Rule, RuleSet, adhoc_rule, encode_key, parse_limit

__all__ = ["AdhocLimits", "AdhocTarget", "Counters", "DescriptorTarget", "Target"]

_MAX_ADHOC_RULES = 1024


class Counters(Protocol):
    """Counters of a request: those of a target, or some of them."""

    def match(self, rules: RuleSet) -> Sequence[Match | None]:
        """Return the counter of each descriptor by the given rules."""


class DescriptorTarget(Struct, frozen=True):
    """Target that consists of the counters matched by a request's descriptors."""

    domain: str
    descriptors: tuple[Descriptor, ...]

    @property
    def slots_advice(self) -> str:
        """Error text of `hold` when no concurrency limit applies."""
        return (
            "hold must have a rule with algorithm concurrency, got descriptors of domain "
            f"{self.domain!r} that match no such rule; use check or acquire for other limits"
        )

    def match(self, rules: RuleSet) -> Sequence[Match | None]:
        """Find the counter of each descriptor. Raises `ConfigError` for keys or values that are
        not text."""
        try:
            found = rules.match(self.domain, self.descriptors)
        except (AttributeError, TypeError):
            self._require_text()
            raise
        if None in found:
            self._require_text()
        return found

    def _require_text(self) -> None:
        require_domain(self.domain)
        require_text(self.descriptors)


class AdhocTarget(Struct, frozen=True):
    """Target that is the counter of one ad-hoc limit, which is in no rule."""

    rule: Rule
    key: bytes

    @property
    def slots_advice(self) -> str:
        """Error text of `hold_limit` for a limit without slots."""
        return (
            "hold_limit must have a concurrency limit, such as '4 concurrent', got "
            f"{self.rule.limit!r}; use check_limit or acquire_limit for other limits"
        )

    def match(self, rules: RuleSet) -> Sequence[Match | None]:
        """Return the counter of the ad-hoc limit; rules do not affect it."""
        return (Match(self.rule, self.key, "adhoc"),)


Target: TypeAlias = DescriptorTarget | AdhocTarget


class AdhocLimits:
    """Cache of rules made from ad-hoc limits, by the text of the limit."""

    def __init__(self) -> None:
        self._rules: dict[str | Limit, Rule] = {}

    def target(self, limit: str | Limit, key: Sequence[str]) -> AdhocTarget:
        """Return the counter of a limit and a key. Raises `ConfigError`."""
        rule = self._rule(limit)
        if not key or not all([isinstance(part, str) for part in key]):
            raise ConfigError(
                f"key must be one or more texts, got {tuple(key)!r}; write it as in "
                "check_limit('5/s', 'user:42')"
            )
        return AdhocTarget(rule, encode_key(rule.id, key))

    def _rule(self, limit: str | Limit) -> Rule:
        if not isinstance(limit, str | Limit):
            raise ConfigError(f"limit must be text such as '5/s', or a Limit, got {limit!r}")
        rule = self._rules.get(limit)
        if rule is None:
            rule = adhoc_rule(parse_limit(limit) if isinstance(limit, str) else limit)
            if len(self._rules) >= _MAX_ADHOC_RULES:
                self._rules.clear()
            self._rules[limit] = rule
        return rule
