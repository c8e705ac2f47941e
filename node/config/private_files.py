"""Access to secret files: atomic writing for their owner only, and errors of reading."""

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ringfence.errors import ConfigError

__all__ = ["locked", "readable", "replace_private", "write_private"]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise `ConfigError` when the block cannot access a file below `path`.

    Without it, a search for a file in a folder that this user cannot enter raises `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path}: cannot be read ({error.strerror}); make it, and the "
            "folders above it, readable for this user"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a lock on a folder while the block runs, after waiting for other commands to release
    it."""
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot be opened: {error.strerror}; `ringfence keys new` makes one"
        ) from error
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def write_private(files: Mapping[Path, bytes]) -> None:
    """Write all files or none, because an incomplete set of keys is useless.

    Raises `ConfigError`, also if a file exists.
    """
    written: list[Path] = []
    for path, content in files.items():
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written.append(path)
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError as error:
            for done in written:
                with suppress(OSError):
                    done.unlink()
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def replace_private(path: Path, content: bytes) -> None:
    """Replace the content of a secret file atomically, because nodes may read it at any time.

    The file keeps its owner and group. Its group can still read it if it could before, because a
    service may run as another user. Other users cannot read it. Raises `ConfigError`.
    """
    beside = path.with_name(f".{path.name}.new")
    with suppress(OSError):
        beside.unlink()
    write_private({beside: content})
    try:
        with suppress(FileNotFoundError):
            before = path.stat()
            now = beside.stat()
            if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
                os.chown(beside, before.st_uid, before.st_gid)
            beside.chmod(0o600 | (stat.S_IMODE(before.st_mode) & 0o040))
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
