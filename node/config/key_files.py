"""Creation and change of a cluster's secrets: authority, node certificates, cluster key, tokens.

Only the owner can read new files. `write_keys` overwrites nothing. The other functions replace a
file atomically, because nodes may read it at any time.
"""

import os
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from node.config.access import KeyDir
from node.config.private_files import locked, replace_private, write_private
from node.config.token_editor import record, token_names, with_record, without_record
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope, require_scopes_of_domains
from ringfence.transport.tls.certificate_authority import issue, new_authority
from ringfence.transport.tls.certificates import (
    ServerTls,
    check_server_tls,
    names_in,
    node_label,
    node_server_name,
)
from ringfence.wire import MAX_TEXT

__all__ = ["add_node", "add_token", "renew", "revoke_token", "rotate", "write_keys"]

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
    """Create a complete key folder and return its files.

    Each of `nodes` gets its own certificate. Without `nodes`, all nodes share one certificate. When
    it raises `ConfigError`, it has written nothing.
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
        files[key_dir.token(name)] = _token_line(name, secret)
        records.append(record(name, secret, scopes))
    files[key_dir.tokens] = "\n".join(records).encode()
    _make_directory(directory)
    if nodes:
        _make_directory(key_dir.nodes)
    existing = [path for path in files if os.path.lexists(path)]
    if existing:
        raise ConfigError(
            f"{existing[0]} exists; name a directory without keys, or change these by "
            "`ringfence keys add-token`, `add-node` or `renew`"
        )
    write_private(files)
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
    """Create the certificate and private key of another node; return the files.

    With `replace`, existing files are overwritten. Raises `ConfigError`.
    """
    key_dir = KeyDir(directory)
    _check_node(name)
    _check_names(names)
    _check_addresses(addresses)
    now = datetime.now(UTC)
    ca, ca_key = _authority_of(key_dir, now)
    files = _node_pair(key_dir, name, ca, ca_key, names, addresses, now, days)
    _make_directory(key_dir.nodes)
    existing = [path for path in files if os.path.lexists(path)]
    if existing and not replace:
        raise ConfigError(f"{existing[0]} exists; give --replace to overwrite it")
    if existing:
        for path, content in files.items():
            replace_private(path, content)
    else:
        write_private(files)
    return list(files)


def _authority_of(key_dir: KeyDir, now: datetime) -> tuple[bytes, bytes]:
    """Load the certificate and private key of the authority. Raises `ConfigError`."""
    try:
        ca, ca_key = key_dir.ca.read_bytes(), key_dir.ca_key.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key_dir.path} must hold ca.pem and ca.key, got {error.strerror}; run this where "
            "`ringfence keys new` has written them"
        ) from error
    check_server_tls(ServerTls(ca, ca_key), now, str(key_dir.ca), str(key_dir.ca_key))
    return ca, ca_key


def renew(directory: Path, nodes: Sequence[str], days: int) -> list[Path]:
    """Renew node certificates and private keys, and return the files; names and addresses stay the
    same.

    Without `nodes`, all node certificates in the folder are renewed. When it raises `ConfigError`,
    it has written nothing.
    """
    key_dir = KeyDir(directory)
    now = datetime.now(UTC)
    with locked(directory):
        ca, ca_key = _authority_of(key_dir, now)
        files: dict[Path, bytes] = {}
        for certificate in _certificates_of(key_dir, nodes):
            names, addresses = names_in(certificate)
            pair = issue(ca, ca_key, names, addresses, now, days)
            files[certificate], files[certificate.with_suffix(".key")] = pair
        for path, content in files.items():
            replace_private(path, content)
    return list(files)


def _certificates_of(key_dir: KeyDir, nodes: Sequence[str]) -> list[Path]:
    """Return the certificate files of the given nodes, or of all nodes. Raises `ConfigError` if one
    is missing."""
    found = {path.stem: path for path in sorted(key_dir.nodes.glob("*.pem"))}
    if nodes:
        missing = [node for node in nodes if node_label(node) not in found]
        if missing:
            raise ConfigError(
                f"node must have a certificate in {key_dir.nodes}, got {missing[0]!r}; "
                f"make one with `ringfence keys add-node {key_dir.path} {missing[0]}`"
            )
        return [found[node_label(node)] for node in nodes]
    shared = [key_dir.certificate] if key_dir.certificate.exists() else []
    if not (shared or found):
        raise ConfigError(
            f"{key_dir.path} must hold node.pem or nodes/NAME.pem, got neither; "
            f"make one with `ringfence keys add-node {key_dir.path} NAME`"
        )
    return [*shared, *found.values()]


def add_token(directory: Path, text: str, domains: Sequence[str] = ()) -> Path:
    """Add one token, `NAME:SCOPE,SCOPE`, to `tokens.toml`; return the file of its secret.

    If it raises `ConfigError`, it changes nothing.
    """
    key_dir = KeyDir(directory)
    name, scopes = _parse_token(text, "the token")
    if domains:
        require_scopes_of_domains(name, scopes)
    with locked(directory):
        before, known = _read_tokens(key_dir)
        if name in known:
            raise ConfigError(
                f"a token's name must be a new one, got {name!r}; "
                f"`ringfence keys revoke-token {directory} {name}` removes the old one"
            )
        secret = secrets.token_bytes(32)
        try:
            after = with_record(before, record(name, secret, scopes, domains))
        except ConfigError as error:
            raise ConfigError(f"{key_dir.tokens}: {error}") from error
        file = key_dir.token(name)
        if os.path.lexists(file):
            raise ConfigError(
                f"{file} exists, but its token is not valid any more; remove the file"
            )
        write_private({file: _token_line(name, secret)})
        try:
            replace_private(key_dir.tokens, after.encode())
        except ConfigError:
            file.unlink()
            raise
    return file


def revoke_token(directory: Path, name: str) -> list[Path]:
    """Remove a token from `tokens.toml`, and then the file with its secret; return the changed
    files.

    Raises `ConfigError` for an unknown token.
    """
    key_dir = KeyDir(directory)
    with locked(directory):
        before, known = _read_tokens(key_dir)
        if name not in known:
            raise ConfigError(
                f"a token's name must be in {key_dir.tokens}, got {name!r}; "
                f"known are {', '.join(sorted(known)) or 'none'}"
            )
        try:
            after = without_record(before, name)
        except ConfigError as error:
            raise ConfigError(f"{key_dir.tokens}: {error}") from error
        replace_private(key_dir.tokens, after.encode())
        file = key_dir.token(name)
        if not (_TOKEN_NAME.fullmatch(name) and file.is_file()):
            return [key_dir.tokens]
        file.unlink()
        return [key_dir.tokens, file]


def _read_tokens(key_dir: KeyDir) -> tuple[str, list[str]]:
    """Return the text of the token file and the names of its tokens. Raises `ConfigError`."""
    try:
        text = key_dir.tokens.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{key_dir.tokens}: cannot be read ({error}); `ringfence keys new` writes one"
        ) from error
    try:
        return text, token_names(text)
    except ConfigError as error:
        raise ConfigError(f"{key_dir.tokens}: {error}") from error


def _token_line(name: str, secret: bytes) -> bytes:
    """Format the credential of a client: name and secret."""
    return f"{name}.{secret.hex()}\n".encode()


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
    """Issue a certificate and a private key for one node."""
    covered = [node_server_name(node), *names]
    certificate, key = issue(ca, ca_key, covered, addresses, now, days)
    return {key_dir.certificate_of(node): certificate, key_dir.key_of(node): key}


def _make_directory(directory: Path) -> None:
    """Create a folder that only its owner can read, unless it exists."""
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


def _parse_token(text: str, what: str = "--token") -> tuple[str, list[Scope]]:
    name, colon, listed = text.partition(":")
    known = ", ".join(Scope)
    if not colon or not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {text!r} is not NAME:SCOPE,SCOPE with at most 64 letters, digits, - and _ "
            "in the name"
        )
    scopes = [scope.strip() for scope in listed.split(",")]
    for scope in scopes:
        if scope not in set(Scope):
            raise ConfigError(f"{what} {text!r}: there is no scope {scope!r}; scopes are {known}")
    return name, [Scope(scope) for scope in scopes]


def rotate(directory: Path, step: str) -> str:
    """Perform one step of a cluster key rotation; return a description of the new state.

    `add` adds a new key, `use` makes it the sealing key, and `drop` removes the old key. Copy the
    cluster key file to every node between the steps. Raises `ConfigError` if the step does not
    match the file: nodes seal with its first key, and an empty line says that the second one is the
    old one.
    """
    path = KeyDir(directory).cluster_key
    try:
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); `ringfence keys new` writes one"
        ) from error
    keys, is_new_used = text.split(), "\n\n" in text.strip()
    match step, keys:
        case "add", [old]:
            written = f"{old}\n{secrets.token_hex(32)}\n"
            now = "the new key is accepted, the old one is used"
        case "use", [old, new] if not is_new_used:
            written = f"{new}\n\n{old}\n"
            now = "the new key is used, the old one is still accepted"
        case "drop", [new, _] if is_new_used:
            written, now = f"{new}\n", "only the new key remains"
        case _, [_, _]:
            following = "drop" if is_new_used else "use"
            raise ConfigError(f"{path}: a change of keys is under way; `{following}` comes next")
        case _:
            raise ConfigError(f"{path}: holds {len(keys)} key; `add` comes first")
    replace_private(path, written.encode())
    return now
