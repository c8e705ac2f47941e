"""Who may ask the operator's port: tokens of the cluster, or anybody on this host without keys.

Decides for one request from its headers. A browser on the host is somebody's hand that strangers'
pages would like to use, so a request must have been meant for this address.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from node.admin.responses import Problem
from node.config.access import Access, Scope
from ringfence.client.url import Token, parse_token
from ringfence.errors import ConfigError
from ringfence.wire import Hello, Role

__all__ = ["admit"]

_ASK = [(b"www-authenticate", b'Basic realm="ringfence", charset="UTF-8"')]
_MEND = (
    "send the line of a .token file as `Authorization: Bearer NAME.HEXADECIMAL`; a browser asks "
    "for a name and a password: the token's name, and what stands after the dot"
)


def admit(access: Access, needed: Scope, method: str, headers: Mapping[bytes, bytes]) -> None:
    """Let a request pass, or raise `Problem`. `headers` have lower-case names."""
    _refuse_strangers(access, method, headers)
    if access.is_open:
        return
    token = _token(headers.get(b"authorization", b""))
    hello = Hello(Role.CLIENT, token.name, token.secret, 0)
    scopes = access.scopes_of(hello)
    if scopes is None:
        raise Problem(
            401, f"the token {token.name[:64]!r} is not one this node knows", _MEND, headers=_ASK
        )
    if needed not in scopes:
        raise Problem(
            403,
            f"the token {token.name[:64]!r} lacks the scope {needed.value!r}",
            "use a token that has it; `ringfence keys add-token DIR NAME:SCOPE,SCOPE` makes one",
        )


def _token(header: bytes) -> Token:
    text = header.decode("latin-1").strip()
    scheme, _, rest = text.partition(" ")
    rest = rest.strip()
    try:
        match scheme.lower():
            case "bearer":
                return parse_token(rest)
            case "basic":
                name, _, password = b64decode(rest, validate=True).decode().partition(":")
                return parse_token(password if "." in password else f"{name}.{password}")
    except (ConfigError, NotBase64, UnicodeDecodeError) as error:
        raise Problem(401, "the token is not one of ours", _MEND, headers=_ASK) from error
    raise Problem(401, "this needs a token", _MEND, headers=_ASK)


def _refuse_strangers(access: Access, method: str, headers: Mapping[bytes, bytes]) -> None:
    """Turn away what another web page had a browser send."""
    host = headers.get(b"host", b"").decode("latin-1")
    if access.is_open and not _is_this_host(host):
        raise Problem(
            403,
            f"the host {host[:100]!r} is not a name of this host's own",
            "without keys this port is for this host alone: ask for 127.0.0.1, [::1] or localhost",
        )
    origin = headers.get(b"origin", b"").decode("latin-1")
    if method not in ("GET", "HEAD") and origin and origin.rpartition("/")[2] != host:
        raise Problem(
            403,
            f"a page of {origin[:100]!r} may not ask for this",
            "use curl, or a page of this port itself",
        )


def _is_this_host(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
