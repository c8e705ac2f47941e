"""What callers hand in, read and checked: descriptors in their several forms, and costs.

A wrong argument must be told to the caller that made it: on its way to a member it would travel
together with other callers' checks.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ringfence.errors import ConfigError
from ringfence.rules import Descriptor

__all__ = [
    "Descriptors",
    "checked_cost",
    "checked_seconds",
    "described",
    "require_requests",
    "require_domain",
    "require_text",
]

_Shapes: TypeAlias = (
    Mapping[str, str]
    | Descriptor
    | Sequence[Mapping[str, str] | Descriptor | Sequence[tuple[str, str]]]
)
if TYPE_CHECKING:
    from typing_extensions import TypeAliasType

    Descriptors = TypeAliasType("Descriptors", _Shapes)  # Editors show it by its name.
else:
    Descriptors = _Shapes
"""One descriptor as a mapping, `{"client": "203.0.113.7"}`, or several in a list."""

_MAX_COST = 2**53 - 1
_SHAPE = "give a mapping such as {'client': '203.0.113.7'}, or a list of mappings"


def described(descriptors: Descriptors) -> tuple[Descriptor, ...]:
    """Bring one request's descriptors into one form; raises `ConfigError` for any other.

    One of several may be empty, as Envoy sends them; a request without any entry is an error.
    """
    if (
        isinstance(descriptors, dict) and descriptors
    ):  # Asked first, since the test for any mapping is slow.
        return (Descriptor(tuple(descriptors.items())),)
    if isinstance(descriptors, Descriptor | Mapping):
        found: tuple[Descriptor, ...] = (_one(descriptors),)
    elif isinstance(descriptors, str):
        raise ConfigError(f"descriptors {descriptors!r} is text; {_SHAPE}")
    else:
        try:
            found = tuple([_one(each) for each in descriptors])
        except TypeError as error:
            raise ConfigError(f"descriptors {descriptors!r} cannot be read; {_SHAPE}") from error
    if not any([each.entries for each in found]):
        raise ConfigError(f"no descriptors in {descriptors!r}; {_SHAPE}")
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
                f"descriptor {descriptor!r} is no list of (key, value) pairs; several descriptors "
                "go into a list of lists, or better of mappings"
            )
        entries.append((entry[0], entry[1]))
    return Descriptor(tuple(entries))


def checked_cost(cost: int) -> int:
    """Return `cost`; raises `ConfigError` when it is none."""
    if type(cost) is not int or not 0 <= cost <= _MAX_COST:
        raise ConfigError(
            f"cost {cost!r} must be a whole number from 0 to 2**53 - 1; for fractions count in a "
            "smaller unit, in the limit as well"
        )
    return cost


def checked_seconds(name: str, value: float) -> float:
    """Return a duration; raises `ConfigError` that names the argument when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"{name} {value!r} is no duration; give seconds, 0 or more")
    return value


def require_requests(requests: Sequence[Descriptors]) -> None:
    """Raise `ConfigError` when the requests of one call are no list of descriptors."""
    if isinstance(requests, str | Mapping) or not isinstance(requests, Sequence):
        raise ConfigError(f"requests {requests!r} is no list; give one descriptor per request")


def require_domain(domain: object) -> None:
    """Raise `ConfigError` when a domain is not text, and could meet no rule for that alone."""
    if not isinstance(domain, str) or not domain:
        raise ConfigError(
            f"domain must be text that names a domain of the rules, got {domain!r}; "
            "write it as in the rule files, such as 'api'"
        )


def require_text(descriptors: Sequence[Descriptor]) -> None:
    """Raise `ConfigError` when a key or value is no text, and could meet no rule for that alone."""
    for descriptor in descriptors:
        for key, value in descriptor.entries:
            for each in (key, value):
                if not isinstance(each, str):
                    raise ConfigError(
                        f"descriptor entry {key!r}: {value!r} is not text; write {str(each)!r}"
                    )
