"""From the values of rule files to rules: what may stand where, and what it means.

Reports everything that is wrong in one run, Envoy's own conditions and those that Envoy lets pass:
a limit without an amount, `replaces` that names nothing, a pattern that can never match. Files and
syntax are `load`'s, the keys of a `rate_limit` are `ratelimit`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringfence.rules.descriptor_tree import Domain, Open, Row, label
from ringfence.rules.glob import Glob, is_pattern
from ringfence.rules.keys import Path, rule_id
from ringfence.rules.loading.metadata import read_metadata
from ringfence.rules.loading.rate_limit import (
    DEFAULT_KEYS,
    NOT_YET,
    RATE_LIMIT_KEYS,
    Defaults,
    RateLimit,
    read_defaults,
    read_rate_limit,
)
from ringfence.rules.loading.source import (
    Cursor,
    Findings,
    Item,
    Kind,
    Problem,
    RuleFileError,
    Scalar,
    Table,
    in_order,
)
from ringfence.rules.model import OnFailure, Rule
from ringfence.rules.periods import suggest
from ringfence.rules.ruleset import RuleSet

__all__ = ["Loaded", "SourceFile", "finish"]

_ROOT_KEYS = ("domain", "descriptors", "defaults")
_RULE_FLAGS = ("shadow_mode", "quota_mode", "detailed_metric")
_DESCRIPTOR_KEYS = (
    *("key", "value", "rate_limit", "descriptors", "share_threshold", "value_to_metric"),
    *_RULE_FLAGS,
    "metadata",
)
_REFUSED_AT_ROOT = {
    **NOT_YET,
    **{
        key: (f"{key} stands at the top of the file", "move it into `defaults:`")
        for key in DEFAULT_KEYS
    },
}
_REFUSED_IN_DESCRIPTOR = {
    **NOT_YET,
    **{
        key: (f"{key} stands outside of rate_limit", "move it into `rate_limit:`")
        for key in RATE_LIMIT_KEYS
    },
}
_MOST_PATTERNS = 1000
_MOST_SUGGESTIONS = 50
"""Names that replace nothing and get a suggestion: finding the nearest of many names is slow."""
_MOST_NAMES = 1000
_GIVE_NAME = "give the limit to drop a `name:`"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One parsed rule file."""

    name: str
    root: Item


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rules, and what is legal in their files yet perhaps not meant."""

    rules: RuleSet
    warnings: tuple[Problem, ...]
    places: Mapping[int, tuple[str, int]]
    """By the identity of a rule, file and line of what says its scope, or of its limit."""


@dataclass(frozen=True, slots=True)
class _Sibling:
    """What the checks among the children of one place need to know of each."""

    spot: Cursor
    line: int
    key: str
    value: str | None
    has_limit: bool
    has_children: bool

    def stands_in(self, other: "_Sibling") -> str:
        """Name our line, as seen from a message about `other`."""
        return f"line {self.line}" + (
            "" if self.spot.file == other.spot.file else f" of {self.spot.file}"
        )


@dataclass(slots=True)
class _Namespace:
    """A domain while its files are read."""

    name: str
    spot: Cursor
    rows: list[Row] = field(default_factory=list)
    top: list[_Sibling] = field(default_factory=list)
    replaces: list[tuple[Cursor, int, str]] = field(default_factory=list)
    on_failure: OnFailure | None = None
    places: dict[int, tuple[str, int]] = field(default_factory=dict)


def finish(
    files: Sequence[SourceFile],
    findings: Findings,
    defaults: Defaults | None,
    *,
    merge: bool,
    version: int,
) -> Loaded:
    """Make rules of parsed files. `merge` lets several files speak of one domain.

    Raises `RuleFileError` with all of `findings`' errors, those from before included.
    """
    defaults = defaults or Defaults()
    spaces: dict[str, _Namespace] = {}
    for file in files:
        _read_file(file, findings, defaults, spaces, merge)
    for space in spaces.values():
        _check_siblings(space.top)
        _check_replaces(space)
    if findings.errors:
        raise RuleFileError(in_order(findings.errors))
    domains = [
        Domain(space.name, tuple(space.rows), space.on_failure or defaults.on_failure)
        for space in spaces.values()
    ]
    places = {rule: held for space in spaces.values() for rule, held in space.places.items()}
    return Loaded(RuleSet(domains, version=version), in_order(findings.warnings), places)


def _read_file(
    file: SourceFile,
    findings: Findings,
    defaults: Defaults,
    spaces: dict[str, _Namespace],
    merge: bool,
) -> None:
    spot = Cursor(findings, file.name)
    table = spot.table(file.root, "a rule file")
    if table is None:
        return
    fields = spot.fields(table, _ROOT_KEYS, _REFUSED_AT_ROOT)
    name = spot.required(table, fields, "domain", "begin the file with `domain: NAME`")
    spot = spot.below(name) if name else spot
    space = spaces.get(name)
    if space is None:
        space = _Namespace(name, spot)
        if name:
            spaces[name] = space
    elif not merge:
        mend = "merge the two files, or let them share it: --merge, or merge_domains = true"
        line = fields["domain"].line
        spot.error(line, f"domain {name!r} is already in {space.spot.file}", mend)
        space = _Namespace(name, spot)
    held = fields.get("defaults")
    if held is not None:
        read = spot.below("defaults").table(held, "defaults")
        if read is not None:
            before = defaults.on_failure
            defaults = read_defaults(spot.below("defaults"), read, defaults)
            if defaults.on_failure is not before:
                _settle_policy(space, spot, held.line, defaults.on_failure)
    _Walk(space, defaults).read(spot, spot.listing(fields, "descriptors"))


def _settle_policy(space: _Namespace, spot: Cursor, line: int, policy: OnFailure) -> None:
    """Keep the policy for limits that come with requests, which belongs to a domain as a whole."""
    if space.on_failure not in (None, policy):
        mend = "let all files of a domain agree"
        what = f"on_failure is {policy} here but {space.on_failure} in an earlier file"
        spot.error(line, what, mend)
    space.on_failure = policy


class _Walk:
    """Reads the descriptors of one file into its domain."""

    def __init__(self, space: _Namespace, defaults: Defaults) -> None:
        self._space = space
        self._defaults = defaults

    def read(self, spot: Cursor, items: Sequence[Item]) -> None:
        """Read the outermost descriptors; they are siblings of those of other files."""
        for item in items:
            self._read_one(spot, item, (), (), self._space.top)

    def _read_one(
        self,
        above: Cursor,
        item: Item,
        path: Path,
        details: tuple[str, ...],
        siblings: list[_Sibling],
    ) -> None:
        table = above.table(item, "a descriptor")
        if table is None:
            return
        spot = above.below(_label(table))
        fields = spot.fields(table, _DESCRIPTOR_KEYS, _REFUSED_IN_DESCRIPTOR)
        key = spot.required(table, fields, "key", "write `key: NAME`") or "?"
        value = spot.text(fields, "value") or None
        if value is None and isinstance(fields.get("value"), Scalar):
            mend = "drop `value` to say so, or write the value"
            spot.warn(fields["value"].line, "an empty value means any value", mend)
        path = (*path, (key, value))
        details = (*details, self._detail(spot, fields, value))
        held = fields.get("rate_limit")
        limit_table = None if held is None else spot.table(held, "rate_limit")
        children = spot.listing(fields, "descriptors")
        siblings.append(_Sibling(spot, table.line, key, value, held is not None, bool(children)))
        rule = self._rule(spot, fields, path, details, limit_table)
        self._space.rows.append(rule or Open(path))
        below: list[_Sibling] = []
        for child in children:
            self._read_one(spot, child, path, details, below)
        _check_siblings(below)

    def _detail(self, spot: Cursor, fields: dict[str, Item], value: str | None) -> str:
        as_value = spot.flag(fields, "value_to_metric")
        if spot.flag(fields, "share_threshold"):
            if value is not None and is_pattern(value):
                return "share"
            line = fields["share_threshold"].line
            what = "share_threshold without a `*` in the value"
            spot.error(line, what, "write a pattern, or drop share_threshold")
        return "value" if as_value else ""

    def _rule(
        self,
        spot: Cursor,
        fields: dict[str, Item],
        path: Path,
        details: tuple[str, ...],
        table: Table | None,
    ) -> Rule | None:
        shadow, quota, detailed = (spot.flag(fields, name) for name in _RULE_FLAGS)
        held = fields.get("metadata")
        metadata = {} if held is None else read_metadata(spot.below("metadata"), held)
        if table is None:
            for name in (*_RULE_FLAGS, "metadata"):
                if name in fields and "rate_limit" not in fields:
                    mend = "add a rate_limit, or drop it"
                    spot.warn(fields[name].line, f"{name} does nothing without a rate_limit", mend)
            return None
        read = read_rate_limit(spot.below("rate_limit"), table, self._defaults)
        if detailed:
            details = tuple("share" if detail == "share" else "detailed" for detail in details)
        if read.limit is None:
            for name in ("detailed_metric", "value_to_metric"):
                if name in fields:
                    what = f"{name} does nothing for an unlimited rule, which is not counted"
                    spot.warn(fields[name].line, what, "drop it")
        self._note_replaces(spot, read)
        identity = rule_id(self._space.name, path)
        self._space.places[identity] = (spot.file, read.scope_line)
        return Rule(
            id=identity,
            domain=self._space.name,
            path=path,
            limit=read.limit,
            unit=read.unit,
            name=read.name,
            replaces=tuple(name for name, _ in read.replaces),
            shadow=shadow,
            quota=quota,
            on_failure=read.on_failure,
            leases=read.leases,
            scope=read.scope,
            home=read.home,
            metadata=metadata,
            details=details if any(details) else (),
        )

    def _note_replaces(self, spot: Cursor, read: RateLimit) -> None:
        for name, line in read.replaces:
            self._space.replaces.append((spot.below("rate_limit"), line, name))


def _check_siblings(siblings: Sequence[_Sibling]) -> None:
    first: dict[tuple[str, str | None], _Sibling] = {}
    patterns: dict[str, list[tuple[Glob, _Sibling]]] = {}
    for sibling in siblings:
        other = first.setdefault((sibling.key, sibling.value), sibling)
        if other is not sibling:
            what = f"the same key and value stand in {other.stands_in(sibling)}"
            sibling.spot.error(sibling.line, what, "keep one of them")
            continue
        if "*" in sibling.key:
            what = "a `*` in a key is a plain character"
            sibling.spot.warn(sibling.line, what, "write patterns into `value`")
        if sibling.value is not None and is_pattern(sibling.value):
            held = patterns.setdefault(sibling.key, [])
            _check_pattern(sibling, Glob(sibling.value), held)
    for sibling in first.values():
        if sibling.value is None:
            _check_any_value(sibling, [other for _, other in patterns.get(sibling.key, ())])
        else:
            _check_hiding(sibling, first.get((sibling.key, None)))


def _check_pattern(sibling: _Sibling, glob: Glob, before: list[tuple[Glob, _Sibling]]) -> None:
    if len(before) == _MOST_PATTERNS:
        what = f"more than {_MOST_PATTERNS} patterns under one key, all tried for every check"
        sibling.spot.error(sibling.line, what, "use broader patterns or exact values")
    if len(before) <= _MOST_PATTERNS:
        for broader, other in before:
            if broader.covers(glob):
                what = (
                    f"this pattern can never match: {other.value!r} in "
                    f"{other.stands_in(sibling)} takes all its values"
                )
                sibling.spot.error(sibling.line, what, "move it above the broader one, or drop it")
                break
        before.append((glob, sibling))


def _check_any_value(sibling: _Sibling, patterns: Sequence[_Sibling]) -> None:
    for other in patterns:
        if not (other.value or "").strip("*"):
            what = (
                f"this can never be met: {other.value!r} in {other.stands_in(sibling)} "
                "takes every value"
            )
            sibling.spot.warn(sibling.line, what, "drop one of them")
            return


def _check_hiding(sibling: _Sibling, any_value: _Sibling | None) -> None:
    if any_value is None or not any_value.has_limit or sibling.has_limit:
        return
    what = (
        f"no limit stands here, so the one for any {sibling.key!r} in "
        f"{any_value.stands_in(sibling)} does not count for this value"
    )
    mend = "if this is no allow-list, add a rate_limit"
    if not sibling.has_children:
        mend += " or drop the descriptor"
    sibling.spot.warn(sibling.line, what, mend)


def _check_replaces(space: _Namespace) -> None:
    names = {row.name for row in space.rows if isinstance(row, Rule) and row.name}
    suggestions = _MOST_SUGGESTIONS if 0 < len(names) <= _MOST_NAMES else 0
    for spot, line, name in space.replaces:
        if name not in names:
            mend = suggest(name, sorted(names)) if suggestions > 0 else _GIVE_NAME
            suggestions -= 1
            spot.error(line, f"replaces {name!r}, but no limit of this domain has that name", mend)


def _label(table: Table) -> str:
    """Name a descriptor in messages before its keys are checked."""
    found = {
        key.text: value.text
        for key, value in table.pairs
        if isinstance(key, Scalar) and isinstance(value, Scalar) and value.kind is not Kind.NULL
    }
    return label(found.get("key") or "?", found.get("value") or None)
