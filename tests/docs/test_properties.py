"""Existence of the tests that the page on properties names."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "internals" / "properties.md").read_text("utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)


def test_named_tests_exist() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED
        if not re.search(rf"^(async )?def {name}\(", (TESTS / path).read_text("utf-8"), re.M)
    ]

    assert missing == []


def test_every_property_has_a_row_and_every_row_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| tests |" not in line]
    found = {row.split("|")[1].strip() for row in rows}

    assert {f"S{n}" for n in range(1, 17)} | {f"V{n}" for n in range(1, 8)} <= found
    assert [row for row in rows if "::test_" not in row] == []
