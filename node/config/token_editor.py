"""Editor of `tokens.toml` as text, which keeps comments and manual edits.

Decides the format of a token record. `access` loads the file for a node, and `key_files` writes it.
"""

import json
import tomllib
from collections.abc import Sequence
from typing import Any

from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope
from ringfence.wire import token_digest

__all__ = ["record", "token_names", "with_record", "without_record"]


def record(name: str, secret: bytes, scopes: Sequence[Scope], domains: Sequence[str] = ()) -> str:
    """Format the TOML table of one token, which holds the SHA-256 digest of its secret."""
    lines = [
        f'[tokens."{name}"]',
        f'digest = "{token_digest(secret).hex()}"',
        f"scopes = [{_listed(scopes)}]",
    ]
    if domains:
        lines.append(f"domains = [{_listed(domains)}]")
    return "\n".join(lines) + "\n"


def token_names(text: str) -> list[str]:
    """Return the names of all tokens. Raises `ConfigError` for text that is not a token file."""
    return list(_tokens(text))


def with_record(text: str, added: str) -> str:
    """Append the table of one token to the text. Raises `ConfigError` if the file's format does not
    permit it."""
    joined = f"{text.rstrip()}\n\n{added}" if text.strip() else added
    if len(_tokens(joined)) != len(_tokens(text)) + 1:
        raise ConfigError("the file must have a table per token; append the record by hand")
    return joined


def without_record(text: str, name: str) -> str:
    """Remove the table of one token from the text. Raises `ConfigError` if the file's format does
    not permit it."""
    before = _tokens(text)
    lines = text.splitlines(keepends=True)
    begin = next((at for at, line in enumerate(lines) if _is_header_of(line, name)), None)
    if begin is None:
        raise ConfigError(f"token {name!r} must have a table of its own; remove it by hand")
    end = next((at for at in range(begin + 1, len(lines)) if lines[at].startswith("[")), len(lines))
    while end > begin + 1 and end < len(lines) and _belongs_to_next_entry(lines[end - 1]):
        end -= 1
    rest = "".join(lines[:begin] + lines[end:])
    if _tokens(rest) != {each: entry for each, entry in before.items() if each != name}:
        raise ConfigError(f"token {name!r} must have a table of its own; remove it by hand")
    return rest


def _belongs_to_next_entry(line: str) -> bool:
    """Return whether a line before the header of a TOML table is a comment on that table."""
    return line.lstrip().startswith("#")


def _is_header_of(line: str, name: str) -> bool:
    if not line.startswith("["):
        return False
    try:
        return tomllib.loads(line) == {"tokens": {name: {}}}
    except tomllib.TOMLDecodeError:
        return False


def _tokens(text: str) -> dict[str, Any]:
    try:
        tokens = tomllib.loads(text).get("tokens", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file must be TOML, got: {error}; correct that line") from error
    if not isinstance(tokens, dict):
        raise ConfigError("`tokens` must be a table; make the file with `ringfence keys new`")
    return tokens


def _listed(words: Sequence[str]) -> str:
    # Every JSON string is also a TOML string.
    return ", ".join(json.dumps(word, ensure_ascii=False) for word in words)
