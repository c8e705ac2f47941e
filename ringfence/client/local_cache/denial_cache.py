"""Denial cache: denials that owners sent, each kept until its `retry_after` has passed.

A bucket or window that denied a cost denies the same cost until `retry_after`. Only a refund, a
reset or a raised limit ends the denial early. The owner reports those events on the connection that
carried the denial, so the denial is dropped when that connection ends. The owner is asked about
other costs: a greater one is denied for longer, or permanently.

The time counts from when the check was sent, before the owner read its clock. So a cached denial
never lasts longer than on the owner. No I/O: the clock is injected.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from math import inf

from msgspec import Struct

from ringfence.client.decision import Decision
from ringfence.limiter import Algorithm, Code
from ringfence.rules import Rule
from ringfence.wire import Batch, Op, OutcomeRow, Results, Source

__all__ = ["Denial", "DenialCache"]

_DENIED = Code.DENIED.value
_OWNER = Source.OWNER.value
_CACHE = Source.CACHE.value
_RULE_ID_BYTES = 8


class Denial(Struct, eq=False):
    """Cached denial of one key. It is mutable, because creation of a frozen object is slower."""

    key: bytes
    cost: int
    """The denied cost. A smaller one may pass, and a greater one has another `retry_after`."""
    asked_at: float
    until: float
    limit: int
    remaining: int
    retry_after_ns: int
    reset_after_ns: int
    node: Hashable
    """Link to the node that reports an early end of the denial."""
    repeats: int = 0
    """Decisions by this denial that `LocalCache.collect` has not counted yet."""
    decision: Decision | None = None
    """The last decision by this denial."""

    def row(self, now: float) -> OutcomeRow:
        """Create the result of a check that this cached denial decides, with the durations that
        remain."""
        passed_ns = int((now - self.asked_at) * 1e9)
        retry_ns = max(1, self.retry_after_ns - passed_ns)
        reset_ns = max(retry_ns, self.reset_after_ns - passed_ns)
        return (_DENIED, self.limit, self.remaining, retry_ns, reset_ns, 0, 0, _CACHE)


class DenialCache:
    """Cached denials by key. When it is full, the oldest denial is dropped."""

    def __init__(
        self,
        rule_of: Callable[[int], Rule | None],
        max_keys: int,
        on_dropped: Callable[[], object],
        now: Callable[[], float],
    ) -> None:
        """`on_dropped` is called when denials were dropped that may still be valid."""
        self._rule_of = rule_of
        self._max_keys = max_keys
        self._on_dropped = on_dropped
        self._now = now
        self._revoked_at: OrderedDict[bytes, float] = OrderedDict()
        """Last revocation by key. A denial of a check that was sent before it may arrive later."""
        self._all_revoked_at = -inf
        self._denials: OrderedDict[bytes, Denial] = OrderedDict()
        self.find = self._denials.get
        """Return the denial of a key, or None; the caller compares cost and time."""

    def __len__(self) -> int:
        return len(self._denials)

    def add_results(self, node: Hashable, batch: Batch, results: Results, asked_at: float) -> None:
        """Cache the denials of a batch that was sent at `asked_at`."""
        codes = results.outcomes.codes
        if _DENIED not in codes or batch.op is not Op.CHECK:
            return
        ungrouped = _ungrouped_rows(batch.groups)
        for row, code in enumerate(codes):
            if (
                code == _DENIED
                and results.sources[row] == _OWNER
                and (ungrouped is None or row in ungrouped)
                and not (batch.which and batch.which[row])
                and self._is_cacheable(batch.keys[row])
            ):
                self._add(node, batch, results, row, asked_at)

    def on_revoked(self, node: Hashable, keys: Sequence[bytes]) -> None:
        """Drop the denials of keys that a node revokes; without keys, all denials of that node."""
        now = self._now()
        if not keys:
            self._all_revoked_at = now
            self.drop_node(node)
        for key in keys:
            self._revoked_at[key] = now
            self._revoked_at.move_to_end(key)
        while len(self._revoked_at) > self._max_keys:
            self._revoked_at.popitem(last=False)
        self.drop([key for key in keys if _is_by(self._denials.get(key), node)])

    def drop(self, keys: Sequence[bytes]) -> None:
        """Drop the cached denials of the given keys."""
        for key in keys:
            self._denials.pop(key, None)
        self._on_dropped()

    def drop_node(self, node: Hashable) -> None:
        """Drop all denials that a node sent, because it can no longer report their end."""
        self.drop([key for key, denial in self._denials.items() if denial.node == node])

    def clear(self) -> None:
        """Remove all cached denials."""
        self._all_revoked_at = self._now()
        self._denials.clear()
        self._on_dropped()

    def _add(
        self, node: Hashable, batch: Batch, results: Results, row: int, asked_at: float
    ) -> None:
        outcomes = results.outcomes
        key, retry_ns = batch.keys[row], outcomes.retry_after_ns[row]
        if asked_at < max(self._all_revoked_at, self._revoked_at.get(key, -inf)):
            return  # The denial may be older than its end.
        self._denials[key] = Denial(
            key,
            batch.costs[row],
            asked_at,
            asked_at + retry_ns / 1e9,
            outcomes.limits[row],
            outcomes.remaining[row],
            retry_ns,
            outcomes.reset_after_ns[row],
            node,
        )
        self._denials.move_to_end(key)
        if len(self._denials) > self._max_keys:
            self._denials.popitem(last=False)

    def _is_cacheable(self, key: bytes) -> bool:
        """Whether a denial by this key's rule depends only on time and denies the whole request.

        Slots may be released at any time. Other data centers may lend units of a limit that is
        divided among them. The owner must count decisions of shadow and quota rules each time.
        """
        rule = self._rule_of(int.from_bytes(key[:_RULE_ID_BYTES], "big"))
        return (
            rule is not None
            and rule.limit is not None
            and rule.limit.algorithm is not Algorithm.CONCURRENCY
            and rule.scope == "datacenter"
            and not (rule.shadow or rule.quota)
        )


def _is_by(denial: Denial | None, node: Hashable) -> bool:
    return denial is not None and denial.node == node


def _ungrouped_rows(groups: Sequence[int]) -> set[int] | None:
    """Return the rows of a batch that are in no all-or-nothing group with others; None means all
    rows."""
    if not groups:
        return None
    alone: set[int] = set()
    start = 0
    for count in groups:
        if count == 1:
            alone.add(start)
        start += count
    return alone
