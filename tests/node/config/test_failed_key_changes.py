"""Changes of a key folder that fail halfway, or that find an unexpected file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node.config.access import KeyDir, load_access
from node.config.key_files import add_token, renew, revoke_token, rotate, write_keys
from ringfence.errors import ConfigError


@pytest.fixture
def keys(tmp_path: Path) -> KeyDir:
    write_keys(tmp_path / "keys", [], [], ["app:check", "ops:observe"], 30, ["a", "b"])
    return KeyDir(tmp_path / "keys")


def contents(keys: KeyDir) -> dict[str, bytes]:
    files = [path for path in keys.path.rglob("*") if path.is_file()]
    return {str(path.relative_to(keys.path)): path.read_bytes() for path in files}


def refuse(source: Path, target: Path) -> None:
    raise OSError(30, "Read-only file system")


def test_a_cluster_key_has_32_random_bytes(keys: KeyDir) -> None:
    [key] = load_access(keys).cluster_keys
    assert len(key) == 32

    rotate(keys.path, "add")

    old, new = load_access(keys).cluster_keys
    assert (old, len(new)) == (key, 32)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: add_token(path, "batch:check"),
        lambda path: revoke_token(path, "app"),
        lambda path: rotate(path, "add"),
    ],
    ids=["add a token", "revoke a token", "rotate the cluster key"],
)
def test_a_change_that_cannot_replace_a_file_changes_nothing(
    keys: KeyDir, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(keys)
    monkeypatch.setattr(os, "replace", refuse)

    with pytest.raises(ConfigError, match="Read-only file system"):
        change(keys.path)

    assert contents(keys) == before


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_cluster_key_file_that_is_no_text_is_named(keys: KeyDir, content: bytes | None) -> None:
    keys.cluster_key.unlink()
    if content is not None:
        keys.cluster_key.write_bytes(content)

    with pytest.raises(ConfigError, match=r"cluster\.key: cannot be read .*`ringfence keys new`"):
        rotate(keys.path, "add")


@pytest.mark.parametrize("order", [["a", "nowhere"], ["nowhere", "a"], ["nowhere", "other"]])
def test_the_first_node_without_a_certificate_is_named(keys: KeyDir, order: list[str]) -> None:
    before = contents(keys)

    with pytest.raises(ConfigError, match=r"got 'nowhere'; make one with"):
        renew(keys.path, order, 30)

    assert contents(keys) == before


def test_the_first_existing_file_is_named(keys: KeyDir) -> None:
    with pytest.raises(ConfigError, match=r"/ca\.pem exists; name a directory without keys"):
        write_keys(keys.path, [], [], ["app:check"], 30, ["a"])


def test_a_step_of_a_rotation_that_is_repeated_or_left_out_changes_nothing(keys: KeyDir) -> None:
    rotate(keys.path, "add")
    with keys.cluster_key.open("a", encoding="ascii") as file:
        file.write("\n")  # An editor may add a line end.
    with pytest.raises(ConfigError, match="`use` comes next"):
        rotate(keys.path, "drop")
    old, new = load_access(keys).cluster_keys
    rotate(keys.path, "use")
    for step in ("use", "add"):
        with pytest.raises(ConfigError, match="`drop` comes next"):
            rotate(keys.path, step)
    assert load_access(keys).cluster_keys == (new, old)

    rotate(keys.path, "drop")
    assert load_access(keys).cluster_keys == (new,)
