"""The descriptor tree of a file as values: places in file order, each with its whole path.

What may stand in a file is `build`'s, how a request walks the tree `ruleset`'s.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringfence.errors import ConfigError
from ringfence.rules.keys import Path
from ringfence.rules.model import OnFailure, Rule

__all__ = ["Domain", "Open", "Row", "label", "place", "with_steps"]


@dataclass(frozen=True, slots=True)
class Open:
    """A place in the descriptor tree without a limit: a step on the way, or an allow-list."""

    path: Path


Row = Rule | Open


@dataclass(frozen=True, slots=True)
class Domain:
    """One namespace: its places in file order, and the policy of limits that come with requests."""

    name: str
    rows: tuple[Row, ...] = ()
    on_failure: OnFailure = OnFailure.ALLOW
    """For request overrides, which have no rule that could say so."""


def label(key: str, value: str | None) -> str:
    """Write one step as people read it, on one line and without control characters."""
    step = key if value is None else f"{key}={value}"
    return step if step.isprintable() else repr(step)


def place(domain: str, path: Path) -> str:
    """Write a whole path as people read it; two paths may read alike, so never compare these."""
    return " > ".join([domain, *(label(key, value) for key, value in path)])


def with_steps(domain: Domain) -> Iterator[Row]:
    """Complete the rows by the steps that lead to them.

    Raises `ConfigError` when a place stands twice.
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
            raise ConfigError(f"{place(domain.name, row.path)} stands twice; keep one of them")
        seen.add(row.path)
        yield row
