"""Documentation of the skipped tests of third-party suites."""

from pathlib import Path

from tests.ringfence.integrations.limits.suites import LEFT_OUT

PAGE = Path(__file__).parents[4] / "docs" / "guides" / "limits-storage.md"


def test_the_page_lists_every_skipped_test() -> None:
    section = (
        PAGE.read_text("utf-8")
        .partition("## The test suites of Flask-Limiter and slowapi")[2]
        .partition("\n## ")[0]
    )
    listed = {
        row.split("`")[1] for row in section.splitlines() if row.count("`") >= 2 and "|" in row
    }

    assert listed == {name.rpartition("::")[2] for name in LEFT_OUT}
