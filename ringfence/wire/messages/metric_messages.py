"""Messages with metrics: decisions that clients made, and the keys that a node denied most
often.
"""

from msgspec import Struct

__all__ = ["AskThrottled", "Report", "Throttled"]


class Report(Struct, frozen=True):
    """Report of decisions that a client made without a node. Answered by `Done` once it is counted.

    A node ignores a report whose `number` is not above all earlier numbers of `client`.
    """

    seq: int
    client: int
    """64-bit random number of the client's process, new at each start."""
    number: int
    """Ascending number of the report; a repeated report keeps its number."""
    named: int
    """Number of leading `keys` that name a counter; the others name a rule."""
    keys: list[bytes]
    """Keys of counters, or 8-byte rule ids. No decision is counted in two rows."""
    codes: list[int]
    """`Code` of the decisions on each key."""
    sources: list[int]
    """`Source` of the decisions on each key: `LOCAL`, `POLICY`, `CACHE`, `LEASE` or `SHED`."""
    counts: list[int]
    """Number of decisions on each key."""


class AskThrottled(Struct, frozen=True):
    """Request for the keys that a node denied most often."""

    seq: int
    count: int
    """Maximum number of keys in the answer."""


class Throttled(Struct, frozen=True):
    """Answer to `AskThrottled`: denied keys of one node in the last five to ten minutes."""

    seq: int
    denied: int
    """Number of all denials."""
    keys: list[bytes]
    """Keys that were denied most often, in descending order."""
    counts: list[int]
    """Upper bound of the denials of each key."""
    errors: list[int]
    """Maximum error of the count of each key."""
    rules: list[str]
    """Names of the rules with the most denials since the node started, in descending order."""
    results: list[int]
    """Three numbers for each rule: allowed, denied, and denied in shadow or quota mode."""
    counting_s: int
    """Whole seconds since the node began to count; 0 when it began with this request."""
