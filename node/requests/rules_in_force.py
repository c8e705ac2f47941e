"""Current rules of one node, and removed rules, whose names are still needed for their counters."""

from ringfence.limiter import Limit
from ringfence.rules import Rule, RuleSet
from ringfence.wire import PackedRules

__all__ = ["RulesInForce"]

_MAX_REMOVED = 1024
"""Rules that are remembered after their removal."""
_DAY_NS = 86_400_000_000_000


class RulesInForce:
    """Current and removed rules of one node."""

    _packed: PackedRules | None = None

    def __init__(self, rules: RuleSet) -> None:
        self.current = rules
        self.hash = rules.content_hash()
        self.refusal = ""
        """Error in the rule files on disk, which are not in force then; empty without an error."""
        self._removed: dict[int, Rule] = {}

    def change(self, rules: RuleSet) -> None:
        """Replace the current rules by a new rule set.

        The version always increases, even if the new files are older, because clients only accept
        newer rules.
        """
        newer = max(rules.version, self.current.version + 1)
        for rule in self.current.rules():
            if rules.by_id(rule.id) is None:
                self._removed[rule.id] = rule
        while len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]
        self.current = RuleSet(rules.contents, version=newer)
        self.hash = rules.content_hash()
        self._packed = None

    def packed(self, seq: int) -> bytes:
        """Return the encoded rules; they are encoded once, because every client requests them."""
        if self._packed is None:
            self._packed = PackedRules(self.current.version, self.current.to_plain())
        return self._packed.to(seq)

    def rule(self, rule_id: int) -> Rule | None:
        """Return the current rule with this id; None when there is none."""
        return self.current.by_id(rule_id)

    def rule_of_key(self, key: bytes) -> tuple[Rule | None, bool]:
        """Return the rule that a key belongs to, and whether that rule is current or was
        removed."""
        number = int.from_bytes(key[:8], "big")
        rule = self.current.by_id(number)
        return (rule, True) if rule is not None else (self._removed.get(number), False)

    def counts_by(self, rule_id: int) -> bool:
        """Whether the rule with this id has a limit."""
        rule = self.current.by_id(rule_id)
        return rule is not None and rule.limit is not None

    def limit_of(self, key: bytes) -> Limit | None:
        """Return the limit by which a key is counted."""
        rule = self.current.by_id(int.from_bytes(key[:8], "big"))
        return None if rule is None else rule.limit

    def period_of(self, key: bytes) -> int:
        """Return the period in ns of the limit of a key; a day when the key has no limit."""
        limit = self.limit_of(key)
        return _DAY_NS if limit is None else limit.period_ns
