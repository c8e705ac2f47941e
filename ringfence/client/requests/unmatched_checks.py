"""Reports checks that no rule can match: a warning in the log, a count, or an error when strict.

Callers that know before the first check what they will ask, such as a middleware, declare it by
`expect`; it is verified at once and after each change of the rules. All other checks are looked at
when they match no rule.
"""

import logging
from collections.abc import Mapping, Sequence

from ringfence.client.requests.descriptors import require_domain
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, RuleSet
from ringfence.rules.unmatched_requests import unknown_domain, unknown_path

__all__ = ["Unmatched"]

logger = logging.getLogger("ringfence.client")

_MOST = 256
"""Most kinds of checks remembered as expected, and as reported. Further ones are counted only."""

_Kind = tuple[str, tuple[str, ...]]
"""A domain, and the keys of one descriptor."""


class Unmatched:
    """What one limiter knows of checks that match no rule. Shared by threads without a lock."""

    def __init__(self, *, strict: bool = False) -> None:
        """`strict` raises `ConfigError` where else a warning is logged."""
        self._strict = strict
        self._known = self._unknown = 0
        self._expected: dict[_Kind, None] = {}
        self._rules: RuleSet | None = None
        """The rules that the two below speak of."""
        self._reported: set[str] = set()
        self._found: dict[tuple[_Kind, ...], str] = {}
        """Problem of each kind of request seen, empty where some rule can match it."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Checks that no rule matched, by whether their domain is `known` or `unknown`."""
        return {"known": self._known, "unknown": self._unknown}

    def expect(
        self, rules: RuleSet | None, domain: str, paths: Sequence[Sequence[str]]
    ) -> list[str]:
        """Declare descriptors of coming checks by their keys; return why no rule can match them.

        `rules` is None when they are not known yet; then `verify` looks at what was declared.
        """
        kinds = [(domain, tuple(path)) for path in paths]
        for kind in kinds:
            if len(self._expected) < _MOST:
                self._expected[kind] = None
        return [] if rules is None else self._report(rules, kinds)

    def verify(self, rules: RuleSet) -> None:
        """Look at everything expected anew, for the rules have changed."""
        self._report(rules, list(self._expected))

    def note(self, rules: RuleSet, domain: str, request: Sequence[Descriptor]) -> None:
        """Count a check that no rule matched, and report it if no rule can match such checks.

        Raises `ConfigError` then, when strict.
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
            problem = self._look(rules, is_known, kinds)
        if self._strict and problem:
            raise ConfigError(problem)

    def _look(self, rules: RuleSet, is_known: bool, kinds: tuple[_Kind, ...]) -> str:
        is_full = len(self._found) >= _MOST
        if is_full and not self._strict:
            return ""
        problems = _problems(rules, kinds)
        if is_known and len(problems) < len(kinds):
            problems = []  # A rule counts such requests, though not with these values.
        problem = "; ".join(dict.fromkeys(problems))
        if not is_full:
            self._found[kinds] = problem
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
            if problem not in self._reported and len(self._reported) < _MOST:
                self._reported.add(problem)
                logger.warning("Ringfence: %s", problem)


def _problems(rules: RuleSet, kinds: Sequence[_Kind]) -> list[str]:
    found = [
        unknown_domain(rules, domain) or unknown_path(rules, domain, path) for domain, path in kinds
    ]
    return [problem for problem in found if problem is not None]
