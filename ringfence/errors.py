"""Errors that callers of a node or a client may receive.

A check that is over its limit is a `Decision`, never an error. This module imports nothing from the
package, so that every other module may import it. Details are attributes of the error.
"""

import re
from collections.abc import Mapping, Sequence

__all__ = [
    "AccessDenied",
    "ConfigError",
    "InvalidLimit",
    "LocalProtocolError",
    "PeerUnavailable",
    "RemoteProtocolError",
    "RingfenceError",
    "UntrustedPeer",
    "mask_tokens",
]

_TOKEN = re.compile(
    "(ringfence://?)(?!TOKEN@)[^\\s'\"/@]*"
    "(?:(?=@)|[.][0-9a-f]{8,}(?=$|['\"\\s]|[.]{3})|[.][0-9a-f]{32,})"
    "|(?<=[0-9a-z_-][.])(?:[0-9a-f]{64,}|[0-9a-f]{32,}(?![0-9a-f]|[.-][0-9a-z]))",
    re.IGNORECASE,
)
"""Pattern of the token in a cluster address, also in the beginning of a long one, and in an address
that was taken for a path. The host of an address may have a part of 8 or more hexadecimal digits.
The last line is the secret of a token that was taken for a file or name. With less than 64 digits,
it may also be a part of the name of a file or host, which is shown.
"""


class RingfenceError(Exception):
    """Base class of all errors that this package raises intentionally.

    All of them can be copied and pickled, for example by a pool of processes. JSON can contain
    their `args`, and `type(error)(*error.args)` has the same message: Celery stores errors so.
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Without the constructor: its parameters are often not the message.
        return _restored, (type(self), self.args, self.__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class ConfigError(RingfenceError):
    """Error for an invalid setting, rule, key, address or argument; the message says how to correct
    it.

    The message masks tokens, because any rejected value may be a token or a cluster address.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*[_masked(each) for each in args])


def mask_tokens(text: str) -> str:
    """Mask all tokens in a text, with or without a cluster address."""
    return _TOKEN.sub(r"\1...", text)


def _masked(value: object) -> object:
    """Mask the tokens in a text, or in all texts of a list or tuple."""
    if isinstance(value, str):
        return mask_tokens(value)
    if isinstance(value, tuple):
        return tuple([_masked(each) for each in value])
    return [_masked(each) for each in value] if isinstance(value, list) else value


class InvalidLimit(ConfigError, ValueError):
    """Error for numbers of a limit that are out of range or contradict each other."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The field of `Limit` that is wrong."""


class LocalProtocolError(RingfenceError):
    """Error for a protocol violation by this program: a bug in Ringfence."""


class RemoteProtocolError(RingfenceError):
    """Error for bytes from a peer that violate the protocol."""


class AccessDenied(RingfenceError):
    """Error when a node rejected the credential, or the token lacks the scope for the request."""


class PeerUnavailable(RingfenceError):
    """Error when a node could not be reached in time; another node may answer."""

    def __init__(self, message: str = "", *, addresses: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__(message)
        self.addresses = tuple(addresses)
        """Host and port of each node that was asked, where they are known."""


class UntrustedPeer(ConfigError):
    """Error for a node's certificate that the given CA did not sign, or that has another name.

    Either `ca` or `server_name` is wrong, or another server answers at this address. An expired
    certificate raises `PeerUnavailable` instead, because another node may answer.
    """


def _restored(
    kind: type[RingfenceError], args: Sequence[object], attributes: Mapping[str, object]
) -> RingfenceError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
