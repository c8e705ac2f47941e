"""Normalization of request paths: all spellings of a path become one text.

A proxy passes the path as the client wrote it, but the server behind it resolves it:
`/static/%2e%2e/login` becomes `/login`. The counter must not depend on the spelling.
"""

import re
from urllib.parse import unquote

__all__ = ["path_part", "plain_path"]

_END = re.compile("[?#]")
_ORIGIN = re.compile("[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def path_part(uri: str) -> str:
    """Return the path of a request target, without scheme, host, query and fragment."""
    origin = _ORIGIN.match(uri)
    if origin is not None:
        uri = uri[origin.end() :]
    return _END.split(uri, maxsplit=1)[0] or "/"


def plain_path(uri: str) -> str:
    """Normalize a request target to a path, as nginx does for `$uri`.

    Removes query, fragment, scheme and host, and decodes escapes once. Merges repeated slashes, and
    resolves `.` and `..`, never above the root.
    """
    # Cut before decoding: an escaped `?` belongs to the path. Then decode: `%2e` is a dot.
    segments = unquote(path_part(uri), errors="replace").split("/")
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    is_folder = kept and segments[-1] in ("", ".", "..")
    return f"/{'/'.join(kept)}{'/' if is_folder else ''}"
