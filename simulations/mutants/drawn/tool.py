"""Adapter of cosmic-ray, the mutation tool: finds the places of a module that it can mutate.

This is the only module that imports cosmic-ray. The tool is optional: the extra `mutants` of the
package installs it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from ringfence.errors import ConfigError

__all__ = ["Place", "Variant", "check_installed", "find_places", "mutate"]

Position = tuple[int, int]
"""Line from 1 and column from 0."""


class Variant(Struct, frozen=True):
    """One possible mutation of a place."""

    operator: str
    """Name of cosmic-ray's operator, such as `NumberReplacer`."""
    occurrence: int
    """Number of this mutation among all mutations of the operator in the module, from 0."""


class Place(Struct, frozen=True):
    """Piece of source text that operators of the tool can mutate."""

    start: Position
    end: Position
    variants: tuple[Variant, ...]


def check_installed() -> None:
    """Raise `ConfigError` when cosmic-ray or coverage is not installed."""
    _tool()


def find_places(source: str) -> list[Place]:
    """Return all places of a module that the tool can mutate, in the order of the source text.

    Raises `ConfigError` when the tool is not installed.
    """
    tool = _tool()
    found: defaultdict[tuple[Position, Position], list[Variant]] = defaultdict(list)
    counts: defaultdict[str, int] = defaultdict(int)
    silent: dict[tuple[str, str, str, str], Sequence[str]] = {}
    for node in tool.nodes(source):
        kind = _kind(node)
        names = silent.get(kind, tool.names) if kind is not None else tool.names
        used: list[str] = []
        for name in names:
            for start, end in tool.operators[name].mutation_positions(node):
                if not used or used[-1] != name:
                    used.append(name)
                found[start, end].append(Variant(name, counts[name]))
                counts[name] += 1
        if kind is not None:
            silent[kind] = used
    return [Place(start, end, tuple(found[start, end])) for start, end in sorted(found)]


def mutate(source: str, variant: Variant) -> str:
    """Return the source text with one mutation.

    Raises `ConfigError` when the tool is not installed, and `LookupError` when the module has no
    such mutation or the tool cannot apply it.
    """
    tool = _tool()
    if variant.operator in tool.operators:
        operator = tool.operators[variant.operator]
        try:
            mutated = tool.mutate_code(source, operator, variant.occurrence)
        except AttributeError as error:  # Dotted names in `except` clauses: a bug of cosmic-ray.
            raise LookupError(f"the tool cannot apply {variant.operator}: {error}") from error
        if mutated is not None:
            return str(mutated)
    raise LookupError(f"the module has no mutation {variant.operator} {variant.occurrence}")


class _Tool(Struct, frozen=True):
    operators: dict[str, Any]
    mutate_code: Any
    parse: Any
    ast_nodes: Any

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.operators)

    def nodes(self, source: str) -> Iterator[Any]:
        return iter(self.ast_nodes(self.parse(source)))


@cache
def _tool() -> _Tool:
    try:
        import coverage  # noqa: F401 - the child processes use it, in the middle of a measurement.
        from cosmic_ray.ast import ast_nodes, get_ast
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator, operator_names
    except ImportError as error:
        raise ConfigError(
            f"cosmic-ray and coverage must be installed to draw mutants, got {error}; install them "
            "with `pip install 'ringfence[mutants]'`"
        ) from error
    # Operators with arguments mutate variables that their user names; they have no default.
    classes = {name.partition("/")[2]: get_operator(name) for name in operator_names()}
    operators = {name: each() for name, each in sorted(classes.items()) if not each.arguments()}
    return _Tool(operators, mutate_code, get_ast, ast_nodes)


def _kind(node: Any) -> tuple[str, str, str, str] | None:
    """Return what decides the operators of a token; None for nodes with parts."""
    if hasattr(node, "children") or node.parent is None:
        return None
    grandparent = node.parent.parent
    value = "" if node.type in ("name", "string", "newline") else node.value
    return (node.type, value, node.parent.type, "" if grandparent is None else grandparent.type)
