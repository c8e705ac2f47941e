"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build`.

The page of all modules is written here from the modules' docstrings, before Sphinx reads it.
"""

import ast
from pathlib import Path

_DOCS = Path(__file__).parent
_PACKAGES = ("hashring", "gossip", "ringfence", "node", "simulations", "benchmarks")


def _write_modules_page() -> None:
    lines = ["# All modules", "", "By folder, each with the first sentence of its docstring."]
    folder = None
    for package in _PACKAGES:
        for path in sorted((_DOCS.parent / package).rglob("*.py"), key=_order):
            if path.parent != folder:
                folder = path.parent
                lines += ["", f"## {folder.relative_to(_DOCS.parent)}", ""]
            text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            first = " ".join(text.split("\n\n")[0].split())
            lines += [first, ""] if path.name == "__init__.py" else [f"- `{path.name}`: {first}"]
    page = _DOCS / "internals" / "modules.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join(lines) + "\n", "utf-8")


def _order(path: Path) -> tuple[str, bool, str]:
    return str(path.parent), path.name != "__init__.py", path.name


_write_modules_page()

project = "Ringfence"
author = "The Ringfence authors"
project_copyright = "The Ringfence authors"
version = "0.1"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Ringfence"
html_static_path = ["_static"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
