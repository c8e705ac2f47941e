"""Where a cluster is and how to prove who we are, in one line of text.

`ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE` names some of the members; the rest is learned from
whichever answers first.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from ringfence.errors import ConfigError
from ringfence.transport.interface import Address
from ringfence.wire import MAX_CREDENTIAL, MAX_TEXT

__all__ = [
    "DEFAULT_PORT",
    "ENVIRONMENT",
    "OPTIONS",
    "ClusterUrl",
    "Token",
    "masked",
    "parse_address",
    "parse_url",
]

DEFAULT_PORT = 7101
ENVIRONMENT = "RINGFENCE_URL"
"""The environment variable that holds the address when the program gives none."""

OPTIONS = ("ca", "datacenter", "server_name", "timeout", "token_file")
"""What may stand behind the question mark."""
_SHAPE = "ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE"
_USERINFO = re.compile("(?<![^\\s'\"/])(?!TOKEN@)[^\\s'\"/]*@")
_SECRET = re.compile("[0-9A-Fa-f]{8,}|[0-9A-Za-z_-]{24,}")
"""What a part of a secret looks like, a mistyped one too."""
_PORT_ALONE = re.compile("[0-9]{1,5}")
"""No host has such a name: it would be read as an IPv4 address in the form of one number."""
_LOOPBACK = "127.0.0.1"
_TOKEN_AS_HOST = re.compile(r".*\.[0-9A-Za-z_-]{24,}|[0-9A-Fa-f]{32,}")


@dataclass(frozen=True, slots=True)
class Token:
    """A client's name and secret, written `NAME.SECRET` with the secret in hexadecimal."""

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Token(name={self.name!r}, secret=...)"


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """A parsed address of a cluster."""

    seeds: tuple[Address, ...]
    token: Token | None = None
    ca: Path | None = None
    datacenter: str | None = None
    """The data center whose owners decide; None for that of the member that answers first."""
    server_name: str | None = None
    """Name the nodes' certificate must carry, when it is not one of `ringfence keys new`."""
    timeout: float | None = None
    """Seconds until a member that does not answer is given up."""


def parse_url(text: str) -> ClusterUrl:
    """Read a cluster's address, and the token in its `token_file`.

    Raises `ConfigError` that says which part is wrong and shows nothing of a token.
    """
    try:
        return _parsed(text)
    except ConfigError as error:
        raise ConfigError(masked(str(error))) from None  # The cause has the token.


def masked(text: str) -> str:
    """Replace what may be a token or a part of one, in an address or in a message."""
    return _SECRET.sub("...", _USERINFO.sub("...@", text))


def _parsed(text: str) -> ClusterUrl:
    if not isinstance(text, str):
        raise ConfigError(f"cluster address {text!r} is not text; write {_SHAPE}")
    text = text.strip()
    scheme, slashes, rest = text.partition("://")
    if not slashes or scheme.lower() != "ringfence":
        raise ConfigError(
            f"cluster address {text!r} does not begin with ringfence://; write {_SHAPE}"
        )
    place, _, query = rest.partition("?")
    place, _, path = place.partition("/")
    if path:
        raise ConfigError(f"cluster address {text!r} has a path; write {_SHAPE}")
    userinfo, _, hosts = place.rpartition("@")
    if not hosts:
        raise ConfigError(f"cluster address {text!r} names no host; write {_SHAPE}")
    options = _options(query)
    return ClusterUrl(
        tuple(_seed(host) for host in hosts.split(",")),
        _token(unquote(userinfo), options.get("token_file")),
        Path(options["ca"]) if "ca" in options else None,
        options.get("datacenter"),
        options.get("server_name"),
        _timeout(options.get("timeout")),
    )


def parse_token(text: str) -> Token:
    """Read a token as `ringfence keys new` writes it."""
    name, dot, secret = text.rpartition(".")
    try:
        raw = bytes.fromhex(secret)
    except ValueError:
        raw = b""
    if not (dot and 1 <= len(name) <= MAX_TEXT and 16 <= len(raw) <= MAX_CREDENTIAL):
        raise ConfigError(
            "the token in the cluster address is not one of ours; use the line in a .token file "
            "that `ringfence keys new` wrote, which reads NAME.HEXADECIMAL"
        )
    return Token(name, raw)


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Read `host`, `host:port`, `[ipv6]:port` or a bare IPv6 address; `port` alone is on loopback.

    Raises `ConfigError`.
    """
    host, port = text.strip(), str(default_port)
    if _PORT_ALONE.fullmatch(host):
        host, port = _LOOPBACK, host
    elif host.startswith("["):
        host, _, rest = host[1:].partition("]")
        if rest:
            port = rest[1:] if rest.startswith(":") else f"{rest} without a colon"
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    elif host.count(":") > 1 and not _is_ip(host):
        raise ConfigError(f"address {text!r}: put an IPv6 address in brackets, as in [::1]:7101")
    if not host:
        raise ConfigError(f"address {text!r} names no host; write HOST:PORT")
    if not (port.isdecimal() and 0 <= int(port) <= 65535):
        raise ConfigError(f"address {text!r}: port {port!r} is not a number from 0 to 65535")
    return host, int(port)


def _token(written: str, file: str | None) -> Token | None:
    if file is None:
        return parse_token(written) if written else None
    if written:
        raise ConfigError("cluster address: give a token or token_file, not both")
    try:
        return parse_token(Path(file).read_text("ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(
            f"cluster address: token_file {file} cannot be read: {reason}; name a .token file that "
            "`ringfence keys new` wrote"
        ) from error


def _seed(text: str) -> Address:
    host, port = parse_address(text)
    if _TOKEN_AS_HOST.fullmatch(host):
        # Looking it up would send the secret to name servers.
        raise ConfigError(f"cluster address: a host must not be a token; write {_SHAPE}")
    if port == 0:
        raise ConfigError(f"address {text!r}: nobody listens on port 0")
    return host, port


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in OPTIONS:
            raise ConfigError(
                f"cluster address: unknown option {name!r}; known are {', '.join(OPTIONS)}"
            )
        if not value:
            raise ConfigError(f"cluster address: option {name!r} has no value")
    return options


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 60:
        raise ConfigError(
            f"cluster address: timeout {text!r} is not a number of seconds from 0.001 to 60"
        )
    return value


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
