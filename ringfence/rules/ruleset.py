"""All rules of a node or a client, and the matching of requests against them.

Matching follows Envoy: each entry selects the child with its exact value, else the first matching
pattern in file order, else the child for any value. There is no backtracking to siblings, and only
the limit at the last entry applies. `serialize` converts rules to plain data, `loading` reads
files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TypeAlias

from msgspec.structs import replace

from ringfence.errors import ConfigError, RemoteProtocolError
from ringfence.rules.descriptor_tree import Domain, Row, place, with_steps
from ringfence.rules.glob import Glob, is_pattern
from ringfence.rules.keys import MAX_KEY, bounded, decode_key, override_id, trial_id, with_length
from ringfence.rules.model import Descriptor, Match, OnFailure, Rule
from ringfence.rules.serialize import Plain, domains_from_plain, to_plain

__all__ = ["RuleSet", "counted_places", "metric_name", "metric_of_key"]

Entries: TypeAlias = tuple[tuple[str, str], ...]

_MAX_OVERRIDES = 4096
"""Most different names of entries, per domain, of limits in descriptors."""


class RuleSet:
    """Immutable set of rules. Two sets are equal if their domains are equal, even with different
    versions.

    Raises `ConfigError` when a domain or a path in it occurs twice, or two rules have the same id.
    """

    __slots__ = ("_by_id", "_content_hash", "_domains", "_replacing", "_roots", "_version")

    def __init__(self, domains: Iterable[Domain] = (), *, version: int = 0) -> None:
        self._version = version
        self._content_hash: int | None = None
        self._domains = tuple(
            Domain(domain.name, tuple(with_steps(domain)), domain.on_failure) for domain in domains
        )
        self._roots: dict[str, _Root] = {}
        self._by_id: dict[int, Rule] = {}
        for domain in self._domains:
            if domain.name in self._roots:
                raise ConfigError(f"domain {domain.name!r} occurs twice; merge its rules")
            self._roots[domain.name] = _build_tree(domain)
        for rule in self.rules():
            other = self._by_id.setdefault(rule.id, rule)
            if other is not rule:
                raise ConfigError(
                    f"{place(other.domain, other.path)} and {place(rule.domain, rule.path)} have "
                    f"the same 64-bit identity {rule.id:016x}; rename a key of one of them"
                )
        self._replacing = any(rule.replaces for rule in self.rules())

    @classmethod
    def of(cls, *rules: Rule, version: int = 0) -> "RuleSet":
        """Create a rule set from rules, grouped by domain in the given order."""
        rows: dict[str, list[Row]] = {}
        for rule in rules:
            rows.setdefault(rule.domain, []).append(rule)
        return cls((Domain(name, tuple(each)) for name, each in rows.items()), version=version)

    @property
    def version(self) -> int:
        """Version of the rules: higher is newer, 0 when they come from no file."""
        return self._version

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of all domains, in file order."""
        return tuple(self._roots)

    @property
    def contents(self) -> tuple[Domain, ...]:
        """All domains with all nodes of their descriptor trees, including nodes without a limit."""
        return self._domains

    def rules(self) -> tuple[Rule, ...]:
        """Return all rules in file order: the nodes of the descriptor trees with a limit or
        `unlimited`."""
        return tuple(
            row for domain in self._domains for row in domain.rows if isinstance(row, Rule)
        )

    def by_id(self, identity: int) -> Rule | None:
        """Return the rule with the given id, which is the first 8 bytes of its counter keys."""
        return self._by_id.get(identity)

    def override_policy(self, identity: int) -> OnFailure | None:
        """Return the failure policy for the limit in a descriptor, by its id: that of the domain.

        None for other ids, and for the default policy.
        """
        roots = self._roots.values()
        return next((each.domain.on_failure for each in roots if identity in each.overrides), None)

    def knows_domain(self, domain: str) -> bool:
        """Whether any file defines `domain`."""
        return domain in self._roots

    def match(self, domain: str, descriptors: Sequence[Descriptor]) -> tuple[Match | None, ...]:
        """Return the rule and counter key for each descriptor of a request, None where no rule
        applies.

        A match is also None when another match of the same request replaces it by name. Cost: one
        or two look-ups per entry, and one text search per pattern tried.
        """
        root = self._roots.get(domain)
        if root is None:
            return (None,) * len(descriptors)
        if len(descriptors) == 1:  # By far the most frequent request.
            return (_match(root, descriptors[0]),)
        found = tuple([_match(root, descriptor) for descriptor in descriptors])
        return _without_replaced(found) if self._replacing else found

    def counter(self, domain: str, entries: Entries) -> tuple[Rule, bytes] | None:
        """Return rule and counter key as `match` does, for a descriptor that contains no limit and
        no cost.

        Does not compute the metric name.
        """
        root = self._roots.get(domain)
        node = None if root is None else _walk(root, entries)
        if node is None or node.rule is None:
            return None
        return node.rule, node.key_of(entries)

    def rules_of_any_value(self) -> dict[tuple[str, str], Rule]:
        """Return the rules that match every descriptor with only one entry, whatever its value, by
        domain and name of the entry.

        The key of such a descriptor is `bounded`: the rule's id, and the value as `with_length`
        encodes it.
        """
        found: dict[tuple[str, str], Rule] = {}
        for domain, root in self._roots.items():
            special = {*root.patterns, *(name for name, _ in root.exact)}
            for name, node in root.bare.items():
                if node.rule is not None and node.counted == (0,) and name not in special:
                    found[domain, name] = node.rule
        return found

    def as_carried(self) -> "RuleSet":
        """Return a copy of the rules whose limits are sent with each check, for nodes without
        these rules."""
        return self._with_rules(Rule.as_carried)

    def as_trial(self, salt: bytes) -> "RuleSet":
        """Return a copy of the rules with other ids, so that a trial run has counters of its own.

        Trials with the same `salt` share counters. Limits are sent with checks, because no owner
        has these rules.
        """

        def as_trial(rule: Rule) -> Rule:
            return replace(rule, id=trial_id(rule.id, salt), carried=True)

        return self._with_rules(as_trial)

    def _with_rules(self, change: Callable[[Rule], Rule]) -> "RuleSet":
        domains = [
            replace(
                domain,
                rows=tuple(change(row) if isinstance(row, Rule) else row for row in domain.rows),
            )
            for domain in self._domains
        ]
        return RuleSet(domains, version=self._version)

    def content_hash(self) -> int:
        """Return a 48-bit hash of the rules; it does not depend on the version."""
        if self._content_hash is None:
            text = repr(to_plain(0, self._domains)).encode("utf-8", "surrogatepass")
            digest = blake2b(text, digest_size=6).digest()
            self._content_hash = int.from_bytes(digest, "big")
        return self._content_hash

    def to_plain(self) -> Plain:
        """Convert the rules to nested lists, to send them to clients."""
        return to_plain(self._version, self._domains)

    @classmethod
    def from_plain(cls, plain: Plain) -> "RuleSet":
        """Create a rule set from the nested lists that `to_plain` returned.

        Raises `RemoteProtocolError` when it is invalid.
        """
        try:
            version, domains = domains_from_plain(plain)
            return cls(domains, version=version)
        except ConfigError as error:
            raise RemoteProtocolError(f"rules: {error}") from error

    def __eq__(self, other: object) -> bool:
        return self._domains == other._domains if isinstance(other, RuleSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # Metadata is free-form and cannot be hashed.

    def __repr__(self) -> str:
        return f"RuleSet({', '.join(self.domains)}; {len(self._by_id)} rules, v{self._version})"


class _Node:
    """Node of the descriptor tree, prepared for look-ups."""

    __slots__ = (
        "bare",
        "constant_match",
        "counted",
        "exact",
        "head",
        "metric",
        "patterns",
        "rule",
    )

    def __init__(self) -> None:
        self.exact: dict[tuple[str, str], _Node] = {}
        self.patterns: dict[str, list[tuple[Glob, _Node]]] = {}
        self.bare: dict[str, _Node] = {}
        self.rule: Rule | None = None
        self.head = b""
        self.counted: tuple[int, ...] = ()
        """Indices of the entries whose values are part of the key."""
        self.constant_match: Match | None = None
        """The match, when it is the same for all requests."""
        self.metric: str | None = None
        """Metric name, when it contains no value of the request."""

    def next(self, entry: tuple[str, str]) -> "_Node | None":
        """Return the child of a tree node for an entry that no child matches exactly: a pattern,
        or any value."""
        key, value = entry
        if key in self.patterns:
            for glob, child in self.patterns[key]:
                if glob.matches(value):
                    return child
        return self.bare.get(key)

    def child(self, key: str, value: str | None) -> "_Node":
        """Return the child of a tree node for a configured value; create the child if it is
        missing."""
        if value is None:
            return self.bare.setdefault(key, _Node())
        if not is_pattern(value):
            return self.exact.setdefault((key, value), _Node())
        patterns = self.patterns.setdefault(key, [])
        for glob, child in patterns:
            if glob.pattern == value:
                return child
        patterns.append((Glob(value), _Node()))
        return patterns[-1][1]

    def key_of(self, entries: Entries) -> bytes:
        """Return the counter key for the entries of a descriptor; this node of the tree must
        have a rule."""
        key = self.head
        for index in self.counted:
            key += with_length(entries[index][1])
        return key if len(key) <= MAX_KEY else bounded(key)

    def set_rule(self, rule: Rule) -> None:
        """Set the rule of a node in the descriptor tree."""
        self.rule = rule
        self.head = rule.id.to_bytes(8, "big")
        self.counted = tuple(counted_places(rule))
        if not rule.is_detailed:
            self.metric = metric_name(rule, ())
            if not self.counted:
                self.constant_match = Match(rule, self.head, self.metric)


class _Root(_Node):
    __slots__ = ("domain", "overrides")

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self.domain = domain
        self.overrides: set[int] = set()
        """Ids of limits in descriptors of this domain, if a failure policy applies to them."""


def _match(root: _Root, descriptor: Descriptor) -> Match | None:
    entries = descriptor.entries
    if descriptor.limit is not None:
        return _override(root, descriptor)
    node = _walk(root, entries)
    if node is None:
        return None
    if node.constant_match is not None and descriptor.cost is None:
        return node.constant_match
    if node.rule is None:
        return None
    key = node.key_of(entries)
    metric = node.metric
    if metric is None:
        metric = metric_name(node.rule, [value for _, value in entries])
    return Match(node.rule, key, metric, descriptor.cost)


def _walk(root: _Root, entries: Entries) -> _Node | None:
    """Find the node of the descriptor tree for the entries of a descriptor; None when an entry
    has no child."""
    node: _Node = root
    for entry in entries:
        child = node.exact.get(entry) or node.next(entry)
        if child is None:
            return None
        node = child
    return node


def _override(root: _Root, descriptor: Descriptor) -> Match | None:
    """Create the match of a descriptor that contains a limit; all its values are part of the
    counter key."""
    if not descriptor.entries:
        return None
    domain, keys = root.domain, [key for key, _ in descriptor.entries]
    rule = Rule(
        id=override_id(domain.name, keys),
        domain=domain.name,
        path=tuple((key, None) for key in keys),
        limit=descriptor.limit,
        carried=True,
        on_failure=domain.on_failure,
    )
    if domain.on_failure is not OnFailure.ALLOW and len(root.overrides) < _MAX_OVERRIDES:
        root.overrides.add(rule.id)
    key = rule.id.to_bytes(8, "big")
    metric = domain.name
    for name, value in descriptor.entries:
        key += with_length(value)
        metric += f".{name}_{value}"
    return Match(rule, bounded(key), metric, descriptor.cost)


def _without_replaced(found: tuple[Match | None, ...]) -> tuple[Match | None, ...]:
    replaced = {name for match in found if match is not None for name in match.rule.replaces}
    if not replaced:
        return found
    return tuple(
        None if match is not None and match.rule.name in replaced else match for match in found
    )


def counted_places(rule: Rule) -> Iterator[int]:
    """Yield the indices of the descriptor entries whose values are part of a rule's counter
    keys, in order."""
    for index, (_, value) in enumerate(rule.path):
        if value is None or (is_pattern(value) and _detail(rule, index) != "share"):
            yield index


def metric_name(rule: Rule, values: Sequence[str]) -> str:
    """Return the metric name of a rule for the values of a request, as Envoy's rate limit service
    does.

    An empty value is written without the `_` before it for `value_to_metric`. For
    `detailed_metric` this holds only when a level of the rule has `share_threshold`.
    """
    shares = "share" in rule.details
    parts = [rule.domain]
    for index, (key, value) in enumerate(rule.path):
        detail = _detail(rule, index)
        if detail in ("detailed", "value"):
            keeps_underscore = detail == "detailed" and not shares
            shown = values[index]
            parts.append(f"{key}_{shown}" if shown or keeps_underscore else key)
        else:
            parts.append(key if value is None else f"{key}_{value}")
    return ".".join(parts)


def metric_of_key(rule: Rule, key: bytes) -> str | None:
    """Return the metric name for a counter key; None when the key has only a digest of its
    values."""
    _, counted = decode_key(key)
    if counted is None:
        return None
    values = [value or "" for _, value in rule.path]
    for index, value in zip(counted_places(rule), counted, strict=False):
        values[index] = value
    return metric_name(rule, values)


def _detail(rule: Rule, index: int) -> str:
    return rule.details[index] if index < len(rule.details) else ""


def _build_tree(domain: Domain) -> _Root:
    root = _Root(domain)
    for row in domain.rows:
        node: _Node = root
        for key, value in row.path:
            node = node.child(key, value)
        if isinstance(row, Rule):
            node.set_rule(row)
    return root
