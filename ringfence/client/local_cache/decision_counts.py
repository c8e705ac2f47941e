"""Counts of decisions that this process made without a node, kept until a node has received them.

Denials are counted by key, and so are rules whose metric shows values; everything else is counted
by rule. When too many keys are kept, the keys with the fewest decisions are counted by rule: no
decision is lost, only its key. No I/O: `decision_reports` sends the counts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import TypeAlias

from msgspec import Struct

from ringfence.limiter import Code
from ringfence.rules import Rule
from ringfence.wire import MAX_REPORT_DECISIONS, MAX_REPORT_KEYS, MAX_REPORT_NAMED, Source

__all__ = ["MAX_DENIED", "Counted", "DecisionCounts"]

MAX_DENIED = 32
"""Maximum number of denied keys in one report."""
_MAX_DETAILED = MAX_REPORT_NAMED - MAX_DENIED
_MAX_KEYS = 4096
"""Maximum number of waiting rows by key. Beyond it, only the largest rows stay; others are
counted by rule."""
_MAX_RULES = MAX_REPORT_KEYS - MAX_REPORT_NAMED - len(Code) * len(Source)
"""Maximum number of rows by rule, besides one more row of each code and source."""
_DENIALS = (Code.DENIED.value, Code.NEVER.value)
_RULE_BYTES = 8
_OTHER = bytes(_RULE_BYTES)
"""Rule id for all rules beyond the maximum. Nodes show it as an unknown rule."""

_Row: TypeAlias = tuple[bytes, int, int]
"""Key or rule id, code and source of some decisions."""


class Counted(Struct, frozen=True):
    """Counts of decisions for one report. The first `named` rows have a key, the others only the id
    of a rule."""

    rows: Sequence[tuple[_Row, int]]
    named: int


class DecisionCounts:
    """Counts of decisions that this process made, by key or by rule; the number of counted keys
    is bounded."""

    def __init__(self, rule_of: Callable[[int], Rule | None]) -> None:
        self._rule_of = rule_of
        self._by_key: Counter[_Row] = Counter()
        self._by_rule: Counter[_Row] = Counter()

    def __bool__(self) -> bool:
        return bool(self._by_key or self._by_rule)

    def add(self, key: bytes, code: int, source: int, count: int = 1) -> None:
        """Count decisions for one key."""
        if code in _DENIALS or self._is_detailed(key):
            self._by_key[key, code, source] += count
            if len(self._by_key) > _MAX_KEYS:
                self._keep_largest()
        else:
            self._add_to_rule(key, code, source, count)

    def take(self) -> Counted | None:
        """Remove and return the counts for one report; None when there are none."""
        self._keep_largest()
        named = self._by_key.most_common()
        rows = [*named, *self._by_rule.most_common()]
        self._by_key.clear()
        self._by_rule.clear()
        room = MAX_REPORT_DECISIONS
        taken: list[tuple[_Row, int]] = []
        for (key, code, source), count in rows:
            part = min(count, room)
            room -= part
            if part:
                taken.append(((key, code, source), part))
            if count > part:
                self._add_to_rule(key, code, source, count - part)
        return Counted(taken, min(len(named), len(taken))) if taken else None

    def _keep_largest(self) -> None:
        """Keep the keys with the most decisions, and count the other keys by rule."""
        denied = [row for row in self._by_key.items() if row[0][1] in _DENIALS]
        others = [row for row in self._by_key.items() if row[0][1] not in _DENIALS]
        kept = Counter[_Row]()
        for rows, most in ((denied, MAX_DENIED), (others, _MAX_DETAILED)):
            for row, count in nlargest(most, rows, key=lambda row: (row[1], row[0])):
                kept[row] = count
        for (key, code, source), count in (self._by_key - kept).items():
            self._add_to_rule(key, code, source, count)
        self._by_key = kept

    def _add_to_rule(self, key: bytes, code: int, source: int, count: int) -> None:
        row = key[:_RULE_BYTES], code, source
        if row not in self._by_rule and len(self._by_rule) >= _MAX_RULES:
            row = _OTHER, code, source
        self._by_rule[row] += count

    def _is_detailed(self, key: bytes) -> bool:
        rule = self._rule_of(int.from_bytes(key[:_RULE_BYTES], "big"))
        return rule is not None and rule.is_detailed
