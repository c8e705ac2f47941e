"""Rules given as Python maps and lists, with the keys of a rule file: no YAML needed.

For programs that keep their rules in code, and for tests. Values have no lines; the place in the
tree says where a mistake is.
"""

from collections.abc import Mapping, Sequence

from ringfence.rules.loading.build import Loaded, SourceFile, finish
from ringfence.rules.loading.rate_limit import Defaults
from ringfence.rules.loading.source import (
    Findings,
    Item,
    Kind,
    Listing,
    Problem,
    Scalar,
    Table,
    is_unicode,
)

__all__ = ["load_mapping"]

_MAX_DEPTH = 100


def load_mapping(
    rules: Mapping[str, object], name: str = "rules", *, defaults: Defaults | None = None
) -> Loaded:
    """Read one domain as a rule file would say it; the version is 0.

    `name` stands for the file in messages. Raises `RuleFileError`, a `ConfigError` that lists all
    problems.
    """
    findings = Findings()
    root = _Reader(name, findings).item(rules, 0)
    return finish([SourceFile(name, root)], findings, defaults, merge=False, version=0)


class _Reader:
    def __init__(self, name: str, findings: Findings) -> None:
        self._name = name
        self._findings = findings

    def item(self, value: object, depth: int) -> Item:
        """Take a value as the file's syntax would have; report what no file can hold."""
        if depth > _MAX_DEPTH:
            return self._odd(f"nested more than {_MAX_DEPTH} deep", "flatten it")
        if isinstance(value, Mapping):
            pairs = [
                (self.item(key, depth + 1), self.item(held, depth + 1))
                for key, held in value.items()
            ]
            return Table(tuple(pairs), 0)
        is_lone = value is None or isinstance(value, (bool, int, float, str))
        if is_lone or not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
            return self._scalar(value)
        return Listing(tuple(self.item(held, depth + 1) for held in value), 0)

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
                odd = "half a character" if isinstance(value, str) else type(value).__name__
                what = f"a value holds {odd}, which no rule file can"
                return self._odd(what, "use text, numbers, lists and maps")

    def _odd(self, what: str, mend: str) -> Item:
        self._findings.errors.append(Problem(self._name, 0, "", what, mend))
        return Scalar(Kind.NULL, "", 0)
