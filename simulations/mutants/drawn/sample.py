"""Random samples of mutants from the shipped packages: bugs that no developer has chosen.

A sample follows from its seed and the source text. First a place in the code is drawn, each with
equal probability; then one of the mutations of this place. So an operator with eleven replacements
does not count eleven times.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from simulations.mutants.drawn.tool import Place, Variant, find_places, mutate
from simulations.mutants.value import MutantGone

__all__ = ["PACKAGES", "ROOT", "DrawnMutant", "draw_mutants", "find_mutant"]

ROOT = Path(__file__).parents[3]
"""Folder that contains the shipped packages."""
PACKAGES = (
    "hashring",
    "gossip",
    "ringfence/limiter",
    "ringfence/peering",
    "ringfence/wire",
    "node",
)
"""Packages from which mutants are drawn."""


class DrawnMutant(Struct, frozen=True):
    """Mutant that the mutation tool made: one operator, applied at one place of a module."""

    path: str
    """Path of the module, relative to the folder of the packages."""
    start: tuple[int, int]
    variant: Variant
    number: int
    """Number of this mutation among those of the same operator at the place, from 1."""
    function: str
    """Qualified name of the function or class around the place; empty at module level."""
    source: str
    """Mutated source text of the module."""
    old: str
    """Changed lines of the shipped code, stripped and joined."""
    new: str
    """These lines in the mutant; empty when they were removed."""

    @property
    def name(self) -> str:
        """Name that `find_mutant` accepts: path, line, column, operator and number."""
        line, column = self.start
        return f"{self.path}:{line}:{column + 1}:{self.variant.operator}:{self.number}"

    @property
    def module(self) -> str:
        """Dotted name of the module."""
        parts = Path(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def about(self) -> str:
        """The change, in one line."""
        return f"`{self.old}` becomes `{self.new}`" if self.new else f"`{self.old}` is removed"


def draw_mutants(
    seed: int, count: int, packages: Sequence[str] = PACKAGES, root: Path = ROOT
) -> list[DrawnMutant]:
    """Draw mutants of packages at random; equal seeds and code give equal mutants.

    A draw is repeated when the mutant is invalid Python, or when the tool cannot apply it. Places
    in type annotations are left out, because they have no effect. Raises `ConfigError` when the
    mutation tool is not installed.
    """
    random = Random(f"mutants {seed}")  # noqa: S311 - a sample, not a secret.
    modules = {path: (root / path).read_text("utf-8") for path in _modules(packages, root)}
    places = [
        (path, place) for path, source in modules.items() for place in _places_of(source)
    ]  # fmt: skip
    random.shuffle(places)
    drawn: list[DrawnMutant] = []
    for path, place in places:
        if len(drawn) == count:
            break
        variant = random.choice(place.variants)
        mutant = _build(path, modules[path], place, variant)
        if mutant is not None:
            drawn.append(mutant)
    return drawn


def find_mutant(name: str, root: Path = ROOT) -> DrawnMutant:
    """Return a mutant by its name. Raises `MutantGone` when the code has no such mutant."""
    path, _, place_name = name.partition(":")
    file = root / path
    if file.suffix == ".py" and file.is_file():
        source = file.read_text("utf-8")
        for place in find_places(source):
            for variant in place.variants:
                mutant = _build(path, source, place, variant) if place_name else None
                if mutant is not None and mutant.name == name:
                    return mutant
        what = f"mutant must be at a place that the tool can mutate; {path} has no mutation"
        what += f" {place_name!r}"
    else:
        what = f"mutant must be PATH:LINE:COLUMN:OPERATOR:NUMBER of a Python file, got {name!r}"
    raise MutantGone(
        f"{what}; names change with the source text, so copy one from the report of a new sample"
    )


def _modules(packages: Sequence[str], root: Path) -> Iterator[str]:
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix()


def _places_of(source: str) -> list[Place]:
    """Return the places of a module, without those in type annotations."""
    ignored = _types(ast.parse(source))
    return [
        place
        for place in find_places(source)
        if not any(start <= place.start < end for start, end in ignored)
    ]


def _types(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ranges of types: annotations, protocols, unions, and alternatives in patterns."""
    nodes: list[ast.AST | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=annotation):
                nodes.append(annotation)
            case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
                nodes.append(returns)
            case ast.ClassDef(bases=bases) if any(_is_protocol(base) for base in bases):
                nodes.append(node)
            case ast.MatchOr():
                nodes.append(node)
    nodes += [
        each
        for each in _outside_functions(tree)
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.BitOr)
    ]
    return [
        (
            (each.lineno, each.col_offset),  # type: ignore[attr-defined]
            (each.end_lineno, each.end_col_offset),  # type: ignore[attr-defined]
        )
        for each in nodes
        if each is not None
    ]


def _is_protocol(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and base.id == "Protocol"


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _build(path: str, source: str, place: Place, variant: Variant) -> DrawnMutant | None:
    """Create a mutant.

    Return None when the tool cannot apply it, when the result is invalid Python, and when it
    does not change the code.
    """
    try:
        mutated = mutate(source, variant)
        if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
            return None
        compile(mutated, path, "exec", dont_inherit=True)
    except (LookupError, SyntaxError):
        return None
    before, after = source.splitlines(), mutated.splitlines()
    first = _common(before, after)
    last = min(_common(before[::-1], after[::-1]), min(len(before), len(after)) - first)
    return DrawnMutant(
        path,
        place.start,
        variant,
        1 + [each for each in place.variants if each.operator == variant.operator].index(variant),
        _function_around(ast.parse(source), place.start[0]),
        mutated,
        _joined(before[first : len(before) - last]),
        _joined(after[first : len(after) - last]),
    )


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next(
        (number for number, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other))
    )


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def _function_around(tree: ast.Module, line: int) -> str:
    names: list[str] = []
    body: Sequence[ast.AST] = tree.body
    while body:
        inner = next((each for each in body if _contains(each, line)), None)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(inner.name)
        body = [] if inner is None else list(ast.iter_child_nodes(inner))
    return ".".join(names)


def _contains(node: ast.AST, line: int) -> bool:
    first = min(
        (each.lineno for each in getattr(node, "decorator_list", ())),
        default=getattr(node, "lineno", 0),
    )
    return first <= line <= (getattr(node, "end_lineno", 0) or 0)
