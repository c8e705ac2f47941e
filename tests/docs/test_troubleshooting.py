"""Messages on the troubleshooting page, compared with the source code."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from node.config.access import KeyDir
from node.config.certificates import certificate_files
from node.config.settings import load_settings
from ringfence.errors import ConfigError

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
    fragments = fragments_of(message)

    assert fragments
    assert [fragment for fragment in fragments if fragment not in source] == []


def fragments_of(message: str) -> list[str]:
    """Return the parts of a quoted message that are equal in each occurrence."""
    parts = [part.strip(" :;,()=") for part in _VARIABLE.split(message)]
    return [part for part in parts if part.count(" ") >= 1]


def start_with_a_wrong_setting(directory: Path) -> object:
    file = directory / "node.toml"
    file.write_text('lissten = "127.0.0.1:7101"\n', "utf-8")
    return load_settings(file, {})


def start_without_a_certificate(directory: Path) -> object:
    (directory / "nodes").mkdir()
    return certificate_files(KeyDir(directory), "b")


@pytest.mark.parametrize(
    "start",
    [
        start_with_a_wrong_setting,
        lambda _: load_settings(None, {"RINGFENCE_NODE_FOO": "1"}),
        start_without_a_certificate,
    ],
    ids=["setting", "variable", "certificate"],
)
def test_an_error_of_a_node_start_is_on_the_page(
    start: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        start(tmp_path)

    error = str(caught.value)
    found = [
        message
        for message in MESSAGES
        if (parts := fragments_of(message)) and all(part in error for part in parts)
    ]
    assert len(found) == 1, error
