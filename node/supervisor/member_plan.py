"""Names and ports of the members of one host.

Member I, counted from 0, has the name `NAME-I`, the UDP port `listen` + I and the admin port `http`
+ 1 + I on loopback. The supervisor uses the port `http`. All members are in one zone, so that
standbys are on other hosts.
"""

from collections.abc import Sequence

import msgspec

from node.config.settings import NodeSettings
from ringfence.errors import ConfigError
from ringfence.transport.interface import Address
from ringfence.transport.listeners import Listener

__all__ = ["member_settings", "operator_address", "operator_listeners", "require_plan"]

_LAST_PORT = 65_535
_LOOPBACK = "127.0.0.1"


def member_settings(settings: NodeSettings, index: int, siblings: Sequence[str]) -> NodeSettings:
    """Return the settings of member `index`; `siblings` are the addresses of running members of
    this host."""
    http = operator_address(settings, index)
    return msgspec.structs.replace(
        settings,
        name=f"{settings.name}-{index}",
        listen=_text(settings.listen_at, index),
        advertise=_text(settings.advertise_at, index) if settings.advertise else "",
        join=[*siblings, *settings.join],
        zone=settings.zone or settings.name,
        http=_text(http, 0) if http else "",
        processes=1,
    )


def operator_address(settings: NodeSettings, index: int) -> Address | None:
    """Return the admin address of member `index`; None without an admin port."""
    if settings.http_at is None:
        return None
    return _LOOPBACK, settings.http_at[1] + 1 + index


def operator_listeners(settings: NodeSettings) -> list[Listener]:
    """Return the TCP ports of all admin ports of this host: the supervisor's and its members'."""
    http = settings.http_at
    if http is None:
        return []
    own = Listener("http", http)
    if settings.processes == 1:
        return [own]
    members = Listener("http of the members", (_LOOPBACK, http[1] + 1), settings.processes)
    return [own, members]


def require_plan(settings: NodeSettings) -> None:
    """Raise `ConfigError` when the ports do not suffice for the number of members."""
    last = settings.processes - 1
    for name, address in (("listen", settings.listen_at), ("advertise", settings.advertise_at)):
        if address[1] + last > _LAST_PORT:
            raise ConfigError(
                f"{name}: {settings.processes} processes from port {address[1]} on would need "
                f"ports above {_LAST_PORT}; choose a lower one"
            )
    if settings.http_at is None:
        return
    if settings.http_at[1] == 0:
        raise ConfigError(
            "http must have a port above 0 with processes above 1, got port 0; choose a port, "
            "because the members use the ports after it"
        )
    if settings.http_at[1] + settings.processes > _LAST_PORT:
        raise ConfigError(
            f"http: {settings.processes} processes take the ports after {settings.http_at[1]}, "
            f"which would be above {_LAST_PORT}; choose a lower one"
        )


def _text(address: Address, index: int) -> str:
    host, port = address[0], address[1] + index
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
