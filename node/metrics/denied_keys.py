"""Keys that the cluster denied most, merged from the lists of its nodes.

A key may be denied by its owner and by clients, each of which reports to one node. So several nodes
may list the same key, and their counts are added.
"""

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct, field

from ringfence.rules import Rule
from ringfence.rules.keys import decode_key
from ringfence.rules.ruleset import counted_places
from ringfence.wire import Throttled

__all__ = ["DeniedKey", "DeniedKeys", "joined", "values_of"]

_RESULTS = 3


class DeniedKey(Struct):
    """One key, with the sum of its denials at all nodes."""

    key: bytes
    denied: int = 0
    """Upper bound of its denials."""
    error: int = 0
    """Largest error of `denied`."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Denials that each node counted."""


class DeniedKeys(Struct, frozen=True):
    """Merged list of denied keys, from all nodes that answered."""

    denied: int
    keys: list[DeniedKey]
    """Keys, the most denied first."""
    rules: list[tuple[str, tuple[int, int, int]]]
    """Rules, most denied first: allowed, denied, denied in shadow or quota mode."""


def joined(lists: Mapping[str, Throttled]) -> DeniedKeys:
    """Merge the lists of denied keys of several nodes into one."""
    keys: dict[bytes, DeniedKey] = {}
    rules: defaultdict[str, list[int]] = defaultdict(lambda: [0] * _RESULTS)
    for node, listed in sorted(lists.items()):
        rows = zip(listed.keys, listed.counts, listed.errors, strict=True)
        for key, denied, error in rows:
            row = keys.setdefault(key, DeniedKey(key))
            row.denied += denied
            row.error += error
            row.nodes[node] = denied
        for at, rule in enumerate(listed.rules):
            for place in range(_RESULTS):
                rules[rule][place] += listed.results[_RESULTS * at + place]
    ranked = sorted(rules.items(), key=lambda row: (-row[1][1], -sum(row[1]), row[0]))
    return DeniedKeys(
        sum(listed.denied for listed in lists.values()),
        sorted(keys.values(), key=lambda row: (-row.denied, row.error, row.key)),
        [(rule, (results[0], results[1], results[2])) for rule, results in ranked],
    )


def values_of(rule: Rule | None, key: bytes) -> list[list[str]] | None:
    """Return name and value of each entry of a key; None when only a digest of the key is known.

    For a key whose rule is unknown, the names are empty.
    """
    _, values = decode_key(key)
    if values is None:
        return None
    names = [] if rule is None else [rule.path[at][0] for at in counted_places(rule)]
    names += [""] * (len(values) - len(names))
    return [[name, value] for name, value in zip(names, values, strict=False)]
