"""Examples on the pages: Python, rule files, settings, limits as text."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.config.settings import load_settings
from ringfence.rules import parse_limit
from ringfence.rules.loading.yaml_files import load_path, load_text
from simulations.searching.case_files import parse_case

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.stem != "modules"),
]
SHOWN_AS_VALUES = {"wire-protocol.md"}
"""Pages whose Python blocks are messages and bytes. `tests/ringfence/wire` decodes them."""

_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ ]*$", re.M | re.S
)
_LIMITS = re.compile(r"<!-- limits -->\n+((?:\|[^\n]*\n)+)")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Line number of the first line of its body."""
    info: str
    body: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("body")) + 1
        yield Block(page, line, found["info"].strip(), found["body"])


def every(*infos: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.info in infos]


def pages_that_run() -> list[Path]:
    pages = dict.fromkeys(block.page for block in every("python"))
    return [page for page in pages if page.name not in SHOWN_AS_VALUES]


def rows_of_limits() -> list[tuple[str, str]]:
    """Return page and text of every limit in the first column of a marked table."""
    found = []
    for page in PAGES:
        for table in _LIMITS.findall(page.read_text("utf-8")):
            for row in table.splitlines()[2:]:
                found += [(page.name, text) for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return found


@pytest.mark.parametrize("page", pages_that_run(), ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, block in files_of(page).items():
        (tmp_path / name).write_text(block, "utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}

    for block in blocks(page):
        if block.info == "python":
            # With leading blank lines, a traceback shows the line number of the page.
            code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
            exec(code, namespace)  # The pages are trusted.


def files_of(page: Path) -> dict[str, str]:
    """Return the files of a page: blocks whose first line is `# NAME`."""
    found = {}
    for block in blocks(page):
        first = block.body.partition("\n")[0]
        if block.info == "yaml rules" and re.fullmatch(r"# [\w-]+\.yaml", first):
            found[first.removeprefix("# ")] = block.body
    return found


@pytest.mark.parametrize("block", every("python no-run"), ids=lambda block: block.name)
def test_python_that_needs_a_cluster_compiles(block: Block) -> None:
    compile(block.body, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", every("yaml rules"), ids=lambda block: block.name)
def test_rule_files_load_without_a_warning(block: Block) -> None:
    loaded = load_text(block.body, block.name)

    assert list(loaded.warnings) == []


@pytest.mark.parametrize("block", every("yaml case"), ids=lambda block: block.name)
def test_shown_case_files_of_the_simulator_are_valid(block: Block) -> None:
    assert parse_case(block.body, block.name).scenario.loads


def test_the_example_rules_load_without_a_warning() -> None:
    loaded = load_path(ROOT / "examples" / "rules")

    assert list(loaded.warnings) == []


@pytest.mark.parametrize("block", every("toml"), ids=lambda block: block.name)
def test_shown_node_settings_are_valid(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "ringfence.toml"
    path.write_text(block.body, "utf-8")

    assert load_settings(path, environment={}).rules


def test_the_example_settings_file_is_valid() -> None:
    assert load_settings(ROOT / "examples" / "node.toml", environment={}).join


@pytest.mark.parametrize(("page", "text"), rows_of_limits())
def test_shown_limits_can_be_parsed(page: str, text: str) -> None:
    parse_limit(text)


def test_every_python_and_yaml_block_states_how_it_is_tested() -> None:
    known = {"python", "python no-run", "yaml rules", "yaml case"}

    unmarked = [
        block.name
        for page in PAGES
        for block in blocks(page)
        if block.info.split(" ")[0] in {"python", "py", "yaml", "yml"} and block.info not in known
    ]

    assert unmarked == []


@pytest.mark.parametrize(
    "page",
    [*PAGES, *sorted((ROOT / "examples").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_pages_install_the_package_from_a_checkout(page: Path) -> None:
    installs = re.findall(r"pip install[^\n`&#]*", page.read_text("utf-8"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]

    assert [each for each in installs if re.search(r"(?<![\w.])'?ringfence(\[|\b)", each)] == []
    named = [name for each in installs for name in re.findall(r"'\.\[([\w,]+)\]'", each)]
    assert {name for names in named for name in names.split(",")} <= set(extras)


def test_error_texts_show_how_to_install_from_a_checkout() -> None:
    sources = [
        path for folder in ("ringfence", "node") for path in sorted((ROOT / folder).rglob("*.py"))
    ]

    incomplete = [
        str(path)
        for path in sources
        for text in re.findall(r"'ringfence\[([\w,]+)\]'", path.read_text("utf-8"))
        if f"'.[{text}]' in a checkout" not in path.read_text("utf-8")
    ]

    assert incomplete == []
