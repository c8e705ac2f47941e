"""Reports of checks that no rule can match: a count, and a log warning or, in strict mode, an
error.

Middleware knows its descriptors before the first check and declares them with `expect`. They are
compared with the rules immediately and after each change. Other checks are examined when they match
no rule.
"""

import logging
from collections.abc import Mapping, Sequence

from ringfence.client.requests.descriptors import require_domain, require_paths
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, RuleSet
from ringfence.rules.unmatched_requests import unknown_domain, unknown_path

__all__ = ["UnmatchedChecks"]

logger = logging.getLogger("ringfence.client")

_MAX = 256
"""Maximum number of kinds of checks that are remembered. Others are only counted."""

_Kind = tuple[str, tuple[str, ...]]
"""A domain, and the keys of one descriptor."""


class UnmatchedChecks:
    """Counts and reports unmatched checks of one limiter. Threads share it without a lock."""

    def __init__(self, *, strict: bool = False) -> None:
        """With `strict`, a check that no rule can match raises `ConfigError` instead of logging
        a warning."""
        self._strict = strict
        self._known = self._unknown = 0
        self._expected: dict[_Kind, None] = {}
        self._rules: RuleSet | None = None
        """Rules from which `_reported` and `_found` were computed."""
        self._reported: set[str] = set()
        self._found: dict[tuple[_Kind, ...], str] = {}
        """Problem of each kind of request; empty where a rule can match it."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of checks that matched no rule: `known` counts domains that the rules define,
        `unknown` others."""
        return {"known": self._known, "unknown": self._unknown}

    def expect(
        self, rules: RuleSet | None, domain: str, paths: Sequence[Sequence[str]]
    ) -> list[str]:
        """Declare the descriptor keys of later checks; return why no rule can match them.

        `rules` is None when they are not known yet; then `verify` compares them later.
        """
        require_paths(domain, paths)
        kinds = [(domain, tuple(path)) for path in paths]
        for kind in kinds:
            if len(self._expected) < _MAX:
                self._expected[kind] = None
        return [] if rules is None else self._report(rules, kinds)

    def verify(self, rules: RuleSet) -> None:
        """Compare all declared descriptors with the new rules after a change."""
        self._report(rules, list(self._expected))

    def note(self, rules: RuleSet, domain: str, request: Sequence[Descriptor]) -> None:
        """Count a check that matched no rule, and report it if no rule can match such checks.

        With `strict`, the report is a `ConfigError`.
        """
        require_domain(domain)
        is_known = rules.knows_domain(domain)
        if is_known:
            self._known += 1
        else:
            self._unknown += 1
        kinds = tuple([(domain, tuple([key for key, _ in each.entries])) for each in request])
        self._adopt(rules)
        problem = self._found.get(kinds)
        if problem is None:
            problem = self._examine(rules, is_known, kinds)
        if self._strict and problem:
            raise ConfigError(problem)

    def _examine(self, rules: RuleSet, is_known: bool, kinds: tuple[_Kind, ...]) -> str:
        is_full = len(self._found) >= _MAX
        if is_full and not self._strict:
            return ""
        problems = _problems(rules, kinds)
        if is_known and len(problems) < len(kinds):
            problems = []  # A rule matches such requests, but not these values.
        problem = "; ".join(dict.fromkeys(problems))
        if not is_full:
            self._found[kinds] = problem
            if not self._strict:
                self._warn(problems)
        return problem

    def _report(self, rules: RuleSet, kinds: Sequence[_Kind]) -> list[str]:
        self._adopt(rules)
        problems = list(dict.fromkeys(_problems(rules, kinds)))
        self._warn(problems)
        return problems

    def _adopt(self, rules: RuleSet) -> None:
        if rules is not self._rules:
            self._rules = rules
            self._reported, self._found = set(), {}

    def _warn(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self._reported and len(self._reported) < _MAX:
                self._reported.add(problem)
                logger.warning("Ringfence: %s", problem)


def _problems(rules: RuleSet, kinds: Sequence[_Kind]) -> list[str]:
    found = [
        unknown_domain(rules, domain) or unknown_path(rules, domain, path) for domain, path in kinds
    ]
    return [problem for problem in found if problem is not None]
