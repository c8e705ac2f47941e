"""Text files that a user names, with errors that name the file, the reason and the remedy."""

import errno
import os
from pathlib import Path

from ringfence.errors import ConfigError

__all__ = ["read_text", "require_writable"]


def read_text(path: Path, kind: str) -> str:
    """Read a text file; `kind` is its name in errors. Raises `ConfigError`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"cannot read the {kind} {path}: {reason}; check the path and its rights"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the {kind} {path}: byte {error.object[error.start]:#04x} is not UTF-8; "
            "save the file as UTF-8"
        ) from error


def require_writable(path: Path, option: str) -> None:
    """Raise `ConfigError` if the file of an option cannot be written.

    Call it before a long run, whose result would be lost otherwise.
    """
    try:
        path.parent.stat()  # `resolve` removes `x/..` although there is no x.
        if path.exists() and not path.is_dir():  # It is not opened: it may be a pipe.
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            file = path.resolve()
            file.open("xb").close()
            file.unlink()
    except (OSError, RuntimeError) as error:  # The latter for a loop of links.
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{option} {path}: cannot be written: {reason}; create its folder, or check its rights"
        ) from error
