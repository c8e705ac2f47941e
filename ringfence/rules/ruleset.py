"""All rules of a node or a client, and which of them a request meets.

Matching is Envoy's: each entry takes the child with its exact value, else the first pattern in file
order, else the child for any value; it never backs out to a sibling, and a limit counts only where
the last entry arrives. How rules become plain data and come back is `plain`'s, reading files
`load`'s.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TypeAlias

from ringfence.errors import ConfigError, RemoteProtocolError
from ringfence.rules.descriptor_tree import Domain, Row, place, with_steps
from ringfence.rules.glob import Glob, is_pattern
from ringfence.rules.keys import MAX_KEY, bounded, decode_key, override_id, trial_id, with_length
from ringfence.rules.model import Descriptor, Match, Rule
from ringfence.rules.serialize import Plain, domains_from_plain, to_plain

__all__ = ["RuleSet", "counted_places", "metric_name", "metric_of_key"]

Entries: TypeAlias = tuple[tuple[str, str], ...]


class RuleSet:
    """Immutable; equal when the domains are, whatever the version.

    Raises `ConfigError` when a domain or a place stands twice, or two rules share an identity.
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
                raise ConfigError(f"domain {domain.name!r} stands twice; join its rules")
            self._roots[domain.name] = _grow(domain)
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
        """Gather hand-made rules under their domains, in the order given."""
        rows: dict[str, list[Row]] = {}
        for rule in rules:
            rows.setdefault(rule.domain, []).append(rule)
        return cls((Domain(name, tuple(held)) for name, held in rows.items()), version=version)

    @property
    def version(self) -> int:
        """Higher is newer; 0 when made by hand."""
        return self._version

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of all domains, in file order."""
        return tuple(self._roots)

    @property
    def contents(self) -> tuple[Domain, ...]:
        """Every domain with all its places, those without a limit included."""
        return self._domains

    def rules(self) -> tuple[Rule, ...]:
        """Every place with a limit (or `unlimited`), in file order."""
        return tuple(
            row for domain in self._domains for row in domain.rows if isinstance(row, Rule)
        )

    def by_id(self, identity: int) -> Rule | None:
        """Find the rule that a key's first 8 bytes name."""
        return self._by_id.get(identity)

    def knows_domain(self, domain: str) -> bool:
        """Whether any file speaks of `domain`."""
        return domain in self._roots

    def match(self, domain: str, descriptors: Sequence[Descriptor]) -> tuple[Match | None, ...]:
        """Find the counter that each descriptor of one request meets, None where none applies.

        A match whose name another match of the same request replaces is None too. Cost: one or
        two look-ups per entry, and one text search per pattern passed.
        """
        root = self._roots.get(domain)
        if root is None:
            return (None,) * len(descriptors)
        if len(descriptors) == 1:  # By far the most frequent request.
            return (_meet(root, descriptors[0]),)
        found = tuple([_meet(root, descriptor) for descriptor in descriptors])
        return _without_replaced(found) if self._replacing else found

    def counter(self, domain: str, entries: Entries) -> tuple[Rule, bytes] | None:
        """Find the rule and key that `match` finds for a descriptor without limit or cost of its
        own, but not what metrics call them."""
        root = self._roots.get(domain)
        spot = None if root is None else _arrive(root, entries)
        if spot is None or spot.rule is None:
            return None
        return spot.rule, spot.key_of(entries)

    def as_carried(self) -> "RuleSet":
        """The same rules with their limits travelling along, for owners that do not have them."""
        return self._with_rules(Rule.as_carried)

    def as_trial(self, salt: bytes) -> "RuleSet":
        """The same rules under identities of their own, so that trying them spends no real budget.

        Trials with one `salt` share counters; limits travel along, for no owner knows the rules.
        """

        def tried(rule: Rule) -> Rule:
            return replace(rule, id=trial_id(rule.id, salt), carried=True)

        return self._with_rules(tried)

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
        """Hash of 48 bits of what the rules say: equal for equal rules, whatever their version."""
        if self._content_hash is None:
            text = repr(to_plain(0, self._domains)).encode("utf-8", "surrogatepass")
            digest = blake2b(text, digest_size=6).digest()
            self._content_hash = int.from_bytes(digest, "big")
        return self._content_hash

    def to_plain(self) -> Plain:
        """Write everything as data without behaviour, for a client that asks."""
        return to_plain(self._version, self._domains)

    @classmethod
    def from_plain(cls, plain: Plain) -> "RuleSet":
        """Read what `to_plain` wrote. Raises `RemoteProtocolError` when anything in it is odd."""
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


class _Spot:
    """One place of the tree, ready for look-ups."""

    __slots__ = (
        "bare",
        "counted",
        "exact",
        "head",
        "metric",
        "patterns",
        "rule",
        "whole",
    )

    def __init__(self) -> None:
        self.exact: dict[tuple[str, str], _Spot] = {}
        self.patterns: dict[str, list[tuple[Glob, _Spot]]] = {}
        self.bare: dict[str, _Spot] = {}
        self.rule: Rule | None = None
        self.head = b""
        self.counted: tuple[int, ...] = ()
        """Which entries' values are part of the key."""
        self.whole: Match | None = None
        """The answer itself, when it is the same for every request."""
        self.metric: str | None = None
        """The whole metric name, when no runtime value is part of it."""

    def next(self, entry: tuple[str, str]) -> "_Spot | None":
        """Find the child of an entry that no exact value took."""
        key, value = entry
        if key in self.patterns:
            for glob, child in self.patterns[key]:
                if glob.matches(value):
                    return child
        return self.bare.get(key)

    def child(self, key: str, value: str | None) -> "_Spot":
        """Find or make the child that stands for this configured value."""
        if value is None:
            return self.bare.setdefault(key, _Spot())
        if not is_pattern(value):
            return self.exact.setdefault((key, value), _Spot())
        held = self.patterns.setdefault(key, [])
        for glob, child in held:
            if glob.pattern == value:
                return child
        held.append((Glob(value), _Spot()))
        return held[-1][1]

    def key_of(self, entries: Entries) -> bytes:
        """The key of the counter that these entries mean here, where a rule is."""
        key = self.head
        for index in self.counted:
            key += with_length(entries[index][1])
        return key if len(key) <= MAX_KEY else bounded(key)

    def settle(self, rule: Rule) -> None:
        """Make this the place of `rule`."""
        self.rule = rule
        self.head = rule.id.to_bytes(8, "big")
        self.counted = tuple(counted_places(rule))
        if not rule.is_detailed:
            self.metric = metric_name(rule, ())
            if not self.counted:
                self.whole = Match(rule, self.head, self.metric)


class _Root(_Spot):
    __slots__ = ("domain",)

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self.domain = domain


def _meet(root: _Root, descriptor: Descriptor) -> Match | None:
    entries = descriptor.entries
    if descriptor.limit is not None:
        return _override(root.domain, descriptor)
    spot = _arrive(root, entries)
    if spot is None:
        return None
    if spot.whole is not None and descriptor.cost is None:
        return spot.whole
    if spot.rule is None:
        return None
    key = spot.key_of(entries)
    metric = spot.metric
    if metric is None:
        metric = metric_name(spot.rule, [value for _, value in entries])
    return Match(spot.rule, key, metric, descriptor.cost)


def _arrive(root: _Root, entries: Entries) -> _Spot | None:
    """Walk down the tree; None when there is no way for one of the entries."""
    spot: _Spot = root
    for entry in entries:
        child = spot.exact.get(entry) or spot.next(entry)
        if child is None:
            return None
        spot = child
    return spot


def _override(domain: Domain, descriptor: Descriptor) -> Match | None:
    """Count by the limit that came with the request; every value is part of its key."""
    if not descriptor.entries:
        return None
    keys = [key for key, _ in descriptor.entries]
    rule = Rule(
        id=override_id(domain.name, keys),
        domain=domain.name,
        path=tuple((key, None) for key in keys),
        limit=descriptor.limit,
        carried=True,
        on_failure=domain.on_failure,
    )
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
    """Tell which entries' values are part of a key, in its order."""
    for index, (_, value) in enumerate(rule.path):
        if value is None or (is_pattern(value) and _detail(rule, index) != "share"):
            yield index


def metric_name(rule: Rule, values: Sequence[str]) -> str:
    """Name of a rule's metric, as Envoy's service writes it, by the value of each level.

    `value_to_metric` leaves the `_` before an empty value away, and so does `detailed_metric`, but
    only where a level of the rule has `share_threshold`.
    """
    shares = "share" in rule.details
    parts = [rule.domain]
    for index, (key, value) in enumerate(rule.path):
        detail = _detail(rule, index)
        if detail in ("detailed", "value"):
            keeps_mark = detail == "detailed" and not shares
            shown = values[index]
            parts.append(f"{key}_{shown}" if shown or keeps_mark else key)
        else:
            parts.append(key if value is None else f"{key}_{value}")
    return ".".join(parts)


def metric_of_key(rule: Rule, key: bytes) -> str | None:
    """Name of the metric that decisions on a key belong to; None when the key has only a digest."""
    _, counted = decode_key(key)
    if counted is None:
        return None
    values = [value or "" for _, value in rule.path]
    for index, value in zip(counted_places(rule), counted, strict=False):
        values[index] = value
    return metric_name(rule, values)


def _detail(rule: Rule, index: int) -> str:
    return rule.details[index] if index < len(rule.details) else ""


def _grow(domain: Domain) -> _Root:
    root = _Root(domain)
    for row in domain.rows:
        spot: _Spot = root
        for key, value in row.path:
            spot = spot.child(key, value)
        if isinstance(row, Rule):
            spot.settle(row)
    return root
