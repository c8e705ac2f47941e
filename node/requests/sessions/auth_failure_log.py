"""Log of rejected credentials, with a bounded rate."""

import logging

from ringfence.transport.interface import Address
from ringfence.wire import Hello, Role

__all__ = ["AuthFailureLog"]

logger = logging.getLogger("ringfence.node")

_PAUSE_NS = 10_000_000_000
_MAX_NAMES = 64


class AuthFailureLog:
    """Log of rejected credentials: each name at most every 10 s, and at most 64 names in that
    time."""

    def __init__(self) -> None:
        self._logged_at: dict[tuple[Role, str], int] = {}

    def log(self, hello: Hello, address: Address, now: int) -> None:
        """Log a rejected `Hello` message, unless the same name was logged recently."""
        identity = hello.role, hello.name
        if now - self._logged_at.get(identity, now - _PAUSE_NS) < _PAUSE_NS:
            return
        if len(self._logged_at) >= _MAX_NAMES:
            self._logged_at = {
                name: at for name, at in self._logged_at.items() if now - at < _PAUSE_NS
            }
            if len(self._logged_at) >= _MAX_NAMES:
                return
        self._logged_at[identity] = now
        host, port = address[:2]
        if hello.role is not Role.NODE and not hello.credential:
            logger.warning("refused a client without a token at %s:%d", host, port)
            return
        what = "cluster key or cluster name" if hello.role is Role.NODE else "token"
        logger.warning("refused unknown or wrong %s of %r at %s:%d", what, hello.name, host, port)
