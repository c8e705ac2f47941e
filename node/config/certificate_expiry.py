"""Log events about the expiry of a node's certificates: at start, at reload, and daily when it is
near.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import trio
from msgspec import Struct

from node.config.access import KeyDir
from node.config.certificates import certificate_files
from ringfence.transport.tls.certificates import ClientTls, ServerTls, expires_at

__all__ = ["Expiry", "expiries", "log_expiries", "warn_daily"]

logger = logging.getLogger("ringfence.node")

_SOON = timedelta(days=30)
_DAY_SECONDS = 86_400.0


class Expiry(Struct, frozen=True):
    """Expiry time of one certificate, and the steps to replace it."""

    file: str
    """Relative to the key folder."""
    at: datetime
    remedy: str


def expiries(keys: KeyDir, name: str, client: ClientTls, server: ServerTls) -> list[Expiry]:
    """Return when the certificate of the node `name` and that of its authority expire."""
    certificate, _ = certificate_files(keys, name)
    shown = Expiry(
        str(certificate.relative_to(keys.path)),
        datetime.fromtimestamp(expires_at(server.certificate_pem), UTC),
        f"run `ringfence keys renew {keys.path}` where ca.key is, copy the new files to this node "
        "and send it a SIGHUP",
    )
    if client.ca_pem is None:
        return [shown]
    remedy = "make a new authority with `ringfence keys new` and give it to all nodes and clients"
    authority = datetime.fromtimestamp(expires_at(client.ca_pem), UTC)
    return [shown, Expiry(keys.ca.name, authority, remedy)]


def log_expiries(known: Sequence[Expiry], now: datetime, *, only_soon: bool = False) -> None:
    """Log when each certificate expires: a warning with the remedy below 30 days."""
    for expiry in known:
        left = expiry.at - now
        day, days = f"{expiry.at:%Y-%m-%d}", left.days
        if left >= _SOON:
            if not only_soon:
                logger.info("certificate %s expires on %s, in %d days", expiry.file, day, days)
        elif days >= 0:
            message = "certificate %s expires on %s, in %d days; %s"
            logger.warning(message, expiry.file, day, days, expiry.remedy)
        else:
            logger.error(
                "certificate %s expired on %s and is refused by peers and clients; %s",
                *(expiry.file, day, expiry.remedy),
            )


async def warn_daily(in_force: Callable[[], Sequence[Expiry]], now: Callable[[], datetime]) -> None:
    """Once a day, log each certificate that expires within 30 days; run until cancelled."""
    while True:
        await trio.sleep(_DAY_SECONDS)
        log_expiries(in_force(), now(), only_soon=True)
