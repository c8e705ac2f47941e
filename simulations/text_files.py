"""Text files that a user names, with errors that name the file, the reason and the remedy."""

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
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written: {error.strerror}; create its folder, or check "
            "its rights"
        ) from error
