"""Operations that `check_many` performs for each request, in Python; `_batch_ops` is the compiled
version.
"""

from collections.abc import Mapping, Sequence

from ringfence.client.decision import Decision
from ringfence.rules import Rule
from ringfence.rules.keys import bounded, with_length
from ringfence.wire import OutcomeRow

__all__ = ["decisions", "find_lone", "key_of_value", "keys_of_values"]


def find_lone(
    known: Mapping[object, tuple[Rule, bytes]], name: object, requests: Sequence[object]
) -> tuple[list[Rule], list[bytes]] | None:
    """Return the rules and keys of requests that all have a single entry with the key `name`.

    `known` maps the entry's value to rule and key. Returns None when a request has other entries,
    or when a value is not in `known`. Raises `TypeError` for a value that cannot be hashed.
    """
    rules: list[Rule] = []
    keys: list[bytes] = []
    for request in tuple(requests):
        if type(request) is not dict or len(request) != 1 or name not in request:
            return None
        found = known.get(request[name])
        if found is None:
            return None
        rules.append(found[0])
        keys.append(found[1])
    return rules, keys


def key_of_value(head: bytes, value: object) -> bytes | None:
    """Return the key that begins with `head` and ends with a value; None when it is not text."""
    return bounded(head + with_length(value)) if isinstance(value, str) else None


def keys_of_values(head: bytes, name: object, requests: Sequence[object]) -> list[bytes] | None:
    """Return the keys of requests that all have a single entry with the key `name`.

    The keys are those of `key_of_value`. Returns None when a request has other entries, or when its
    value is not text.
    """
    keys: list[bytes] = []
    for request in tuple(requests):
        if type(request) is not dict or len(request) != 1 or name not in request:
            return None
        key = key_of_value(head, request[name])
        if key is None:
            return None
        keys.append(key)
    return keys


def decisions(rules: list[Rule], rows: list[OutcomeRow]) -> list[Decision]:
    """Create the decision of each result row. Raises `ValueError` when the lengths differ."""
    return [Decision(rule, row) for rule, row in zip(rules, rows, strict=True)]
