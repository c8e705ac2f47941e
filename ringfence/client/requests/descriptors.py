"""Validation of a caller's arguments: descriptors in their several forms, costs and durations.

Invalid arguments raise an error at once in the caller. Otherwise they would be sent in one frame
with the checks of other callers.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ringfence.errors import ConfigError
from ringfence.rules import Descriptor

__all__ = [
    "MAX_COST",
    "Descriptors",
    "checked_cost",
    "checked_costs",
    "checked_seconds",
    "described",
    "require_requests",
    "require_domain",
    "require_paths",
    "require_text",
]

_Shapes: TypeAlias = (
    Mapping[str, str]
    | Descriptor
    | Sequence[Mapping[str, str] | Descriptor | Sequence[tuple[str, str]]]
)
if TYPE_CHECKING:
    from typing_extensions import TypeAliasType

    Descriptors = TypeAliasType("Descriptors", _Shapes)  # Editors show the short name.
else:
    Descriptors = _Shapes
"""One descriptor as a mapping, `{"client": "203.0.113.7"}`, or several in a list."""

MAX_COST = 2**53 - 1
_SHAPE = "give a mapping such as {'client': '203.0.113.7'}, or a list of mappings"


def described(descriptors: Descriptors) -> tuple[Descriptor, ...]:
    """Convert the descriptors of one request to a tuple. Raises `ConfigError` for values that are
    no descriptors.

    One of several descriptors may be empty, as Envoy sends them; a request without any entry is an
    error.
    """
    if isinstance(descriptors, dict) and descriptors:  # First, because testing `Mapping` is slow.
        return (Descriptor(tuple(descriptors.items())),)
    if isinstance(descriptors, Descriptor | Mapping):
        found: tuple[Descriptor, ...] = (_one(descriptors),)
    elif isinstance(descriptors, str):
        raise ConfigError(f"descriptors must be a mapping or a list, got {descriptors!r}; {_SHAPE}")
    else:
        try:
            found = tuple([_one(each) for each in descriptors])
        except TypeError as error:
            raise ConfigError(
                f"descriptors must be a mapping or a list, got {descriptors!r}; {_SHAPE}"
            ) from error
    if not any([each.entries for each in found]):
        raise ConfigError(f"descriptors must have an entry, got {descriptors!r}; {_SHAPE}")
    return found


def _one(descriptor: Mapping[str, str] | Descriptor | Sequence[tuple[str, str]]) -> Descriptor:
    if isinstance(descriptor, Descriptor):
        if descriptor.cost is not None:
            checked_cost(descriptor.cost)
        return descriptor
    if isinstance(descriptor, Mapping):
        return Descriptor(tuple(descriptor.items()))
    entries = []
    for entry in descriptor:
        if isinstance(entry, str) or len(entry) != 2:
            raise ConfigError(
                f"each descriptor in the list must be a mapping or a list of (key, value) pairs, "
                f"got {descriptor!r}; write one descriptor as a mapping"
            )
        entries.append((entry[0], entry[1]))
    return Descriptor(tuple(entries))


def checked_cost(cost: int, name: str = "cost") -> int:
    """Return the cost unchanged. Raises `ConfigError` with the argument's name when it is out of
    range."""
    if type(cost) is not int or not 0 <= cost <= MAX_COST:
        raise ConfigError(
            f"{name} must be a whole number from 0 to 2**53 - 1, got {cost!r}; for fractions, "
            "count in a smaller unit in the limit as well"
        )
    return cost


def checked_costs(costs: int | Sequence[int], count: int) -> list[int]:
    """Return one cost for each of `count` requests. Raises `ConfigError`."""
    if isinstance(costs, int):
        return [checked_cost(costs)] * count
    column = [checked_cost(cost) for cost in costs]
    if len(column) != count:
        raise ConfigError(
            f"costs must have one entry for each of {count} requests, got {len(column)}; give one "
            "number for all, or one per request"
        )
    return column


def checked_seconds(name: str, value: float) -> float:
    """Return a duration in seconds. Raises `ConfigError` with the argument's name when it is
    invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(
            f"{name} must be a duration of 0 seconds or more, got {value!r}; give a number"
        )
    return value


def require_requests(requests: Sequence[object]) -> None:
    """Raise `ConfigError` unless `requests` is a list."""
    if isinstance(requests, str | Mapping) or not isinstance(requests, Sequence):
        raise ConfigError(
            f"requests must be a list, got {requests!r}; give one descriptor or key per request"
        )


def require_domain(domain: object) -> None:
    """Raise `ConfigError` unless a domain is text, because no rule could match it."""
    if not isinstance(domain, str) or not domain:
        raise ConfigError(
            f"domain must be text that names a domain of the rules, got {domain!r}; "
            "write it as in the rule files, such as 'api'"
        )


def require_paths(domain: object, paths: Sequence[object]) -> None:
    """Raise `ConfigError` unless a domain is text, and each path is a list of descriptor keys."""
    require_domain(domain)
    for path in paths:
        if isinstance(path, str):
            raise ConfigError(
                f"path must be a list of descriptor keys, got {path!r}; write [{path!r}]"
            )
        if not isinstance(path, Sequence) or not all([isinstance(key, str) for key in path]):
            raise ConfigError(
                f"path must be a list of descriptor keys, got {path!r}; give for instance "
                "['client']"
            )


def require_text(descriptors: Sequence[Descriptor]) -> None:
    """Raise `ConfigError` unless keys and values are text, because no rule could match them."""
    for descriptor in descriptors:
        for key, value in descriptor.entries:
            if not isinstance(key, str):
                _raise_not_text("key of a descriptor entry", key)
            if not isinstance(value, str):
                _raise_not_text(f"descriptor entry {key!r}", value)


def _raise_not_text(what: str, value: object) -> NoReturn:
    if isinstance(value, bytes):
        advice = "decode it"
    else:
        advice = "leave it out" if value is None else f"write {str(value)!r}"
    raise ConfigError(f"{what} must be text, got {value!r}; {advice}")
