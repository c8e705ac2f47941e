"""Discovery of other nodes by numeric addresses, DNS names and DNS service records.

A discovered address is only a first contact. Membership is decided by gossip.
"""

import logging
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

import dns.exception
import trio
from msgspec import Struct

from ringfence.client.url import parse_address
from ringfence.errors import ConfigError
from ringfence.transport.interface import Address

__all__ = ["Discovery", "Seed", "from_environment", "parse_seed"]

logger = logging.getLogger("ringfence.node")

_LOOKUP_TIMEOUT = 5.0
"""Time-out of look-ups in seconds, until one has succeeded."""
_OTHERS_TIMEOUT = 2.0
"""Time-out of the other look-ups when one has succeeded: a new node waits 3 s for members."""


class Seed(Struct, frozen=True):
    """Parsed seed: a numeric address, a DNS name, or a DNS service record."""

    text: str
    kind: str
    """`address`, `dns` or `srv`."""
    name: str
    port: int = 0


def parse_seed(text: str) -> Seed:
    """Parse a seed: `HOST:PORT`, `dns:NAME:PORT` or `srv:NAME`. Raises `ConfigError`."""
    kind, colon, rest = text.partition(":")
    if "," in text:
        raise ConfigError(
            f"join must have one address in each value, got {text!r}; repeat --join, or write "
            'join = ["HOST:PORT", "HOST:PORT"]'
        )
    try:
        if colon and kind == "srv":
            if not rest:
                raise ConfigError("a service record must have a name, got none")
            if ":" in rest:
                raise ConfigError("a service record must have no port")
            return Seed(text, "srv", rest)
        is_dns = bool(colon) and kind == "dns"
        host, port = parse_address(rest if is_dns else text)
    except ConfigError as error:
        raise ConfigError(
            f"join {text!r}: {error}; write HOST:PORT, dns:NAME:PORT or srv:_ringfence._udp.NAME"
        ) from error
    return Seed(text, "dns" if is_dns else "address", host, port)


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return name and address of a Kubernetes pod, from `POD_NAME` and `POD_IP`."""
    found = {}
    if environment.get("POD_NAME"):
        found["name"] = environment["POD_NAME"]
    if environment.get("POD_IP"):
        found["advertise"] = environment["POD_IP"]
    return found


class Discovery:
    """Resolver of seeds to addresses of other members."""

    def __init__(self, seeds: Sequence[str]) -> None:
        """Raises `ConfigError` for an invalid seed."""
        self._seeds = list(dict.fromkeys(map(parse_seed, seeds)))
        self._known: dict[str, list[Address]] = {}
        """Addresses of each seed from its last successful look-up."""

    async def resolve(self) -> list[Address]:
        """Resolve all seeds at the same time. If a look-up fails or takes too long, use the
        previous addresses of this seed."""
        began = trio.current_time()
        waiting = dict.fromkeys(self._seeds)
        with trio.move_on_after(_LOOKUP_TIMEOUT) as scope:
            async with trio.open_nursery() as nursery:

                async def renew(seed: Seed) -> None:
                    try:
                        self._known[seed.text] = await _look_up(seed)
                        scope.deadline = began + _OTHERS_TIMEOUT
                    except (OSError, UnicodeError, dns.exception.DNSException) as error:
                        self._log_failure(seed, str(error) or type(error).__name__)
                    del waiting[seed]

                for seed in self._seeds:
                    nursery.start_soon(renew, seed)
        for seed in waiting:
            self._log_failure(seed, "no answer")
        found = [address for seed in self._seeds for address in self._known.get(seed.text, [])]
        return list(dict.fromkeys(found))

    def _log_failure(self, seed: Seed, reason: str) -> None:
        is_known = bool(self._known.get(seed.text))
        previous = "; its previous addresses are used" if is_known else ""
        logger.warning("seed %s cannot be looked up (%s)%s", seed.text, reason, previous)


async def _look_up(seed: Seed) -> list[Address]:
    if seed.kind == "srv":
        # Imported here, because it takes a fifth of the start-up time of a node.
        from dns.asyncresolver import resolve

        answer = await resolve(seed.name, "SRV")
        return await _addresses_of_any(
            [(str(each.target).rstrip("."), int(each.port)) for each in answer]
        )
    return await _addresses(seed.name, seed.port)


async def _addresses_of_any(targets: Sequence[Address]) -> list[Address]:
    """Return the addresses of all targets of a service that have one.

    A member that has just ended may still be a target. Raises `OSError` or `UnicodeError` when no
    target has an address.
    """
    found: list[Address] = []
    failure: OSError | UnicodeError | None = None
    for host, port in targets:
        try:
            found += await _addresses(host, port)
        except (OSError, UnicodeError) as error:
            failure = error
    if not found and failure is not None:
        raise failure
    return found


async def _addresses(host: str, port: int) -> list[Address]:
    """Return all numeric addresses of a host from the system's resolver, including `/etc/hosts`."""
    try:
        return [(str(ip_address(host)), port)]
    except ValueError:
        pass
    rows = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
    found = [(str(row[4][0]), port) for row in rows]
    # Nodes listen on 127.0.0.1 by default, even if localhost resolves to ::1 first.
    return sorted(dict.fromkeys(found), key=lambda address: address[0] == "::1")
