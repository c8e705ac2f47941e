"""Slot tokens: text by which an HTTP client names the slots of concurrency limits that it holds.

A token contains the request that releases the slots, with a message authentication code. The key of
the code is derived from the token by which the gateway connects to the cluster. So clients can
neither make nor change slot tokens, and all gateways with that token accept them. The nodes check
the permissions of each release, as for other requests.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest

from ringfence.client.url import parse_url
from ringfence.errors import RemoteProtocolError
from ringfence.gateway.http.http_types import HttpProblem
from ringfence.wire import Batch, Op, Request, decode, encode

__all__ = ["MAX_SLOT_TOKEN", "SLOTS_WANTED", "SlotTokens"]

MAX_SLOT_TOKEN = 8192
"""Maximum characters of a slot token; 32 descriptors with keys of 128 bytes need fewer."""
SLOTS_WANTED = (
    "slots must be the unchanged field `slots` of an allowed check or acquire, from a gateway with "
    "the same cluster token"
)
"""First part of the errors about slot tokens."""
_CODE_BYTES = 16
_SHOWN = 20


class SlotTokens:
    """Writer and reader of slot tokens."""

    def __init__(self, cluster: str) -> None:
        """`cluster` is the address of the cluster, with the token of this gateway."""
        token = parse_url(cluster).token
        self._key = blake2b(b"" if token is None else token.secret).digest()

    def write(self, slots: Batch) -> str:
        """Return the token of acquired slots; `slots` is the request that releases them."""
        payload = encode(Request(1, 0, 1, 0, False, slots))
        return urlsafe_b64encode(self._code(payload) + payload).decode().rstrip("=")

    def read(self, token: str) -> Batch:
        """Return the request that releases the slots of a token. Raises `HttpProblem`."""
        try:
            raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
            payload = raw[_CODE_BYTES:]
            if not compare_digest(self._code(payload), raw[:_CODE_BYTES]):
                raise _invalid(token)
            message = decode(payload)
        except (ValueError, RemoteProtocolError):
            raise _invalid(token) from None
        if not isinstance(message, Request) or message.batch.op is not Op.REFUND:
            raise _invalid(token)
        return message.batch

    def _code(self, payload: bytes) -> bytes:
        kind = b"ringfence:slots"
        return blake2b(payload, digest_size=_CODE_BYTES, key=self._key, person=kind).digest()


def _invalid(token: str) -> HttpProblem:
    shown = token if len(token) <= _SHOWN else f"{token[:_SHOWN]}..."
    return HttpProblem(
        403,
        f"{SLOTS_WANTED}, got {shown!r}; send it as it was received, or acquire again",
    )
