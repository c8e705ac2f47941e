"""Text files that a user names, with errors that name the file, the reason and the remedy."""

from pathlib import Path

from ringfence.errors import ConfigError

__all__ = ["read_text"]


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
