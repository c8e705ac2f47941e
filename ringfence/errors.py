"""Errors that callers of a node or a client may receive.

A check that is over its limit is a `Decision`, never an error. This module imports nothing from the
package, so that every other module may import it. Details are attributes of the error.
"""

from collections.abc import Sequence

__all__ = [
    "AccessDenied",
    "ConfigError",
    "InvalidLimit",
    "LocalProtocolError",
    "PeerUnavailable",
    "RemoteProtocolError",
    "RingfenceError",
    "UntrustedPeer",
]


class RingfenceError(Exception):
    """Base class of all errors that this package raises on purpose."""


class ConfigError(RingfenceError):
    """A setting, rule, key, address or argument is wrong; the message says how to correct it."""


class InvalidLimit(ConfigError, ValueError):
    """The numbers of a limit are out of range or contradict each other."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The field of `Limit` that is wrong."""


class LocalProtocolError(RingfenceError):
    """This side broke the protocol: a bug in Ringfence."""


class RemoteProtocolError(RingfenceError):
    """The other side sent bytes that break the protocol."""


class AccessDenied(RingfenceError):
    """A node rejected the credential, or the token lacks the scope for this request."""


class PeerUnavailable(RingfenceError):
    """A node could not be reached in time; another node may answer."""

    def __init__(self, message: str = "", *, addresses: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__(message)
        self.addresses = tuple(addresses)
        """Host and port of each node that was asked, where they are known."""


class UntrustedPeer(ConfigError):
    """The certificate of a node is not signed by the given CA, or has another name.

    Either `ca` or `server_name` is wrong, or another server answers at this address. An expired
    certificate raises `PeerUnavailable` instead, because another node may answer.
    """
