"""The one plain form of all the spellings of a path.

Proxies tell the path as the client wrote it, and whatever serves the request reads it otherwise:
`/static/%2e%2e/login` is `/login` by then. Who is counted must not hang on the spelling.
"""

import re
from urllib.parse import unquote

__all__ = ["plain_path"]

_END = re.compile("[?#]")


def plain_path(uri: str) -> str:
    """Read a path as nginx does for `$uri`.

    The query and the fragment are cut, escapes decoded once, slashes that follow each other
    merged, and `.` and `..` resolved, which never lead above the root.
    """
    # Cut first: an escaped `?` belongs to the path. Decoded before the rest: `%2e` is a dot.
    segments = unquote(_END.split(uri, maxsplit=1)[0], errors="replace").split("/")
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    is_folder = kept and segments[-1] in ("", ".", "..")
    return f"/{'/'.join(kept)}{'/' if is_folder else ''}"
