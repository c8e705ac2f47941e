"""Sphinx configuration of the documentation: `sphinx-build -W docs docs/_build`.

Before the build it writes the page of all modules from their docstrings, and the page of shard
ownership from its table. After the build it checks that the search index finds the pages that
users look for most.
"""

import ast
import json
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import GoogleDocstring

from node.shards.ownership.ownership_table import describe

_DOCS = Path(__file__).parent
_PACKAGES = ("hashring", "gossip", "ringfence", "node", "simulations", "benchmarks")


def _write_modules_page() -> None:
    lines = [
        "# All modules",
        "",
        "This page is for developers. It lists all modules by folder. The text after the name of a",
        "module is the first paragraph of its docstring.",
    ]
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
(_DOCS / "internals" / "shard-ownership.md").write_text(describe(), "utf-8")

project = "Ringfence"
author = "The Ringfence authors"
project_copyright = "The Ringfence authors"
version = "0.1"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]
"""Names of other packages, and of internal types, have no page here."""

default_role = "py:obj"
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Descriptors": "Descriptors", "RulesSource": "RulesSource"}
autodoc_preserve_defaults = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Ringfence"
html_static_path = ["_static"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

_SEARCHES = {
    "retry after": "reference/http-responses",
    "block ip": "guides/block-ip-or-key",
    "redis": "get-started/comparison",
    "upgrade": "operate/upgrades",
}
"""Pages that must be found by a search for these words."""


def _format_arguments(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Show the arguments of functions as a list.

    The extension napoleon would also take a colon in an attribute's docstring for its type.
    """
    if what in ("function", "method"):
        lines[:] = GoogleDocstring(lines, what=what, name=name, obj=obj).lines()


def _shorten_aliases(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Show an alias inside of another type by its name."""
    return re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature or "") or None, returned


def setup(app: Sphinx) -> None:
    """Connect to autodoc, and check the search index of each HTML build."""
    app.connect("autodoc-process-docstring", _format_arguments)
    app.connect("autodoc-process-signature", _shorten_aliases)
    app.connect("build-finished", _check_searches)


def _check_searches(app: Sphinx, failure: Exception | None) -> None:
    builder = app.builder
    if failure is not None or not isinstance(builder, StandaloneHTMLBuilder):
        return
    if builder.indexer is None:
        return
    text = (Path(app.outdir) / "searchindex.js").read_text("utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    for query, page in _SEARCHES.items():
        number = index["docnames"].index(page)
        for word in filter(builder.indexer.lang.word_filter, query.split()):
            stem = builder.indexer.lang.stem(word)
            found = [index[part].get(stem, []) for part in ("terms", "titleterms")]
            if not any(number in (each if isinstance(each, list) else [each]) for each in found):
                raise ExtensionError(
                    f"search for {query!r} must find {page}, got no {word!r} there"
                )
