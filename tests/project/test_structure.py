"""Limits that keep the tree easy to read: sizes, import cycles, late callbacks."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project.test_floors import imports, modules, statements

ROOT = Path(__file__).parents[2]
SHIPPED = ("hashring", "gossip", "ringfence", "node", "simulations", "benchmarks")
MAX_ENTRIES = 15
MAX_LINES = 500
MAX_METHODS = 30
MAX_CONSTRUCTOR_LINES = 40
GENERATED = {".so", ".c", ".pyc", ".egg-info"}
PACKAGE_MARKERS = {"__init__.py", "py.typed"}
GENERATED_FOLDERS = {"__pycache__", "_build", "build", "dist"}


def entries(folder: Path) -> list[str]:
    """Return the names in a folder, without hidden and generated files and package markers."""
    return [
        each.name
        for each in sorted(folder.iterdir())
        if each.suffix not in GENERATED
        and each.name not in GENERATED_FOLDERS
        and each.name not in PACKAGE_MARKERS
        and not each.name.startswith(".")
    ]


def folders(top: Path) -> Iterator[Path]:
    yield top
    for each in sorted(top.iterdir()):
        if each.is_dir() and each.name in entries(top):
            yield from folders(each)


@cache
def classes() -> tuple[tuple[str, ast.ClassDef], ...]:
    return tuple(
        (module, node)
        for folder in SHIPPED
        for module, path in modules(folder)
        for node in statements(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("top", [*SHIPPED, "tests", "docs", "examples"])
def test_no_folder_has_too_many_entries(top: str) -> None:
    large = [each for each in folders(ROOT / top) if len(entries(each)) > MAX_ENTRIES]

    assert [str(each.relative_to(ROOT)) for each in large] == []


def test_no_shipped_module_is_too_long() -> None:
    paths = [path for top in SHIPPED for path in (ROOT / top).rglob("*.py*")]
    long = [
        str(path.relative_to(ROOT))
        for path in paths
        if path.suffix in (".py", ".pyx", ".pyi")
        and len(path.read_text("utf-8").splitlines()) > MAX_LINES
    ]

    assert long == []


def test_no_class_has_too_many_methods() -> None:
    large = [
        f"{module}:{node.name}" for module, node in classes() if len(methods(node)) > MAX_METHODS
    ]

    assert large == []


def test_no_constructor_is_too_long() -> None:
    long = [
        f"{module}:{node.name}"
        for module, node in classes()
        for method in methods(node)
        if method.name == "__init__"
        and (method.end_lineno or 0) - method.lineno + 1 > MAX_CONSTRUCTOR_LINES
    ]

    assert long == []


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle; empty when there is none."""
    visited: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in visited:
            return []
        path.append(module)
        for each in sorted(graph.get(module, ())):
            if cycle := visit(each):
                return cycle
        visited.add(path.pop())
        return []

    return next((cycle for module in sorted(graph) if (cycle := visit(module))), [])


def import_graph() -> dict[str, set[str]]:
    """Return the imports between our modules, those for type checkers included."""
    found: dict[str, set[str]] = {}
    paths = {module: path for top in SHIPPED for module, path in modules(top)}
    for module, path in paths.items():
        source, is_package = path.read_text("utf-8"), path.name == "__init__.py"
        targets = [target for _, target in imports(module, source, is_package=is_package)]
        known = [each if each in paths else each.rpartition(".")[0] for each in targets]
        found[module] = {each for each in known if each in paths and each != module}
    return found


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert cycle_in(import_graph()) == []


def test_an_import_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def late_callbacks(node: ast.ClassDef) -> Iterator[str]:
    """Yield assignments of callbacks to other objects, such as `self.link.on_end = f`."""
    own = {method.name for method in methods(node)}
    for assign in ast.walk(node):
        if isinstance(assign, ast.Assign) and is_callback(assign.value, own):
            for target in assign.targets:
                match target:
                    case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"))):
                        yield ast.unparse(assign)


def is_callback(value: ast.expr, own_methods: set[str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id="partial")):
            return True
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in own_methods
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self")), attr=name):
            return name in all_methods()
        case _:
            return False


@cache
def all_methods() -> frozenset[str]:
    return frozenset(method.name for _, node in classes() for method in methods(node))


def test_callbacks_are_passed_to_constructors() -> None:
    late = [f"{module}: {each}" for module, node in classes() for each in late_callbacks(node)]

    assert late == []


@pytest.mark.parametrize(
    ("line", "is_late"),
    [
        ("self._link.on_close = self.stop", True),
        ("self._link.on_close = lambda: None", True),
        ("self._link.on_close = partial(print, 1)", True),
        ("self._link.is_open = True", False),
        ("self.on_close = self.stop", False),
    ],
)
def test_a_late_callback_is_found(line: str, *, is_late: bool) -> None:
    source = f"class Node:\n    def run(self): {line}\n    def stop(self): pass"
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)

    assert bool(list(late_callbacks(node))) is is_late
