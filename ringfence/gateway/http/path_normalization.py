"""The one plain form of all the spellings of a path.

Proxies tell the path as the client wrote it, and whatever serves the request reads it otherwise:
`/static/%2e%2e/login` is `/login` by then. Who is counted must not hang on the spelling.
"""

import re
from urllib.parse import unquote

__all__ = ["path_part", "plain_path"]

_END = re.compile("[?#]")
_ORIGIN = re.compile("[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def path_part(uri: str) -> str:
    """Cut the query, the fragment, and the scheme and host of a request in absolute form."""
    origin = _ORIGIN.match(uri)
    if origin is not None:
        uri = uri[origin.end() :]
    return _END.split(uri, maxsplit=1)[0] or "/"


def plain_path(uri: str) -> str:
    """Read a path as nginx does for `$uri`.

    What is no path is cut, escapes decoded once, slashes that follow each other
    merged, and `.` and `..` resolved, which never lead above the root.
    """
    # Cut first: an escaped `?` belongs to the path. Decoded before the rest: `%2e` is a dot.
    segments = unquote(path_part(uri), errors="replace").split("/")
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    is_folder = kept and segments[-1] in ("", ".", "..")
    return f"/{'/'.join(kept)}{'/' if is_folder else ''}"
