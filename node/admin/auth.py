"""Authorization of requests to the admin port, from their headers and token.

Without keys every process on this host has every scope. Pages of other web sites could then send
requests through a browser on this host, so the `Host` and `Origin` headers are checked.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from ipaddress import ip_address
from urllib.parse import urlsplit

from node.admin.http_messages import AdminRequest, HttpProblem
from node.config.access import Access
from ringfence.client.url import Token, parse_token
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope
from ringfence.wire import Hello, Role

__all__ = ["authorize"]

_CHALLENGE = [(b"www-authenticate", b'Basic realm="ringfence", charset="UTF-8"')]
_REMEDY = (
    "send the line of a .token file as `Authorization: Bearer NAME.HEXADECIMAL`; in a browser, "
    "enter the name of the token as user, and the part after the dot as password"
)


def authorize(access: Access, needed: Scope, request: AdminRequest) -> None:
    """Check the headers and the token of a request. Raises `HttpProblem` when it is refused."""
    _refuse_cross_site(access, request)
    if access.is_open:
        return
    token = _token(request.headers.get(b"authorization", b""))
    hello = Hello(Role.CLIENT, token.name, token.secret, 0)
    scopes = access.scopes_of(hello)
    if scopes is None:
        raise HttpProblem(
            401, f"the token {token.name[:64]!r} is unknown", _REMEDY, headers=_CHALLENGE
        )
    if needed not in scopes:
        raise HttpProblem(
            403,
            f"the token {token.name[:64]!r} must have the scope {needed.value!r}",
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
        raise HttpProblem(401, "the token is malformed", _REMEDY, headers=_CHALLENGE) from error
    raise HttpProblem(401, "this path needs a token", _REMEDY, headers=_CHALLENGE)


def _refuse_cross_site(access: Access, request: AdminRequest) -> None:
    """Refuse requests that a page of another web site made a browser send."""
    host = request.headers.get(b"host", b"").decode("latin-1")
    if access.is_open and not _is_this_host(host):
        raise HttpProblem(
            403,
            f"the Host header must be a loopback address or localhost, got {host[:100]!r}",
            "without keys this port serves only its own host: use 127.0.0.1, [::1] or localhost",
        )
    origin = request.headers.get(b"origin", b"").decode("latin-1")
    is_read = request.method in ("GET", "HEAD")
    if not is_read and origin and origin.rpartition("/")[2] != host:
        raise HttpProblem(
            403,
            f"the Origin header must be this port, got {origin[:100]!r}",
            "use curl, or a page of this port",
        )


def _is_this_host(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
