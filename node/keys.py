"""Making the secrets of a cluster: certificate authority, node certificates, cluster key, tokens.

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
from ringfence.transport.tls import ServerTls, check_server_tls, node_server_name
from ringfence.wire import MAX_TEXT, token_digest

__all__ = ["add_node", "rotate", "write_keys"]

_HOST_NAME = re.compile(r"(\*\.)?[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)
_TOKEN_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)


def write_keys(
    directory: Path,
    names: Sequence[str],
    addresses: Sequence[str],
    tokens: Sequence[str],
    days: int,
    nodes: Sequence[str] = (),
) -> list[Path]:
    """Make and write everything; returns the files. Raises `ConfigError`, writing nothing then.

    Each of `nodes` gets a certificate of its own; without them all nodes share one.
    """
    key_dir = KeyDir(directory)
    _check_names(names)
    _check_addresses(addresses)
    for node in nodes:
        _check_node(node)
    wanted = _parse_tokens(tokens)
    now = datetime.now(UTC)
    ca, ca_key = new_authority(now, days=3650)
    files = {key_dir.ca: ca, key_dir.ca_key: ca_key}
    for node in nodes:
        files |= _node_pair(key_dir, node, ca, ca_key, names, addresses, now, days)
    if not nodes:
        files[key_dir.certificate], files[key_dir.key] = issue(
            ca, ca_key, names, addresses, now, days
        )
    files[key_dir.cluster_key] = secrets.token_hex(32).encode() + b"\n"
    records = []
    for name, scopes in wanted.items():
        secret = secrets.token_bytes(32)
        files[key_dir.token(name)] = f"{name}.{secret.hex()}\n".encode()
        listed = ", ".join(f'"{scope}"' for scope in scopes)
        records.append(
            f'[tokens."{name}"]\ndigest = "{token_digest(secret).hex()}"\nscopes = [{listed}]\n'
        )
    files[key_dir.tokens] = "\n".join(records).encode()
    _make_directory(directory)
    if nodes:
        _make_directory(key_dir.nodes)
    existing = [path for path in files if os.path.lexists(path)]
    if existing:
        raise ConfigError(
            f"{existing[0]} exists; name a directory without keys, or remove the old ones first"
        )
    _write_private(files)
    return list(files)


def add_node(
    directory: Path,
    name: str,
    names: Sequence[str],
    addresses: Sequence[str],
    days: int,
    *,
    replace: bool = False,
) -> list[Path]:
    """Make the certificate and private key of one more node; returns the files.

    With `replace`, the files may exist and are written anew. Raises `ConfigError`.
    """
    key_dir = KeyDir(directory)
    _check_node(name)
    _check_names(names)
    _check_addresses(addresses)
    try:
        ca, ca_key = key_dir.ca.read_bytes(), key_dir.ca_key.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{directory} must hold ca.pem and ca.key, got {error.strerror}; run this where "
            "`ringfence keys new` has written them"
        ) from error
    now = datetime.now(UTC)
    check_server_tls(ServerTls(ca, ca_key), now, str(key_dir.ca), str(key_dir.ca_key))
    files = _node_pair(key_dir, name, ca, ca_key, names, addresses, now, days)
    _make_directory(key_dir.nodes)
    existing = [path for path in files if os.path.lexists(path)]
    if existing and not replace:
        raise ConfigError(f"{existing[0]} exists; give --replace to make it anew")
    if existing:
        for path, content in files.items():
            _replace(path, content)
    else:
        _write_private(files)
    return list(files)


def _node_pair(
    key_dir: KeyDir,
    node: str,
    ca: bytes,
    ca_key: bytes,
    names: Sequence[str],
    addresses: Sequence[str],
    now: datetime,
    days: int,
) -> dict[Path, bytes]:
    """Issue the certificate and private key of one node."""
    covered = [node_server_name(node), *names]
    certificate, key = issue(ca, ca_key, covered, addresses, now, days)
    return {key_dir.certificate_of(node): certificate, key_dir.key_of(node): key}


def _make_directory(directory: Path) -> None:
    """Make a folder that only its owner can read, unless it exists."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be made: {error.strerror}") from error


def _check_node(name: str) -> None:
    if not 0 < len(name) <= MAX_TEXT or not name.isprintable():
        raise ConfigError(
            f"a node's name must have 1 to {MAX_TEXT} printable characters, got {name[:40]!r}; "
            "give the name that the node has in its settings"
        )


def _check_addresses(addresses: Sequence[str]) -> None:
    for address in addresses:
        if not _is_address(address):
            raise ConfigError(
                f"--address {address!r} is not an IP address; give host names by --name"
            )


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
    _replace(path, "".join(f"{key}\n" for key in keys).encode())
    return now


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step, readable by its owner alone: nodes may read it at any moment."""
    beside = path.with_name(f".{path.name}.new")
    with suppress(OSError):
        beside.unlink()
    _write_private({beside: content})
    try:
        os.replace(beside, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
