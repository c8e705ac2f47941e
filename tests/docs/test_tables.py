"""Tables of the documents."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SEPARATOR = re.compile(r"\|[-:| ]+\|")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_table_has_its_header_directly_above_the_separator(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if _SEPARATOR.fullmatch(line) and not _SEPARATOR.fullmatch(lines[number - 1]):
            columns = lines[number - 1].count("|")
            assert columns == line.count("|"), f"line {number + 1}: {lines[number - 1]!r}"
