"""Keys of counters: the 64-bit id of a rule, followed by the counted values of a request.

Every part is encoded with its length, so different rules or values never share a key. `ruleset`
decides which rule applies to a request and which values are counted.
"""

from collections.abc import Sequence
from hashlib import blake2b

from ringfence.limiter.limit import Limit
from ringfence.rules.model import Rule

__all__ = [
    "MAX_KEY",
    "Path",
    "adhoc_rule",
    "bounded",
    "decode_key",
    "encode_key",
    "override_id",
    "rule_id",
    "trial_id",
]

Path = tuple[tuple[str, str | None], ...]
"""(key, configured value or pattern, None for any value) from the root down."""

MAX_KEY = 128
"""Maximum length of a key in bytes; a digest replaces longer values."""

_DIGEST = b"\xff\xff"
"""Prefix of a digest. No value is long enough for a 4-byte length that begins with 0xff."""
_SIZES = [bytes([size]) for size in range(255)]
_LONG = b"\xff"
"""Prefix of a 4-byte length; lengths below 255 are a single byte."""


def rule_id(domain: str, path: Path) -> int:
    """Return the id of a rule from its path in the descriptor tree; the limit does not affect
    it."""
    return _identity(b"ringfence:rule", domain, path)


def override_id(domain: str, keys: Sequence[str]) -> int:
    """Return the id of a limit that is sent with requests, computed from the domain and keys of the
    descriptor.

    No rule of a file has such an id. All overrides for one descriptor share it, so a changed
    override keeps the counters.
    """
    return _identity(b"ringfence:over", domain, tuple((key, None) for key in keys))


def trial_id(identity: int, salt: bytes) -> int:
    """Return the id of a rule for a trial run, which has separate counters from real requests
    and other trials."""
    kind = b"ringfence:trial"
    digest = blake2b(identity.to_bytes(8, "big") + salt, digest_size=8, person=kind)
    return int.from_bytes(digest.digest(), "big")


def adhoc_rule(limit: Limit, name: str = "") -> Rule:
    """Create the rule of an ad-hoc limit, as for `check_limit("100/minute", "user:42")`.

    Different names have different counters. A changed amount, burst or soft margin keeps the
    counters. Another algorithm, period, number of slots or calendar starts with new counters,
    because the old ones have another meaning.
    """
    shape: Path = (
        ("name", name),
        ("algorithm", limit.algorithm.value),
        ("queue", "yes" if limit.queue else None),
        ("period", str(limit.period_ns)),
        ("slots", str(limit.slots)),
        ("calendar", None if limit.calendar is None else limit.calendar.value),
        ("timezone", limit.timezone),
        *((("first_hit", None),) if limit.first_hit else ()),
    )
    return Rule(
        id=_identity(b"ringfence:adhoc", "", shape),
        domain="",
        path=((name or "limit", None),),
        limit=limit,
        name=name,
        carried=True,
    )


def encode_key(identity: int, values: Sequence[str]) -> bytes:
    """Return the key of one counter: 8 bytes of rule id, then each counted value with its length.

    When this exceeds `MAX_KEY` bytes, a 32-byte digest replaces the values.
    """
    key = identity.to_bytes(8, "big")
    for value in values:
        key += with_length(value)
    return bounded(key)


def decode_key(key: bytes) -> tuple[int, tuple[str, ...] | None]:
    """Return the rule id and the counted values of a key.

    The values are None when a digest replaced them, or when the bytes are not valid.
    """
    identity, rest = int.from_bytes(key[:8], "big"), key[8:]
    values: list[str] = []
    while rest:
        if rest[:2] == _DIGEST:
            return identity, None
        if rest[:1] == _LONG:
            size, rest = int.from_bytes(rest[1:5], "big"), rest[5:]
        else:
            size, rest = rest[0], rest[1:]
        if size > len(rest):
            return identity, None
        values.append(rest[:size].decode("utf-8", "backslashreplace"))
        rest = rest[size:]
    return identity, tuple(values)


def bounded(key: bytes) -> bytes:
    """Replace the values in a key by a digest if the key exceeds `MAX_KEY` bytes."""
    if len(key) <= MAX_KEY:
        return key
    return key[:8] + _DIGEST + blake2b(key, digest_size=32, person=b"ringfence:key").digest()


def with_length(text: str) -> bytes:
    """Encode a text with its length, so that concatenated texts remain distinct.

    Lone surrogates, which result from undecodable header bytes, are encoded too.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        encoded = text.encode("utf-8", "surrogatepass")
    size = len(encoded)
    if size < 255:
        return _SIZES[size] + encoded
    return _LONG + size.to_bytes(4, "big") + encoded


def _identity(kind: bytes, domain: str, path: Path) -> int:
    digest = blake2b(digest_size=8, person=kind)
    digest.update(with_length(domain))
    for key, value in path:
        digest.update(with_length(key))
        digest.update(b"\x00" if value is None else b"\x01" + with_length(value))
    return int.from_bytes(digest.digest(), "big")
