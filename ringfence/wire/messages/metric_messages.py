"""Messages that carry metrics: decisions that clients made, and the keys that a node denied most.

Values only, as in `messages`, which names them all; `metrics` turns these into bytes and back.
"""

from dataclasses import dataclass

__all__ = ["AskThrottled", "Report", "Throttled"]


@dataclass(frozen=True, slots=True)
class Report:
    """Decisions that a client made without a node. Answered by `Done` once they are counted.

    A node counts a report only when `number` is above all numbers that it has from `client`.
    """

    seq: int
    client: int
    """64-bit random number of the client's process, new for each start."""
    number: int
    """Rises with each report of a client; a report that is sent again keeps its number."""
    named: int
    """How many of `keys`, counted from the first, name a counter; the others only name a rule."""
    keys: list[bytes]
    """Keys of counters, or the 8 bytes of a rule's identity. No decision is in two rows."""
    codes: list[int]
    """Per key, a `Code`."""
    sources: list[int]
    """Per key, a `Source`: `LOCAL`, `POLICY`, `CACHE`, `LEASE` or `SHED`."""
    counts: list[int]
    """Per key, the number of decisions."""


@dataclass(frozen=True, slots=True)
class AskThrottled:
    """Ask a node for the keys that it denied most."""

    seq: int
    count: int
    """Most keys in the answer."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """Denials of the last one to two periods of five minutes, as one node counted them."""

    seq: int
    denied: int
    """All denials."""
    keys: list[bytes]
    """The keys that were denied most, the first first."""
    counts: list[int]
    """Per key, how often it was denied, at most."""
    errors: list[int]
    """Per key, by how much the count may be too high."""
    rules: list[str]
    """Names of the rules that were denied most since the node began, the first first."""
    results: list[int]
    """Per rule three numbers: allowed, denied, denied in shadow or quota mode."""
