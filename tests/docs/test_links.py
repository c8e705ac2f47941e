"""Links between pages, their anchors, and pages that source files name. No network is needed."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "internals" / name for name in ("modules.md", "shard-ownership.md")}
"""Pages that `docs/conf.py` writes when the site is built."""
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(DOCS.rglob("*.md")),
    }
    - GENERATED
)

_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
_FENCE = re.compile(r"^(```+).*?^\1[ ]*$", re.M | re.S)
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_ENTRY = re.compile(r"^(?:[\w-]+/)*[\w-]+$", re.M)


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings by GitHub's rule, which MyST also uses."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        number = 1
        unique = slug
        while unique in found:
            unique = f"{slug}-{number}"
            number += 1
        found.add(unique)
    return found


def broken(page: Path) -> list[str]:
    found = []
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target in GENERATED:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files_and_anchors(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_and_anchors_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three\n[](#one-two-three) [](#four) [](none.md)\n", "utf-8")

    assert broken(page) == ["#four", "none.md"]


def test_source_files_name_existing_pages() -> None:
    listed = subprocess.run(
        ["git", "grep", "-noE", r"docs/[a-z_-]+/[a-z/-]+(\.md)?"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    missing = []
    for line in listed.stdout.splitlines():
        name = line.rsplit(":", 1)[1].removesuffix(".md").rstrip("/")
        page = ROOT / name
        known = page.with_suffix(".md") in GENERATED or page.with_suffix(".md").exists()
        if not known and not page.is_dir():
            missing.append(line)

    if listed.returncode > 1:
        pytest.skip("needs git")
    assert missing == []


def test_each_page_has_one_entry_in_a_table_of_contents() -> None:
    entries = []
    for page in DOCS.rglob("*.md"):
        for block in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        ):
            entries += [(page.parent / f"{entry}.md").resolve() for entry in _ENTRY.findall(block)]

    pages = {page for page in DOCS.rglob("*.md") if page != DOCS / "index.md"}
    assert sorted(entries) == sorted(pages | GENERATED)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md"])
def test_paths_in_code_spans_exist(page: str) -> None:
    spans = re.findall(r"`((?:\.?[\w-]+/)+[\w.-]*)`", prose(ROOT / page))

    assert spans or page == "README.md"
    assert [span for span in spans if not (ROOT / span).exists()] == []
