"""Address of a cluster as one line of text, including the client's token.

`ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE` names some of the nodes. The first node that answers
sends the addresses of the others.
"""

import ipaddress
import re
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.rules import OnFailure
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
"""Environment variable with the address, for programs that give none."""

OPTIONS = ("ca", "datacenter", "on_failure", "server_name", "timeout", "token_file")
"""Names of the options after the question mark of the address."""
_SHAPE = "ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE"
_USERINFO = re.compile("(?<![^\\s'\"/])(?!TOKEN@)[^\\s'\"/]*@")
_SECRET = re.compile("[0-9A-Fa-f]{8,}|[0-9A-Za-z_-]{24,}")
"""Pattern of a part of a secret, also of a mistyped one."""
_PORT_ALONE = re.compile("[0-9]{1,5}")
"""Pattern of a port without a host. A number is never a host, although IPv4 permits that form."""
_IPV6_AND_PORT = re.compile("(.*::.*):([1-9][0-9]{3})")
"""Pattern of a shortened IPv6 address that may end in a port."""
_HEXADECIMAL = re.compile("[0-9A-Fa-f]+")
_REMEDY = "use the line in a .token file that `ringfence keys new` wrote"
"""Correction of an invalid token."""
_LOOPBACK = "127.0.0.1"
_TOKEN_AS_HOST = re.compile(r".*\.[0-9A-Za-z_-]{24,}|[0-9A-Fa-f]{32,}")


class Token(Struct, frozen=True):
    """Name and secret of a client, written `NAME.SECRET` with a hexadecimal secret."""

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Token(name={self.name!r}, secret=...)"


class ClusterUrl(Struct, frozen=True):
    """Parsed address of a cluster."""

    seeds: tuple[Address, ...]
    token: Token | None = None
    ca: Path | None = None
    datacenter: str | None = None
    """Data center whose owners decide; None means that of the first node that answers."""
    server_name: str | None = None
    """Name in the nodes' certificates; None means the name that `ringfence keys new` writes."""
    timeout: float | None = None
    """Seconds without an answer after which a node is lost."""
    on_failure: OnFailure = OnFailure.ALLOW
    """Policy for limits that are in no rule, and for all checks before a node has sent rules."""


def parse_url(text: str) -> ClusterUrl:
    """Parse the address of a cluster, and read the token from its `token_file` if it has one.

    Raises `ConfigError` that names the wrong part and shows nothing of a token.
    """
    try:
        return _parsed(text)
    except ConfigError as error:
        raise ConfigError(masked(str(error))) from None  # The cause contains the token.


def masked(text: str) -> str:
    """Mask everything that may be a token, or a part of one, in an address or a message."""
    return _SECRET.sub("...", _USERINFO.sub("...@", text))


def _parsed(text: str) -> ClusterUrl:
    if not isinstance(text, str):
        raise ConfigError(
            f"cluster address must be text, got {text!r}; write {_SHAPE}, or give a limiter of "
            "ringfence.blocking to a WSGI application or to threads"
        )
    text = text.strip()
    scheme, slashes, rest = text.partition("://")
    if not slashes or scheme.lower() != "ringfence":
        raise ConfigError(
            f"cluster address must begin with ringfence://, got {text!r}; write {_SHAPE}"
        )
    place, _, query = rest.partition("?")
    place, _, path = place.partition("/")
    if path:
        raise ConfigError(f"cluster address must have no path, got {text!r}; write {_SHAPE}")
    userinfo, _, hosts = place.rpartition("@")
    if not hosts:
        raise ConfigError(f"cluster address must name a host, got {text!r}; write {_SHAPE}")
    if "," in userinfo:
        raise ConfigError(f"cluster address: one token must be before all hosts; write {_SHAPE}")
    options = _options(query)
    return ClusterUrl(
        tuple(_seed(host) for host in hosts.split(",")),
        _token(unquote(userinfo), options.get("token_file")),
        Path(options["ca"]) if "ca" in options else None,
        options.get("datacenter"),
        options.get("server_name"),
        _timeout(options.get("timeout")),
        _on_failure(options.get("on_failure", OnFailure.ALLOW)),
    )


def parse_token(text: str) -> Token:
    """Parse a token as `ringfence keys new` writes it."""
    name, _, secret = text.rpartition(".")
    if not (1 <= len(name) <= MAX_TEXT and _HEXADECIMAL.fullmatch(secret)):
        raise ConfigError(
            f"token in the cluster address must read NAME.HEXADECIMAL, got other text; {_REMEDY}"
        )
    digits = len(secret)
    if digits % 2 or not 32 <= digits <= 2 * MAX_CREDENTIAL:
        raise ConfigError(
            "token in the cluster address must have an even number of digits after the dot, from "
            f"32 to {2 * MAX_CREDENTIAL}, got {digits}; {_REMEDY}"
        )
    return Token(name, bytes.fromhex(secret))


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse `host`, `host:port`, `[ipv6]:port` or a bare IPv6 address; `port` alone is on loopback.

    Raises `ConfigError`.
    """
    host, port = text.strip(), str(default_port)
    if "://" in host:
        raise ConfigError(f"address must have no scheme, got {text!r}; write HOST:PORT")
    if _PORT_ALONE.fullmatch(host):
        host, port = _LOOPBACK, host
    elif host.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        if not bracket:
            raise ConfigError(
                f"address must have a closing bracket, got {text!r}; write [::1]:7101"
            )
        if rest:
            port = rest[1:] if rest.startswith(":") else f"{rest} without a colon"
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    elif host.count(":") > 1 and not _is_ip(host):
        raise ConfigError(
            f"address must have an IPv6 address in brackets, got {text!r}; write [::1]:7101"
        )
    elif (before := _IPV6_AND_PORT.fullmatch(host)) and _is_ip(before[1]):
        raise ConfigError(
            f"IPv6 address with a port must be in brackets, got {text!r}; write "
            f"[{before[1]}]:{before[2]}, or [{host}] if the last number is no port"
        )
    if not host:
        raise ConfigError(f"address must name a host, got {text!r}; write HOST:PORT")
    if not (port.isdecimal() and 0 <= int(port) <= 65535):
        raise ConfigError(
            f"port must be a number from 0 to 65535, got {port!r} in address {text!r}; correct it"
        )
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
        # A lookup would send the secret to name servers.
        raise ConfigError(f"cluster address: a host must not be a token; write {_SHAPE}")
    if port == 0:
        raise ConfigError(f"port must be from 1 to 65535, got 0 in address {text!r}; correct it")
    return host, port


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(OPTIONS)}"
            raise ConfigError(f"cluster address: unknown option {name!r}; {hint}")
        if not value:
            raise ConfigError(
                f"cluster address: option {name!r} must have a value; write {name}=VALUE"
            )
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
            f"cluster address: timeout must be from 0.001 to 60, got {text!r}; give seconds"
        )
    return value


def _on_failure(text: str) -> OnFailure:
    if text not in tuple(OnFailure):
        raise ConfigError(
            f"cluster address: on_failure must be {', '.join(OnFailure)}, got {text!r}; give one"
        )
    return OnFailure(text)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
