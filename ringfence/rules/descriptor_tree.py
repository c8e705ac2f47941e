"""Descriptor tree of a domain, as a list of its nodes in file order, each with its whole path.

`loading.build` validates the tree, and `ruleset` matches requests against it.
"""

from collections.abc import Iterator

from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.rules.keys import Path
from ringfence.rules.model import OnFailure, Rule

__all__ = ["Domain", "Open", "Row", "label", "place", "with_steps"]


class Open(Struct, frozen=True):
    """Node of the descriptor tree without a limit: an inner step, or an allow-list entry."""

    path: Path


Row = Rule | Open


class Domain(Struct, frozen=True):
    """Namespace of rules: the nodes of its descriptor tree in file order, and a failure policy
    for limits in requests."""

    name: str
    rows: tuple[Row, ...] = ()
    on_failure: OnFailure = OnFailure.ALLOW
    """Policy for limits that are sent with requests, which have no rule."""


def label(key: str, value: str | None) -> str:
    """Format one step of a rule's path in the descriptor tree, on one line without control
    characters."""
    step = key if value is None else f"{key}={value}"
    return step if step.isprintable() else repr(step)


def place(domain: str, path: Path) -> str:
    """Format the whole path of a rule for messages. Different paths may have equal texts."""
    return " > ".join([domain, *(label(key, value) for key, value in path)])


def with_steps(domain: Domain) -> Iterator[Row]:
    """Yield the nodes of a domain's descriptor tree, with missing inner nodes added before their
    children.

    Raises `ConfigError` when a path occurs twice.
    """
    given = {row.path for row in domain.rows}
    seen: set[Path] = set()
    for row in domain.rows:
        for depth in range(1, len(row.path)):
            step = row.path[:depth]
            if step not in given:
                given.add(step)
                yield Open(step)
        if row.path in seen:
            raise ConfigError(f"{place(domain.name, row.path)} occurs twice; keep one of them")
        seen.add(row.path)
        yield row
