"""Detection of requests that no rule can match, with suggestions from the known names.

Two mistakes are legal in Envoy's semantics but limit nothing: a domain that is in no rule file,
and a descriptor whose keys are the path of no rule. Values are ignored, because another value of a
known key is an ordinary request.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from ringfence.rules.ruleset import RuleSet

__all__ = ["in_another_order", "known_paths", "unknown_domain", "unknown_path"]

_SHOWN = 8
_LONGEST = 100


def known_paths(rules: RuleSet, domain: str) -> tuple[tuple[str, ...], ...]:
    """Return the distinct key paths of the rules of `domain`, in file order."""
    paths = [tuple(key for key, _ in rule.path) for rule in rules.rules() if rule.domain == domain]
    return tuple(dict.fromkeys(paths))


def unknown_domain(rules: RuleSet, domain: str) -> str | None:
    """Return a message about a domain that is in no rule file; None when the domain is known."""
    if rules.knows_domain(domain):
        return None
    known = ", ".join(rules.domains)
    if not known:
        return (
            f"domain {_cut(domain)!r} has no rules, so its checks are never limited: there are no "
            "rules at all; start every node with the same --rules, or give rules to local()"
        )
    near = get_close_matches(domain[:_LONGEST], rules.domains, 1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"domain {_cut(domain)!r} has no rules, so its checks are never limited; {guess}"
        f"there are rules for {known}"
    )


def unknown_path(rules: RuleSet, domain: str, path: Sequence[str]) -> str | None:
    """Return a message about descriptor keys that are the path of no rule; None when they are."""
    known = known_paths(rules, domain)
    if tuple(path) in known:
        return None
    what = f"domain {domain!r} has no rule for descriptor key {_cut(_written(path))!r}"
    if not known:
        return f"{what}, so it is never limited: the rules of this domain have no limit"
    written = [_written(each) for each in known]
    near = in_another_order(known, path)
    guess = f"the order of the keys counts: did you mean {near!r}? " if near else ""
    if not near and (close := get_close_matches(_written(path)[:_LONGEST], written, 1)):
        guess = f"did you mean {close[0]!r}? "
    shown = ", ".join(written[:_SHOWN])
    more = f" and {len(written) - _SHOWN} more" if len(written) > _SHOWN else ""
    return f"{what}, so it is never limited; {guess}its rules are for {shown}{more}"


def in_another_order(known: Iterable[Sequence[str]], path: Sequence[str]) -> str:
    """Return that of the known paths which has the same keys as `path` in another order; empty if
    none has."""
    same = [_written(each) for each in known if sorted(each) == sorted(path)]
    return same[0] if same and _written(path) not in same else ""


def _written(path: Sequence[str]) -> str:
    return " > ".join(path)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
