"""What a node counts about itself, by name; `ringfence members` shows them."""

from collections import Counter

from ringfence.client.batch import Verdicts
from ringfence.limiter import Code
from ringfence.wire import Op

__all__ = ["Counters"]

_ALLOWED = Code.ALLOWED.value
_OTHERS = {Op.REFUND: "refunds", Op.RESET: "resets", Op.RENEW: "renewals"}
_ALWAYS = (
    *("checks", "allowed", "over_soft", "denied", "uncharged", "unknown_rule"),
    *("refunds", "resets", "renewals", "forwarded", "stood_in", "undecided", "repeated", "shed"),
    *("reloads", "reloads_refused", "slots_called"),
)
"""Counters that are there from the start, so that nobody must ask whether they are."""


class Counters:
    """Monotone counters since the node began."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_ALWAYS, 0))

    def add(self, name: str, count: int = 1) -> None:
        """Raise one counter."""
        self._counts[name] += count

    def decided(self, op: Op, verdicts: Verdicts, *, stand_in: bool) -> None:
        """Count a batch this node decided by its own counters."""
        counts = self._counts
        rows = len(verdicts.outcomes)
        if op is not Op.CHECK:
            counts[_OTHERS[op]] += rows
            return
        codes = verdicts.outcomes.codes
        counts["checks"] += rows
        allowed = codes.count(_ALLOWED)
        counts["allowed"] += allowed
        if allowed != rows:
            over_soft = codes.count(Code.OVER_SOFT)
            counts["allowed"] += over_soft
            counts["over_soft"] += over_soft
            counts["denied"] += codes.count(Code.DENIED) + codes.count(Code.NEVER)
            counts["uncharged"] += codes.count(Code.UNCHARGED)
            counts["unknown_rule"] += codes.count(Code.UNKNOWN_RULE)
        if stand_in:
            counts["stood_in"] += rows

    def as_dict(self) -> dict[str, int]:
        """All counters, sorted by name."""
        return dict(sorted(self._counts.items()))
