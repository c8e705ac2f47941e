"""Messages on the troubleshooting page, compared with the source code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text("utf-8")
MESSAGES = sorted(
    {
        message
        for row in re.findall(r"^\| ([^|]*) \|", PAGE, re.M)
        for message in re.findall(r"`([^`]+)`", row)
        if message.count(" ") >= 2
    }
)
_VARIABLE = re.compile(r"'?\b[A-Z]{1,4}[A-Z:]*\b'?|\.\.\.")


def source_text() -> str:
    """Return the text of all modules, with adjacent string literals joined."""
    texts = [
        path.read_text("utf-8")
        for folder in ("ringfence", "node", "gossip")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    return re.sub(r"\"\s*\n\s*f?\"", "", "\n".join(texts))


@pytest.fixture(scope="module")
def source() -> str:
    return source_text()


def test_the_page_quotes_messages() -> None:
    assert len(MESSAGES) > 15


@pytest.mark.parametrize("message", MESSAGES)
def test_quoted_messages_are_in_the_source(message: str, source: str) -> None:
    parts = [part.strip(" :;,()=") for part in _VARIABLE.split(message)]
    fragments = [part for part in parts if part.count(" ") >= 1]

    assert fragments
    assert [fragment for fragment in fragments if fragment not in source] == []
