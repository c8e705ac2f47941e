"""Validation of rule files, and construction of rules from them.

One run reports all problems: violations of Envoy's own conditions, and mistakes that Envoy accepts
(a limit without an amount, a `replaces` without a target, a pattern that can never match).
`yaml_files` reads the files, and `rate_limit` reads the keys of a `rate_limit` map.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ringfence.rules.descriptor_tree import Domain, Open, Row, label
from ringfence.rules.glob import Glob, is_pattern
from ringfence.rules.keys import Path, rule_id
from ringfence.rules.loading.cursor import Cursor
from ringfence.rules.loading.metadata import read_metadata
from ringfence.rules.loading.problems import Findings, Problem, RuleFileError, in_order
from ringfence.rules.loading.rate_limit import (
    DEFAULT_KEYS,
    NOT_YET,
    RATE_LIMIT_KEYS,
    Defaults,
    RateLimit,
    read_defaults,
    read_rate_limit,
)
from ringfence.rules.loading.values import Item, Kind, Scalar, Table
from ringfence.rules.model import OnFailure, Rule
from ringfence.rules.periods import suggest
from ringfence.rules.ruleset import RuleSet

__all__ = ["LoadedRules", "SourceFile", "build_rules"]

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
        key: (f"{key} is not allowed at the top of the file", "move it into `defaults:`")
        for key in DEFAULT_KEYS
    },
}
_REFUSED_IN_DESCRIPTOR = {
    **NOT_YET,
    **{
        key: (f"{key} is only allowed inside rate_limit", "move it into `rate_limit:`")
        for key in RATE_LIMIT_KEYS
    },
}
_MAX_PATTERNS = 1000
_MAX_SUGGESTIONS = 50
"""Maximum number of unknown names that get a suggestion: a search among many names is slow."""
_MAX_NAMES = 1000
_GIVE_NAME = "add `name:` to the limit that must be replaced"


class SourceFile(Struct, frozen=True):
    """Rule file that was parsed but not validated yet."""

    name: str
    root: Item


class LoadedRules(Struct, frozen=True):
    """Loaded rules, with warnings about entries that are legal but probably mistakes."""

    rules: RuleSet
    warnings: tuple[Problem, ...]
    places: Mapping[int, tuple[str, int]]
    """File and line by rule id: of the key that sets the scope, or else of the limit."""


class _Sibling(Struct, frozen=True):
    """Child of a node in the descriptor tree, which is compared with the other children of that
    node."""

    cursor: Cursor
    line: int
    key: str
    value: str | None
    has_limit: bool
    has_children: bool

    def location_for(self, other: "_Sibling") -> str:
        """Return the line of this entry in its rule file, for a message about the entry `other`."""
        return f"line {self.line}" + (
            "" if self.cursor.file == other.cursor.file else f" of {self.cursor.file}"
        )


class _DomainBuilder(Struct):
    """Domain under construction while its files are read."""

    name: str
    cursor: Cursor
    line: int
    """Line of the domain's name in its first file."""
    rows: list[Row] = field(default_factory=list)
    top: list[_Sibling] = field(default_factory=list)
    replaces: list[tuple[Cursor, int, str]] = field(default_factory=list)
    on_failure: OnFailure | None = None
    places: dict[int, tuple[str, int]] = field(default_factory=dict)


def build_rules(
    files: Sequence[SourceFile],
    findings: Findings,
    defaults: Defaults | None,
    *,
    merge: bool,
    version: int,
) -> LoadedRules:
    """Build rules from parsed files. With `merge`, several files may contribute to one domain.

    Raises `RuleFileError` with all errors in `findings`, earlier ones included.
    """
    defaults = defaults or Defaults()
    builders: dict[str, _DomainBuilder] = {}
    for file in files:
        _read_file(file, findings, defaults, builders, merge)
    for domain in builders.values():
        _check_siblings(domain.top)
        _check_replaces(domain)
        _check_limits(domain)
    if findings.errors:
        raise RuleFileError(in_order(findings.errors))
    domains = [
        Domain(each.name, tuple(each.rows), each.on_failure or defaults.on_failure)
        for each in builders.values()
    ]
    places = {rule: at for domain in builders.values() for rule, at in domain.places.items()}
    return LoadedRules(RuleSet(domains, version=version), in_order(findings.warnings), places)


def _read_file(
    file: SourceFile,
    findings: Findings,
    defaults: Defaults,
    builders: dict[str, _DomainBuilder],
    merge: bool,
) -> None:
    cursor = Cursor(findings, file.name)
    table = cursor.table(file.root, "this rule file")
    if table is None:
        return
    fields = cursor.fields(table, _ROOT_KEYS, _REFUSED_AT_ROOT)
    name = cursor.required(table, fields, "domain", "begin the file with `domain: NAME`")
    cursor = cursor.below(name) if name else cursor
    line = fields["domain"].line if name else table.line
    domain = builders.get(name)
    if domain is None:
        domain = _DomainBuilder(name, cursor, line)
        if name:
            builders[name] = domain
    elif not merge:
        fix = "merge the two files, or allow sharing with --merge or merge_domains = true"
        cursor.error(line, f"domain {name!r} is already in {domain.cursor.file}", fix)
        domain = _DomainBuilder(name, cursor, line)
    item = fields.get("defaults")
    if item is not None:
        table_of_defaults = cursor.below("defaults").table(item, "defaults")
        if table_of_defaults is not None:
            before = defaults.on_failure
            defaults = read_defaults(cursor.below("defaults"), table_of_defaults, defaults)
            if defaults.on_failure is not before:
                _set_policy(domain, cursor, item.line, defaults.on_failure)
    _FileReader(domain, defaults).read(cursor, cursor.listing(fields, "descriptors"))


def _set_policy(domain: _DomainBuilder, cursor: Cursor, line: int, policy: OnFailure) -> None:
    """Set the failure policy of limits in requests; it belongs to the domain as a whole."""
    if domain.on_failure not in (None, policy):
        fix = "use the same value in all files of a domain"
        what = f"on_failure is {policy} here but {domain.on_failure} in an earlier file"
        cursor.error(line, what, fix)
    domain.on_failure = policy


class _FileReader:
    """Reader of the descriptors in one file, which adds them to a domain."""

    def __init__(self, domain: _DomainBuilder, defaults: Defaults) -> None:
        self._domain = domain
        self._defaults = defaults

    def read(self, cursor: Cursor, items: Sequence[Item]) -> None:
        """Read the outermost descriptors of the file; they are siblings of those in other files."""
        for item in items:
            self._read_one(cursor, item, (), (), self._domain.top)

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
        cursor = above.below(_label(table))
        fields = cursor.fields(table, _DESCRIPTOR_KEYS, _REFUSED_IN_DESCRIPTOR)
        key = cursor.required(table, fields, "key", "write `key: NAME`") or "?"
        value = cursor.text(fields, "value") or None
        if value is None and isinstance(fields.get("value"), Scalar):
            fix = "remove `value` if that is intended, or write the value"
            cursor.warn(fields["value"].line, "an empty value means any value", fix)
        path = (*path, (key, value))
        details = (*details, self._detail(cursor, fields, value))
        item_limit = fields.get("rate_limit")
        has_limit = item_limit is not None
        limit_table = None if item_limit is None else cursor.table(item_limit, "rate_limit")
        children = cursor.listing(fields, "descriptors")
        siblings.append(_Sibling(cursor, table.line, key, value, has_limit, bool(children)))
        rule = self._rule(cursor, fields, path, details, limit_table)
        self._domain.rows.append(rule or Open(path))
        below: list[_Sibling] = []
        for child in children:
            self._read_one(cursor, child, path, details, below)
        _check_siblings(below)

    def _detail(self, cursor: Cursor, fields: dict[str, Item], value: str | None) -> str:
        as_value = cursor.flag(fields, "value_to_metric")
        if cursor.flag(fields, "share_threshold"):
            if value is not None and is_pattern(value):
                return "share"
            line = fields["share_threshold"].line
            what = "share_threshold needs a `*` in the value"
            cursor.error(line, what, "write a pattern, or remove share_threshold")
        return "value" if as_value else ""

    def _rule(
        self,
        cursor: Cursor,
        fields: dict[str, Item],
        path: Path,
        details: tuple[str, ...],
        table: Table | None,
    ) -> Rule | None:
        shadow, quota, detailed = (cursor.flag(fields, name) for name in _RULE_FLAGS)
        item = fields.get("metadata")
        metadata = {} if item is None else read_metadata(cursor.below("metadata"), item)
        if table is None:
            for name in (*_RULE_FLAGS, "metadata"):
                if name in fields and "rate_limit" not in fields:
                    fix = "add a rate_limit, or remove it"
                    cursor.warn(
                        fields[name].line, f"{name} has no effect without a rate_limit", fix
                    )
            return None
        read = read_rate_limit(cursor.below("rate_limit"), table, self._defaults)
        if detailed:
            details = tuple("share" if detail == "share" else "detailed" for detail in details)
        if read.limit is None:
            for name in ("detailed_metric", "value_to_metric"):
                if name in fields:
                    what = f"{name} has no effect on an unlimited rule, which is not counted"
                    cursor.warn(fields[name].line, what, "remove it")
        self._add_replaces(cursor, read)
        identity = rule_id(self._domain.name, path)
        self._domain.places[identity] = (cursor.file, read.scope_line)
        return Rule(
            id=identity,
            domain=self._domain.name,
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

    def _add_replaces(self, cursor: Cursor, read: RateLimit) -> None:
        for name, line in read.replaces:
            self._domain.replaces.append((cursor.below("rate_limit"), line, name))


def _check_siblings(siblings: Sequence[_Sibling]) -> None:
    first: dict[tuple[str, str | None], _Sibling] = {}
    patterns: dict[str, list[tuple[Glob, _Sibling]]] = {}
    for sibling in siblings:
        other = first.setdefault((sibling.key, sibling.value), sibling)
        if other is not sibling:
            what = f"the same key and value are already in {other.location_for(sibling)}"
            sibling.cursor.error(sibling.line, what, "keep one of them")
            continue
        if "*" in sibling.key:
            what = "a `*` in a key is an ordinary character"
            sibling.cursor.warn(sibling.line, what, "write patterns into `value`")
        if sibling.value is not None and is_pattern(sibling.value):
            _check_pattern(sibling, Glob(sibling.value), patterns.setdefault(sibling.key, []))
    for sibling in first.values():
        if sibling.value is None:
            _check_any_value(sibling, [other for _, other in patterns.get(sibling.key, ())])
        else:
            _check_hidden_limit(sibling, first.get((sibling.key, None)))


def _check_pattern(sibling: _Sibling, glob: Glob, before: list[tuple[Glob, _Sibling]]) -> None:
    if len(before) == _MAX_PATTERNS:
        what = f"more than {_MAX_PATTERNS} patterns for one key; every check would try them all"
        sibling.cursor.error(sibling.line, what, "use broader patterns or exact values")
    if len(before) <= _MAX_PATTERNS:
        for broader, other in before:
            if broader.covers(glob):
                what = (
                    f"this pattern can never match: {other.value!r} in "
                    f"{other.location_for(sibling)} matches all its values"
                )
                sibling.cursor.error(
                    sibling.line, what, "move it above the broader one, or remove it"
                )
                break
        before.append((glob, sibling))


def _check_any_value(sibling: _Sibling, patterns: Sequence[_Sibling]) -> None:
    for other in patterns:
        if not (other.value or "").strip("*"):
            what = (
                f"this can never match: {other.value!r} in {other.location_for(sibling)} "
                "matches every value"
            )
            sibling.cursor.warn(sibling.line, what, "remove one of them")
            return


def _check_hidden_limit(sibling: _Sibling, any_value: _Sibling | None) -> None:
    if any_value is None or not any_value.has_limit or sibling.has_limit:
        return
    what = (
        f"this value has no limit, and the limit for any {sibling.key!r} in "
        f"{any_value.location_for(sibling)} does not apply to it"
    )
    fix = "unless it is an allow-list, add a rate_limit"
    if not sibling.has_children:
        fix += " or remove the descriptor"
    sibling.cursor.warn(sibling.line, what, fix)


def _check_replaces(domain: _DomainBuilder) -> None:
    names = {row.name for row in domain.rows if isinstance(row, Rule) and row.name}
    suggestions = _MAX_SUGGESTIONS if 0 < len(names) <= _MAX_NAMES else 0
    for cursor, line, name in domain.replaces:
        if name not in names:
            fix = suggest(name, sorted(names)) if suggestions > 0 else _GIVE_NAME
            suggestions -= 1
            cursor.error(line, f"replaces {name!r}, but no limit of this domain has that name", fix)


def _check_limits(domain: _DomainBuilder) -> None:
    """Warn about a domain without rules. Envoy accepts it, and requests may contain limits."""
    if not any(isinstance(row, Rule) for row in domain.rows):
        what = "the domain has no rate_limit, so its checks are never limited"
        fix = "add descriptors with a rate_limit, unless all limits are in requests"
        domain.cursor.warn(domain.line, what, fix)


def _label(table: Table) -> str:
    """Return a descriptor's name for error messages, before its keys are validated."""
    found = {
        key.text: value.text
        for key, value in table.pairs
        if isinstance(key, Scalar) and isinstance(value, Scalar) and value.kind is not Kind.NULL
    }
    return label(found.get("key") or "?", found.get("value") or None)
