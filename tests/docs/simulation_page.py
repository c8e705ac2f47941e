"""Tables of docs/operate/simulation.md."""

import re
from pathlib import Path

__all__ = ["names_in"]

_PAGE = Path(__file__).parents[2] / "docs" / "operate" / "simulation.md"


def names_in(title: str, number: int = 0) -> set[str]:
    """Return the names in the first column of a table of a section; the first table is 0."""
    section = _PAGE.read_text("utf-8").partition(f"# {title}\n")[2]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return {
        name
        for row in tables[number].splitlines()
        for name in re.findall("`(\\w+)`", row.split("|")[1])
    }
