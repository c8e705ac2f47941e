"""Making the secrets of a cluster: certificate authority, node certificate, cluster key, tokens.

Files are readable by their owner alone, and nothing that exists is ever overwritten.
"""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from node.access import KeyDir, Scope
from ringfence.errors import ConfigError
from ringfence.transport.authority import issue, new_authority
from ringfence.wire import token_digest

__all__ = ["rotate", "write_keys"]

_HOST_NAME = re.compile(r"(\*\.)?[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)
_TOKEN_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)


def write_keys(
    directory: Path,
    names: Sequence[str],
    addresses: Sequence[str],
    tokens: Sequence[str],
    days: int,
) -> list[Path]:
    """Make and write everything; returns the files. Raises `ConfigError`, writing nothing then."""
    key_dir = KeyDir(directory)
    _check_names(names)
    for address in addresses:
        if not _is_address(address):
            raise ConfigError(
                f"--address {address!r} is not an IP address; give host names by --name"
            )
    wanted = _parse_tokens(tokens)
    now = datetime.now(UTC)
    ca, ca_key = new_authority(now, days=3650)
    certificate, key = issue(ca, ca_key, names, addresses, now, days)
    files = {
        key_dir.ca: ca,
        key_dir.ca_key: ca_key,
        key_dir.certificate: certificate,
        key_dir.key: key,
        key_dir.cluster_key: secrets.token_hex(32).encode() + b"\n",
    }
    records = []
    for name, scopes in wanted.items():
        secret = secrets.token_bytes(32)
        files[key_dir.token(name)] = f"{name}.{secret.hex()}\n".encode()
        listed = ", ".join(f'"{scope}"' for scope in scopes)
        records.append(
            f'[tokens."{name}"]\ndigest = "{token_digest(secret).hex()}"\nscopes = [{listed}]\n'
        )
    files[key_dir.tokens] = "\n".join(records).encode()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be made: {error.strerror}") from error
    existing = [path for path in files if os.path.lexists(path)]
    if existing:
        raise ConfigError(
            f"{existing[0]} exists; name a directory without keys, or remove the old ones first"
        )
    _write_private(files)
    return list(files)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if _is_address(name):
            raise ConfigError(f"--name {name!r} is an IP address; give it by --address")
        try:
            is_name = _HOST_NAME.fullmatch(name.encode("idna").decode())
        except UnicodeError:
            is_name = None
        if is_name is None:
            raise ConfigError(f"--name {name!r} is not a host name; write a.example.org")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _parse_tokens(texts: Sequence[str]) -> dict[str, list[Scope]]:
    if not texts:
        raise ConfigError("no token, so no client could connect; give --token NAME:SCOPE,SCOPE")
    wanted: dict[str, list[Scope]] = {}
    for text in texts:
        name, scopes = _parse_token(text)
        if name in wanted:
            raise ConfigError(
                f"two tokens are called {name!r}; give all its scopes at once, as in {name}:"
                f"{','.join(dict.fromkeys([*wanted[name], *scopes]))}"
            )
        wanted[name] = scopes
    return wanted


def _parse_token(text: str) -> tuple[str, list[Scope]]:
    name, colon, listed = text.partition(":")
    known = ", ".join(Scope)
    if not colon or not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(
            f"--token {text!r} is not NAME:SCOPE,SCOPE with at most 64 letters, digits, - and _ "
            "in the name"
        )
    scopes = [scope.strip() for scope in listed.split(",")]
    for scope in scopes:
        if scope not in set(Scope):
            raise ConfigError(f"--token {text!r}: there is no scope {scope!r}; scopes are {known}")
    return name, [Scope(scope) for scope in scopes]


def _write_private(files: Mapping[Path, bytes]) -> None:
    """Write all files or leave none: half a set of keys is of no use, and in the way."""
    written: list[Path] = []
    for path, content in files.items():
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written.append(path)
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
        except OSError as error:
            for done in written:
                with suppress(OSError):
                    done.unlink()
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def rotate(directory: Path, step: str) -> str:
    """Take the cluster key a step on the way to a new one; returns what holds now.

    `add` takes a new key as well, `use` seals with it, `drop` forgets the old one. Between steps
    the file goes to every node. Raises `ConfigError` when the step does not fit the file.
    """
    path = KeyDir(directory).cluster_key
    try:
        keys = path.read_text("ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); `ringfence keys new` writes one"
        ) from error
    match step, keys:
        case "add", [old]:
            keys, now = [old, secrets.token_hex(32)], "the new key is taken, the old one is used"
        case "use", [old, new]:
            keys, now = [new, old], "the first key is used, the second one is still taken"
        case "drop", [new, _]:
            keys, now = [new], "one key is left"
        case "add", _:
            raise ConfigError(f"{path}: a change of keys is under way; `use` or `drop` comes next")
        case _:
            raise ConfigError(f"{path}: holds {len(keys)} key; `add` comes first")
    _replace(path, "".join(f"{key}\n" for key in keys))
    return now


def _replace(path: Path, text: str) -> None:
    """Write a file in one step, readable by its owner alone: nodes may read it at any moment."""
    beside = path.with_name(f".{path.name}.new")
    with suppress(OSError):
        beside.unlink()
    _write_private({beside: text.encode()})
    try:
        os.replace(beside, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
