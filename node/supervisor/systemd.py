"""Notifications to systemd for units with `Type=notify`.

Source: sd_notify(3). One datagram to the socket in NOTIFY_SOCKET; without it, nothing is sent.
"""

import logging
import os
import socket
from collections.abc import MutableMapping

__all__ = ["NOTIFY_SOCKET", "notify_systemd"]

logger = logging.getLogger("ringfence.node")

NOTIFY_SOCKET = "NOTIFY_SOCKET"


def notify_systemd(state: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Send `READY=1` or `STOPPING=1`; log a failure, because the node can run without it."""
    path = environment.get(NOTIFY_SOCKET, "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode("ascii"), address)
    except OSError as error:
        logger.warning(
            "systemd could not be notified: state=%s error=%s", state, error.strerror or error
        )
