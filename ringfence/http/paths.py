"""Unambiguous paths: paths that all servers interpret in the same way, so that they may be exempt.

Servers differ in how they treat `;`, backslashes, escaped or repeated slashes, and repeated
escapes. One server reads `/static/..;/login` as a file below `/static`, another one as `/login`.
Limits always apply to such an ambiguous path.
"""

import re
from urllib.parse import unquote

__all__ = ["has_one_reading"]

_AMBIGUOUS = re.compile(r"[;\\%\x00-\x1f\x7f\ufffd]")


def has_one_reading(path: str) -> bool:
    """Whether all servers interpret a path in the same way; it may be escaped and has no query."""
    plain = unquote(path, errors="replace")
    if not plain.startswith("/") or _AMBIGUOUS.search(plain):
        return False
    if plain.count("/") != path.count("/"):
        return False  # A slash is escaped.
    *folders, last = plain[1:].split("/")
    return last not in (".", "..") and {"", ".", ".."}.isdisjoint(folders)
