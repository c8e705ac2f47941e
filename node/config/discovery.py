"""Where a node looks for the others: addresses, names that are looked up anew, service records.

Nothing here decides who is a member; that is gossip's once one of these has answered.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import dns.exception
import trio

from ringfence.client.url import parse_address
from ringfence.errors import ConfigError
from ringfence.transport.interface import Address

__all__ = ["Discovery", "Seed", "from_environment", "parse_seed"]

logger = logging.getLogger("ringfence.node")

_PATIENCE = 5.0
"""Seconds that one look-up may take."""


@dataclass(frozen=True, slots=True)
class Seed:
    """One place to look: a plain address, a name with many addresses, or a service record."""

    text: str
    kind: str
    """`address`, `dns` or `srv`."""
    name: str
    port: int = 0


def parse_seed(text: str) -> Seed:
    """Read `HOST:PORT`, `dns:NAME:PORT` or `srv:NAME`. Raises `ConfigError`."""
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "srv":
            if not rest or ":" in rest:
                raise ConfigError("a service record has a name and no port")
            return Seed(text, "srv", rest)
        is_dns = bool(colon) and kind == "dns"
        host, port = parse_address(rest if is_dns else text)
    except ConfigError as error:
        raise ConfigError(
            f"join {text!r}: {error}; write HOST:PORT, dns:NAME:PORT or srv:_ringfence._udp.NAME"
        ) from error
    return Seed(text, "dns" if is_dns else "address", host, port)


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Find the name and the address that Kubernetes tells a pod: `POD_NAME` and `POD_IP`."""
    found = {}
    if environment.get("POD_NAME"):
        found["name"] = environment["POD_NAME"]
    if environment.get("POD_IP"):
        found["advertise"] = environment["POD_IP"]
    return found


class Discovery:
    """Finds addresses of other members, again each time it is asked."""

    def __init__(self, seeds: Sequence[str]) -> None:
        """Raises `ConfigError` for a seed that cannot be read."""
        self._seeds = [parse_seed(text) for text in seeds]
        self._known: dict[str, list[Address]] = {}
        """What each seed stood for when it was last looked up with success."""

    async def resolve(self) -> list[Address]:
        """Look all seeds up; of one that cannot be found now, what it stood for before."""
        for seed in self._seeds:
            try:
                with trio.fail_after(_PATIENCE):
                    self._known[seed.text] = await _look_up(seed)
            except (OSError, UnicodeError, dns.exception.DNSException, trio.TooSlowError) as error:
                known = self._known.get(seed.text)
                logger.warning(
                    "seed %s cannot be looked up (%s)%s",
                    seed.text,
                    error or type(error).__name__,
                    "; what it stood for before is used" if known else "",
                )
        found = [address for seed in self._seeds for address in self._known.get(seed.text, [])]
        return list(dict.fromkeys(found))


async def _look_up(seed: Seed) -> list[Address]:
    if seed.kind == "srv":
        from dns.asyncresolver import resolve  # By itself a fifth of a node's start.

        answer = await resolve(seed.name, "SRV")
        targets = [(str(each.target).rstrip("."), int(each.port)) for each in answer]
        return [a for host, port in targets for a in await _addresses(host, port)]
    return await _addresses(seed.name, seed.port)


async def _addresses(host: str, port: int) -> list[Address]:
    """All numeric addresses of a host, by the system's resolver: `/etc/hosts` counts, too."""
    try:
        return [(str(ip_address(host)), port)]
    except ValueError:
        pass
    rows = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
    found = [(str(row[4][0]), port) for row in rows]
    # Nodes listen on 127.0.0.1 unless told otherwise, whatever localhost resolves to first.
    return sorted(dict.fromkeys(found), key=lambda address: address[0] == "::1")
