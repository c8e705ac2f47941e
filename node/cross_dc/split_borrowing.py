"""Borrowing of units from other data centers when the local share of a divided limit is used up.

Each data center counts only its own share, so all shares together never exceed the limit. Unused
units of one data center are available to the others.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from hashring import NodeId, Ring, shard_of
from node.metrics.counters import Counters
from ringfence import runtime
from ringfence.limiter import Code
from ringfence.peering.link import Link
from ringfence.wire import Batch, Op, Results

__all__ = ["SplitBorrowing"]

_LAST_HOP = 2
"""Hops of a borrowed check: a member that is asked does not ask a third one."""
_LONGEST_EXHAUSTED_NS = 1_000_000_000
"""Longest time for which an exhausted share is not asked again, since it may be refunded."""
_MAX_EXHAUSTED = 10_000
_SILENT_NS = 1_000_000_000
"""Time for which a member that did not answer is not asked again."""
_LONGEST_WAIT_S = 0.5
"""Longest time for which a check waits for other data centers, because its caller waits."""
_SHARE_OF_DEADLINE = 0.5
"""Share of the caller's remaining time for which a check may wait for other data centers. The rest
is for the way back to the caller."""
_DENIED = (Code.DENIED, Code.NEVER)
"""Results after which another data center is asked. A cost above the local share never passes here,
but it may pass where the share is larger."""


class SplitBorrowing:
    """Decides which data centers are asked to allow checks beyond the local share of a limit."""

    def __init__(
        self,
        link_to: Callable[[NodeId], Link | None],
        clock: Callable[[], int],
        counters: Counters,
    ) -> None:
        self.rules: Collection[bytes] = ()
        """Ids of the rules that are split."""
        self.rings: Mapping[str, Ring] = {}
        """The rings of other data centers."""
        self._link_to = link_to
        self._clock = clock
        self._counters = counters
        self._exhausted: dict[tuple[str, bytes], int] = {}
        """Exhausted shares, and the time until which they are not asked."""
        self._silent: dict[NodeId, int] = {}
        """Members that did not answer, and the time until which they are not asked."""

    def set_rules(self, rules: Collection[bytes], rings: Mapping[str, Ring]) -> None:
        """Set the ids of rules whose limits are divided among data centers, and the hash rings of
        those."""
        self.rules, self.rings = rules, rings
        self._silent.clear()

    def can_borrow(self, batch: Batch) -> bool:
        """Whether another data center may allow a check that this one has denied."""
        if not (self.rules and self.rings and batch.op is Op.CHECK):
            return False
        return any([key[:8] in self.rules for key in batch.keys])

    def rows_to_borrow(self, batch: Batch, results: Results) -> list[int]:
        """Return the indices of the denied checks in a batch that another data center may still
        allow.

        Groups of several checks are excluded: one data center charges the whole group or nothing.
        """
        codes = results.outcomes.codes
        if not self.can_borrow(batch) or not any([code in _DENIED for code in codes]):
            return []
        now = self._clock()
        sizes = Counter(batch.group_numbers())
        return [
            row
            for row, (key, number) in enumerate(zip(batch.keys, batch.group_numbers(), strict=True))
            if codes[row] in _DENIED
            and key[:8] in self.rules
            and sizes[number] == 1
            and any(self._may_lend(name, key, now) for name in self.rings)
        ]

    def _may_lend(self, datacenter: str, key: bytes, now: int) -> bool:
        if self._exhausted.get((datacenter, key), 0) > now:
            return False
        return self._silent.get(self.rings[datacenter].owner(shard_of(key)), 0) <= now

    async def borrow(self, batch: Batch, results: Results, within: float = math.inf) -> None:
        """Ask other data centers to allow denied checks of a batch, and store their results.

        `within` are the seconds until the deadline of the caller. Without an answer in a part of
        this time, the checks stay denied. Units that arrive later stay counted where they are.
        """
        denied = self.rows_to_borrow(batch, results)
        until = runtime.current_time() + min(_LONGEST_WAIT_S, _SHARE_OF_DEADLINE * within)
        for datacenter in [*self.rings]:
            ring, now = self.rings.get(datacenter), self._clock()
            if ring is None:
                continue  # All its members have left while this check waited for another one.
            asked = [row for row in denied if self._may_lend(datacenter, batch.keys[row], now)]
            by_owner: dict[NodeId, list[int]] = {}
            for row in asked:
                by_owner.setdefault(ring.owner(shard_of(batch.keys[row])), []).append(row)
            async with runtime.open_task_group() as nursery:
                for owner, rows in by_owner.items():
                    nursery.start_soon(self._ask, datacenter, owner, batch, rows, results, until)
            denied = [row for row in denied if results.outcomes.codes[row] in _DENIED]
            if not denied or runtime.current_time() >= until:
                return

    async def _ask(
        self,
        datacenter: str,
        owner: NodeId,
        batch: Batch,
        rows: Sequence[int],
        results: Results,
        until: float,
    ) -> None:
        link = self._link_to(owner)
        if link is None:
            return
        answered = runtime.Event()
        found: list[Results] = []

        def done(answer: object) -> None:
            if isinstance(answer, Results):
                found.append(answer)
            answered.set()

        link.ask(batch.take(rows), hops=_LAST_HOP, as_standby=False, done=done)
        with runtime.move_on_after(until - runtime.current_time()):
            await answered.wait()
        if not found:
            self._silent[owner] = self._clock() + _SILENT_NS
        for answer in found:
            codes, retry_after_ns = answer.outcomes.codes, answer.outcomes.retry_after_ns
            for at, row in enumerate(rows):
                if codes[at] <= Code.OVER_SOFT:
                    results.scatter([row], answer.slice(at, at + 1))
                    self._counters.add("borrowed")
                elif codes[at] == Code.DENIED:
                    self._mark_exhausted(datacenter, batch.keys[row], retry_after_ns[at])
                    if results.outcomes.codes[row] == Code.NEVER:  # It may pass there later.
                        results.scatter([row], answer.slice(at, at + 1))
                elif codes[at] == Code.NEVER:
                    self._mark_exhausted(datacenter, batch.keys[row], _LONGEST_EXHAUSTED_NS)

    def _mark_exhausted(self, datacenter: str, key: bytes, retry_after_ns: int) -> None:
        if len(self._exhausted) >= _MAX_EXHAUSTED:
            self._exhausted.clear()
        self._exhausted[datacenter, key] = self._clock() + min(
            retry_after_ns, _LONGEST_EXHAUSTED_NS
        )
