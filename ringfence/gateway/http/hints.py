"""Hints in answers: why a call had no effect, and what the caller can do about it."""

from collections.abc import Sequence

from ringfence.client.decision import Decision
from ringfence.rules import RuleSet
from ringfence.rules.unmatched_requests import unknown_domain, unknown_path
from ringfence.wire import BY_POLICY

__all__ = [
    "NOTHING_RELEASED",
    "NO_ANSWER_FOR_SLOTS",
    "SLOTS_ENDED",
    "UnmatchedHints",
    "refund_hint",
]

SLOTS_ENDED = "the slots were released or have expired; acquire new ones"
NOTHING_RELEASED = (
    "nothing to release: the slots were released before or have expired, or their owner has "
    "changed and the gateway's token lacks the scope refund, so they expire"
)
NO_ANSWER_FOR_SLOTS = (
    "no node answered for these slots in time; repeat the call, or let the slots expire"
)
_NOT_REFUNDED = (
    "nothing was refunded: no units were spent, or they no longer count, or the gateway's token "
    "lacks the scope refund and did not spend them"
)
_NO_ANSWER = "no node answered in time, so it is unknown whether units were refunded"
_MAX_KINDS = 256
"""Maximum number of kinds of requests with a specific hint. A search for similar names is slow."""

_Kind = tuple[str, tuple[tuple[str, ...], ...]]
"""A domain, and the keys of each descriptor."""


def refund_hint(decision: Decision, cost: int) -> str:
    """Return why a refund gave nothing back; empty if it did, or if its cost is 0."""
    if decision.refunded != 0 or not cost:
        return ""
    return _NO_ANSWER if decision.source in BY_POLICY else _NOT_REFUNDED


class UnmatchedHints:
    """Hints for requests that matched no rule, with the most similar names in the rules."""

    def __init__(self) -> None:
        self._rules: RuleSet | None = None
        """Rules from which `_found` was computed."""
        self._found: dict[_Kind, str] = {}

    def hint(self, rules: RuleSet, domain: str, descriptors: Sequence[dict[str, str]]) -> str:
        """Return what was looked up in the rules, and how to fix the request."""
        if rules is not self._rules:
            self._rules, self._found = rules, {}
        kind = domain, tuple([tuple(each) for each in descriptors])
        found = self._found.get(kind)
        if found is None:
            found = _hint(rules, *kind) if len(self._found) < _MAX_KINDS else ""
            if found:
                self._found[kind] = found
        return found or "no rule matches the domain and the descriptors, so nothing was limited"


def _hint(rules: RuleSet, domain: str, paths: Sequence[Sequence[str]]) -> str:
    if problem := unknown_domain(rules, domain):
        return problem
    problems = [unknown_path(rules, domain, path) for path in paths]
    problems += [
        f"the rules for descriptor key {' > '.join(path)!r} in domain {domain!r} have other values"
        for path, problem in zip(paths, problems, strict=True)
        if problem is None
    ]
    return "; ".join(dict.fromkeys([problem for problem in problems if problem is not None]))
