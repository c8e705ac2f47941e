"""What a counter is called: a rule's 64-bit identity, and the bytes of one counter under it.

Everything is encoded with lengths, so no choice of values lets two rules, or two values of one
rule, share a counter. Which rule a request meets, and which of its values count, is `ruleset`'s.
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
"""Longest key in bytes: longer ones, as of a long path or header, are named by their digest."""

_DIGEST = b"\xff\xff"
"""Stands before a digest: no value is so long that its 4-byte length would begin with 0xff."""
_SIZES = [bytes([size]) for size in range(255)]
_LONG = b"\xff"
"""Stands before a 4-byte length; shorter lengths are their own single byte."""


def rule_id(domain: str, path: Path) -> int:
    """Name a place in the descriptor tree for good: its limit may change, its identity does not."""
    return _identity(b"ringfence:rule", domain, path)


def override_id(domain: str, keys: Sequence[str]) -> int:
    """Name the counters of limits that come with requests, per domain and entry keys.

    No rule of a file has such an identity, and all overrides of one descriptor share it, so a
    caller that raises its own limit goes on counting where it was.
    """
    return _identity(b"ringfence:over", domain, tuple((key, None) for key in keys))


def trial_id(identity: int, salt: bytes) -> int:
    """Name a rule of a trial: no other trial's, and no real rule's, counters are its own."""
    kind = b"ringfence:trial"
    digest = blake2b(identity.to_bytes(8, "big") + salt, digest_size=8, person=kind)
    return int.from_bytes(digest.digest(), "big")


def adhoc_rule(limit: Limit, name: str = "") -> Rule:
    """Make the rule of a limit that stands in no file, as `check_limit("100/minute", "user:42")`.

    `name` keeps apart what else would share counters. A changed amount, burst or soft margin keeps
    the counters; another algorithm, period, number of slots or calendar begins anew, since its
    counters mean something else.
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
    """Name one counter of a rule: 8 bytes of identity, then each counted value with its length.

    At most `MAX_KEY` bytes: when the values are longer, a 32-byte digest stands for them all.
    """
    key = identity.to_bytes(8, "big")
    for value in values:
        key += with_length(value)
    return bounded(key)


def decode_key(key: bytes) -> tuple[int, tuple[str, ...] | None]:
    """Read a key back: the rule's identity and the counted values.

    None stands for values that a digest took the place of, and for bytes that are no values.
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
    """Put a digest in place of values that make a key too long to store and send by the million."""
    if len(key) <= MAX_KEY:
        return key
    return key[:8] + _DIGEST + blake2b(key, digest_size=32, person=b"ringfence:key").digest()


def with_length(text: str) -> bytes:
    """Encode one text so that it can stand before anything else and still be told apart.

    Lone surrogates, as undecodable header bytes leave them, are text like any other.
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
