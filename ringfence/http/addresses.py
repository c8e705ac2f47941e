"""Client address of a request that passed trusted proxies.

Any client can send `X-Forwarded-For: 1.2.3.4`. Each proxy appends the address of its own peer at
the right end. So the addresses are read from the right, as long as they are trusted proxies.
Addresses further left are claims of the client and are ignored.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice

from ringfence.errors import ConfigError
from ringfence.rules import group_address

__all__ = ["UNKNOWN", "ClientAddress"]

logger = logging.getLogger("ringfence.http")

UNKNOWN = "unknown"
"""Address of all clients whose real address is unknown.

They share one budget. The proxy's address instead would give each client a second budget, and any
rights of that address.
"""

_UNIX = "unix"
_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip")
_REMEMBERED = 4096
_LONGEST_ADDRESS = 64
_LONGEST_CHAIN = 64
"""Maximum length of a chain of proxies; a longer one is an attempt to waste processor time."""

_Header = Callable[[str], str | None]


class ClientAddress:
    """Finder of client addresses, grouped as limits count them: IPv6 by network.

    `trusted` describes the proxies between the clients and this server: their number, or better
    their addresses and networks (`["10.0.0.0/8", "::1"]`, and `"unix"` for a proxy on a Unix
    socket). With a number, a client that reaches an inner proxy directly can forge its address;
    with addresses it cannot. `header` is the only header that is read: `x-forwarded-for`,
    `forwarded` (RFC 7239) or `x-real-ip`.

    Raises `ConfigError` for an invalid argument.
    """

    def __init__(
        self,
        trusted: int | str | Iterable[str] = 0,
        *,
        header: str = "x-forwarded-for",
        ipv6_prefix: int = 64,
    ) -> None:
        self._header = header.lower()
        if self._header not in _HEADERS:
            raise ConfigError(f"proxy header must be one of {', '.join(_HEADERS)}, got {header!r}")
        if type(ipv6_prefix) is not int or not 1 <= ipv6_prefix <= 128:
            raise ConfigError(
                f"ipv6_prefix must be from 1 to 128, got {ipv6_prefix!r}; 64 is usually the "
                "network of one subscriber"
            )
        self._hops = 0
        self._trusts_unix = False
        self._networks: tuple[tuple[int, int, int], ...] = ()
        if isinstance(trusted, int):
            if isinstance(trusted, bool) or not 0 <= trusted <= 32:
                raise ConfigError(
                    "trusted_proxies must be a number of proxies from 0 to 32, or a list of their "
                    f"addresses, got {trusted!r}"
                )
            self._hops = trusted
        else:
            self._read([trusted] if isinstance(trusted, str) else list(trusted))
        self._trusts_no_proxy = not (self._hops or self._networks or self._trusts_unix)
        # Cached: parsing an address takes longer than the rest of the preparation.
        self._group = lru_cache(_REMEMBERED)(lambda text: group_address(text, ipv6_prefix))
        self._is_ours = lru_cache(_REMEMBERED)(self._is_proxy)
        self._warned: set[str] = set()

    def of(self, peer: str | None, header: _Header) -> str:
        """Return the client address of a request that came from `peer`, the other end of the
        connection.

        `header` returns a request header by its lower-case name, with lines joined by commas.
        """
        client = peer if self._trusts_no_proxy else self._behind(peer, header)
        if not client:
            self._warn(
                "the server gives no client address, so all clients are counted as one; behind a "
                "proxy on a Unix socket, add 'unix' to trusted_proxies"
            )
            return UNKNOWN
        return UNKNOWN if client == UNKNOWN else self._group(client)

    # -- reading the settings ------------------------------------------------------------------

    def _read(self, trusted: list[str]) -> None:
        networks = []
        for text in trusted:
            if text == _UNIX:
                self._trusts_unix = True
                continue
            try:
                network = ip_network(text, strict=False)
            except ValueError as error:
                raise ConfigError(
                    f"trusted_proxies must be addresses or networks, got {text!r}; write "
                    "10.0.0.7, 10.0.0.0/8, 2001:db8::/32 or unix"
                ) from error
            networks.append((network.version, int(network.network_address), int(network.netmask)))
        self._networks = tuple(networks)

    # -- walking the chain ---------------------------------------------------------------------

    def _behind(self, peer: str | None, header: _Header) -> str | None:
        """Follow the chain of trusted proxies from the peer to the client."""
        if self._hops:
            return self._after_hops(peer, header)
        client = peer
        if not (self._trusts_unix if not peer else self._is_ours(peer)):
            return client
        for entry in islice(self._claims(header), _LONGEST_CHAIN):
            if entry is None:
                return self._unreadable()
            client = entry
            if not self._is_ours(entry):
                break
        return client

    def _after_hops(self, peer: str | None, header: _Header) -> str | None:
        client = peer
        for passed, entry in enumerate(self._claims(header)):
            if passed == self._hops:
                break
            if entry is None:
                return self._unreadable()
            client = entry
        return client

    def _unreadable(self) -> str:
        self._warn(
            f"a trusted proxy has written no address into {self._header}, so such clients are "
            "counted as one; have the proxy write the address of the client"
        )
        return UNKNOWN

    def _claims(self, header: _Header) -> Iterator[str | None]:
        """Yield the client and proxy addresses in the header, the last first; None for an
        invalid one."""
        text = header(self._header)
        if text is None:
            return
        if not text:
            yield None
        elif self._header == "x-real-ip":
            yield _address(text.rpartition(",")[2])  # One address for the whole chain.
        elif self._header == "forwarded":
            for element in reversed(_split(text, ",")):
                yield _forwarded_for(element)
        else:
            while text:
                text, _, last = text.rpartition(",")
                yield _address(last)

    def _is_proxy(self, text: str) -> bool:
        address = _parsed(text)
        if address is None:
            return False
        number = int(address)
        return any(
            [
                version == address.version and number & mask == network
                for version, network, mask in self._networks
            ]
        )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def _forwarded_for(element: str) -> str | None:
    """Parse the address in one element of a `Forwarded` header:
    `for="[2001:db8::17]:4711";proto=https`."""
    for pair in _split(element, ";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            return _address(value)
    return None


def _split(text: str, mark: str) -> list[str]:
    """Split a text at the character `mark`, but not inside quotes.

    An unclosed quote comes from the client, before the proxy's part. Quotes are then ignored,
    because the quote would otherwise hide the proxy's part.
    """
    if '"' not in text:
        return text.split(mark)
    parts, begin, is_quoted, skip = [], 0, False, False
    for place, letter in enumerate(text):
        if skip:
            skip = False
        elif letter == "\\" and is_quoted:
            skip = True
        elif letter == '"':
            is_quoted = not is_quoted
        elif letter == mark and not is_quoted:
            parts.append(text[begin:place])
            begin = place + 1
    return text.split(mark) if is_quoted else [*parts, text[begin:]]


def _address(text: str) -> str | None:
    """Parse an address in any form that proxies write: bare, quoted, in brackets, with a port."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return text if _parsed(text) is not None else None


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    if len(text) > _LONGEST_ADDRESS:
        return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
