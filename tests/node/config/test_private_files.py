"""Writing of secret files: all or none, atomically, and one command at a time."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pytest

from node.config.access import KeyDir
from node.config.key_listing import list_certificates
from node.config.private_files import locked, readable, replace_private, write_private
from ringfence.errors import ConfigError


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_files_are_written_for_their_owner_only(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        write_private({tmp_path / "a": b"one", tmp_path / "b": b""})
    finally:
        os.umask(mask)

    assert files_in(tmp_path) == {"a": b"one", "b": b""}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_no_file_remains_when_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"precious")

    with pytest.raises(ConfigError, match=r"/c: cannot be written: File exists"):
        write_private({tmp_path / name: b"new" for name in "abcd"})

    assert files_in(tmp_path) == {"c": b"precious"}


def test_a_file_that_cannot_be_filled_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(ConfigError, match="No space left on device"):
        write_private({tmp_path / "a": b"new"})

    assert files_in(tmp_path) == {}


def test_a_file_is_replaced_although_an_earlier_attempt_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / ".a.new").write_bytes(b"half")

    replace_private(tmp_path / "a", b"new")

    assert files_in(tmp_path) == {"a": b"new"}


def test_a_file_that_does_not_exist_is_created(tmp_path: Path) -> None:
    replace_private(tmp_path / "a", b"new")

    assert files_in(tmp_path) == {"a": b"new"}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_file_that_cannot_be_replaced_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail(source: Path, target: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", fail)

    with pytest.raises(ConfigError, match=r"/a: cannot be written: Read-only file system"):
        replace_private(tmp_path / "a", b"new")

    assert files_in(tmp_path) == {"a": b"old"}


def test_only_one_command_has_the_lock_of_a_directory(tmp_path: Path) -> None:
    waits, has_lock = Event(), Event()

    def second() -> None:
        waits.set()
        with locked(tmp_path):
            has_lock.set()

    with locked(tmp_path):
        thread = Thread(target=second, daemon=True)
        thread.start()
        assert waits.wait(10)
        assert not has_lock.wait(0.05)

    assert has_lock.wait(10)
    thread.join(10)


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError), locked(tmp_path):
            raise RuntimeError


def test_the_certificates_of_a_folder_that_cannot_be_looked_up_are_not_listed(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        list_certificates(KeyDir(tmp_path / ("x" * 300)), datetime.now(UTC))


def test_an_error_of_reading_names_the_file(tmp_path: Path) -> None:
    missing = tmp_path / "keys" / "a.token"

    with pytest.raises(ConfigError) as of_file, readable(tmp_path):
        missing.read_bytes()
    with pytest.raises(ConfigError) as of_folder, readable(tmp_path):
        raise PermissionError(13, "Permission denied")

    assert str(of_file.value).startswith(f"{missing}: cannot be read (No such file or directory)")
    assert str(of_folder.value).startswith(f"{tmp_path}: cannot be read (Permission denied)")


def test_only_a_directory_can_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    for name in ("file", "nowhere"):
        with pytest.raises(ConfigError, match=f"{name}: cannot be opened"), locked(tmp_path / name):
            pass
