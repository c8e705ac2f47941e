"""The page of node counters: it has an entry for each counter that the source increases."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "node-counters.md").read_text("utf-8")
FOLDERS = ("node", "ringfence/transport")
REFUSING = ("refused", "count_refusal", "_on_violation")
"""Methods whose first argument is the cause of a refusal."""


def first_text(node: ast.expr) -> Iterator[str]:
    """Yield each text that an argument can be: a literal, or one of two literals."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from first_text(body)
            yield from first_text(orelse)


def counters_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value, method), args=[first, *_]):
                if method == "add" and ast.unparse(value).endswith("counters"):
                    yield from first_text(first)
                elif method in REFUSING:
                    yield from (f"refused_{cause}" for cause in first_text(first))
            case ast.Subscript(value=value, slice=index) if ast.unparse(value).endswith("refusals"):
                yield from (f"refused_{cause}" for cause in first_text(index))


def test_each_counter_in_the_source_has_an_entry_on_the_page() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    used = {name for file in files for name in counters_in(ast.parse(file.read_text("utf-8")))}
    documented = set(re.findall(r"`([a-z_0-9]+)`", PAGE))

    assert len(used) > 60
    missing = used - documented
    assert sorted(name for name in missing if not name.startswith("refused_http_")) == []
