"""Rules as Python mappings and lists with the keys of a rule file; no YAML library is needed.

For programs that keep their rules in code, and for tests. Values have no line numbers, so messages
only contain the path in the descriptor tree.
"""

from collections.abc import Mapping, Sequence

from ringfence.rules.loading.build import LoadedRules, SourceFile, build_rules
from ringfence.rules.loading.problems import Findings, Problem
from ringfence.rules.loading.rate_limit import Defaults
from ringfence.rules.loading.values import (
    MAX_DEPTH,
    Item,
    Kind,
    Listing,
    Scalar,
    Table,
    is_unicode,
)

__all__ = ["load_mapping"]


def load_mapping(
    rules: Mapping[str, object], name: str = "rules", *, defaults: Defaults | None = None
) -> LoadedRules:
    """Read one domain from a mapping with the structure of a rule file; the version is 0.

    `name` is the file name in messages. Raises `RuleFileError`, a `ConfigError` that lists all
    problems.
    """
    findings = Findings()
    root = _Reader(name, findings).item(rules, 0)
    return build_rules([SourceFile(name, root)], findings, defaults, merge=False, version=0)


class _Reader:
    def __init__(self, name: str, findings: Findings) -> None:
        self._name = name
        self._findings = findings

    def item(self, value: object, depth: int) -> Item:
        """Convert a Python value; report a value that a rule file could not contain."""
        if depth > MAX_DEPTH:
            return self._invalid(f"nested more than {MAX_DEPTH} deep", "flatten it")
        if isinstance(value, Mapping):
            pairs = [
                (self.item(key, depth + 1), self.item(each, depth + 1))
                for key, each in value.items()
            ]
            return Table(tuple(pairs), 0)
        is_single = value is None or isinstance(value, (bool, int, float, str))
        if is_single or not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
            return self._scalar(value)
        return Listing(tuple(self.item(each, depth + 1) for each in value), 0)

    def _scalar(self, value: object) -> Item:
        match value:
            case None:
                return Scalar(Kind.NULL, "", 0)
            case bool():
                return Scalar(Kind.FLAG, str(value).lower(), 0)
            case str() if is_unicode(value):
                return Scalar(Kind.TEXT, value, 0)
            case int():
                return Scalar(Kind.WHOLE, str(value), 0)
            case float():
                return Scalar(Kind.FLOAT, str(value), 0)
            case _:
                got = (
                    "text with a lone surrogate" if isinstance(value, str) else type(value).__name__
                )
                what = f"values must be text, numbers, flags, lists or maps, got {got}"
                return self._invalid(what, "use a type that a rule file can contain")

    def _invalid(self, what: str, fix: str) -> Item:
        self._findings.errors.append(Problem(self._name, 0, "", what, fix))
        return Scalar(Kind.NULL, "", 0)
