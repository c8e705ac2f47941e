"""Decisions that this process made without a node, counted until a node has been told.

Denials and rules whose metric shows values are counted by key, everything else by rule. When too
many keys wait, the keys with the fewest decisions are counted by their rule alone: no decision is
lost, only whose it was. A core: sending is `reporting`'s.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TypeAlias

from ringfence.limiter import Code
from ringfence.rules import Rule
from ringfence.wire import MAX_REPORT_DECISIONS, MAX_REPORT_KEYS, MAX_REPORT_NAMED, Source

__all__ = ["MOST_DENIED", "Counted", "LocalDecisions"]

MOST_DENIED = 32
"""Denied keys that one report names."""
_MOST_DETAILED = MAX_REPORT_NAMED - MOST_DENIED
_MOST_KEYS = 4096
"""Rows that wait for a report, by key; then all but the largest are counted by rule."""
_MOST_RULES = MAX_REPORT_KEYS - MAX_REPORT_NAMED - len(Code) * len(Source)
"""Rows by rule; there is room for one more of each code and source."""
_DENIALS = (Code.DENIED.value, Code.NEVER.value)
_RULE_BYTES = 8
_OTHER = bytes(_RULE_BYTES)
"""Stands for the rules beyond those that fit; nodes show it as a rule that they do not have."""

_Row: TypeAlias = tuple[bytes, int, int]
"""Key or rule, code and source of some decisions."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows of one report: the first `named` have a counter's key, the others only a rule's id."""

    rows: Sequence[tuple[_Row, int]]
    named: int


class LocalDecisions:
    """Counts of decisions, bounded in rows."""

    def __init__(self, rule_of: Callable[[int], Rule | None]) -> None:
        self._rule_of = rule_of
        self._by_key: Counter[_Row] = Counter()
        self._by_rule: Counter[_Row] = Counter()

    def __bool__(self) -> bool:
        return bool(self._by_key or self._by_rule)

    def add(self, key: bytes, code: int, source: int, count: int = 1) -> None:
        """Count decisions on one key."""
        if code in _DENIALS or self._is_detailed(key):
            self._by_key[key, code, source] += count
            if len(self._by_key) > _MOST_KEYS:
                self._keep_largest()
        else:
            self._add_to_rule(key, code, source, count)

    def take(self) -> Counted | None:
        """Take what waits, as much as one report may hold; None when nothing waits."""
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
        """Count all but the largest rows by rule."""
        denied = [row for row in self._by_key.items() if row[0][1] in _DENIALS]
        others = [row for row in self._by_key.items() if row[0][1] not in _DENIALS]
        kept = Counter[_Row]()
        for rows, most in ((denied, MOST_DENIED), (others, _MOST_DETAILED)):
            for row, count in nlargest(most, rows, key=lambda row: (row[1], row[0])):
                kept[row] = count
        for (key, code, source), count in (self._by_key - kept).items():
            self._add_to_rule(key, code, source, count)
        self._by_key = kept

    def _add_to_rule(self, key: bytes, code: int, source: int, count: int) -> None:
        row = key[:_RULE_BYTES], code, source
        if row not in self._by_rule and len(self._by_rule) >= _MOST_RULES:
            row = _OTHER, code, source
        self._by_rule[row] += count

    def _is_detailed(self, key: bytes) -> bool:
        rule = self._rule_of(int.from_bytes(key[:_RULE_BYTES], "big"))
        return rule is not None and rule.is_detailed
