"""Which paths every server reads in the same way, so that they may be exempt from limits.

Servers differ about `;` and what follows, about backslashes, about slashes that are escaped or
follow each other, and about how often escapes are decoded. One reads `/static/..;/login` as a file
below `/static`, another one as `/login`. Such a path is counted, wherever it seems to lead.
"""

import re
from urllib.parse import unquote

__all__ = ["has_one_reading"]

_AMBIGUOUS = re.compile(r"[;\\%\x00-\x1f\x7f\ufffd]")


def has_one_reading(path: str) -> bool:
    """Tell whether a path, escaped or not and without its query, means the same to all servers."""
    plain = unquote(path, errors="replace")
    if not plain.startswith("/") or _AMBIGUOUS.search(plain):
        return False
    if plain.count("/") != path.count("/"):
        return False  # One of them is escaped.
    *folders, last = plain[1:].split("/")
    return last not in (".", "..") and {"", ".", ".."}.isdisjoint(folders)
