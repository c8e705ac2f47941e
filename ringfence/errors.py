"""What callers of a node or a client may see. A leaf: everything else may import it.

Being over a limit is a `Decision`, never one of these.
"""

__all__ = [
    "AccessDenied",
    "ConfigError",
    "LocalProtocolError",
    "PeerUnavailable",
    "RemoteProtocolError",
    "RingfenceError",
    "UntrustedPeer",
]


class RingfenceError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RingfenceError):
    """Settings, rules, keys or an address are wrong; the message says what, where and the mend."""


class LocalProtocolError(RingfenceError):
    """Our own side broke the protocol: a bug in Ringfence."""


class RemoteProtocolError(RingfenceError):
    """The other side sent bytes that break the protocol."""


class AccessDenied(RingfenceError):
    """The other side did not accept our credential, or it lacks the scope for this request."""


class PeerUnavailable(RingfenceError):
    """A node could not be reached in time; another node may answer."""


class UntrustedPeer(ConfigError):
    """A node's certificate is not of the CA given, or lacks the expected name.

    Either the `ca` or `server_name` given is wrong, or whoever answers there is not the cluster. An
    expired certificate is an outage of its node instead: `PeerUnavailable`.
    """
