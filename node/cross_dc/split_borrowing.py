"""Borrowing of units from other data centers when the local share of a divided limit is used up.

Each data center counts only its own share, so all shares together never exceed the limit. Unused
units of one data center are available to the others.
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence

from hashring import NodeId, Ring, shard_of
from node.cross_dc.borrowed_units import BorrowedUnits, Loan
from node.cross_dc.split import used_up
from node.metrics.counters import Counters
from ringfence import runtime
from ringfence.limiter import Code, Limit, Outcomes
from ringfence.limiter.reference import Counter
from ringfence.peering.link import Link
from ringfence.wire import MAX_KEYS, NO_ID, Batch, Op, Results

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
_NEVER, _OVERDRAWN = Code.NEVER.value, Code.OVERDRAWN.value
_LATER_NS = 50_000_000
"""Longest allowance for a refund that takes longer to its lender than the check took."""


class SplitBorrowing:
    """Decides which data centers are asked to allow checks beyond the local share of a limit, and
    gives refunded units back to them."""

    def __init__(
        self,
        link_to: Callable[[NodeId], Link | None],
        clock: Callable[[], int],
        counters: Counters,
    ) -> None:
        self.rules: Mapping[bytes, Limit] = {}
        """Largest shares of the limits that are split, by the id of the rule."""
        self.rings: Mapping[str, Ring] = {}
        """The rings of other data centers."""
        self._link_to = link_to
        self._clock = clock
        self._counters = counters
        self._exhausted: dict[tuple[str, bytes], tuple[int, int]] = {}
        """Exhausted shares: the time until which they are not asked, and when they said that the
        check passes; 0 if they did not."""
        self._borrowed = BorrowedUnits()
        self._silent: dict[NodeId, int] = {}
        """Members that did not answer, and the time until which they are not asked."""

    def set_rules(self, rules: Mapping[bytes, Limit], rings: Mapping[str, Ring]) -> None:
        """Set the largest shares of the limits that are divided among data centers, and the hash
        rings of those."""
        self.rules, self.rings = rules, rings
        self._silent.clear()

    def can_ask(self, batch: Batch) -> bool:
        """Whether another data center may allow a check that this one has denied, or has lent units
        that a refund gives back."""
        if not (self.rules and self.rings and batch.op in (Op.CHECK, Op.REFUND)):
            return False
        is_check, rules, borrowed = batch.op is Op.CHECK, self.rules, self._borrowed
        return any([key[:8] in rules and (is_check or key in borrowed) for key in batch.keys])

    def correct_denials(self, batch: Batch, outcomes: Outcomes) -> None:
        """Replace permanent denials of costs that are above the local share, but not above the
        largest one.

        Other data centers or later shares may allow them. The wait is that of another data center
        if this node knows it.
        """
        rules, codes, waits = self.rules, outcomes.codes, outcomes.retry_after_ns
        if not rules or not (_NEVER in codes or _OVERDRAWN in codes):
            return
        now = self._clock()
        largest: dict[bytes, Counter] = {}
        for row, key in enumerate(batch.keys):
            rule = key[:8]
            is_endless = codes[row] == _OVERDRAWN and not waits[row]
            if rule not in rules or not (is_endless or codes[row] == _NEVER):
                continue
            if batch.which and batch.which[row]:
                continue  # The limit of the check itself is not divided.
            if rule not in largest:
                largest[rule] = used_up(rules[rule], now)
            cost = batch.costs[row] if batch.op is Op.CHECK else 0
            code, _, wait_ns, *_ = largest[rule].check(cost, now)
            if code != Code.DENIED:
                continue
            if not is_endless:
                codes[row] = Code.DENIED.value
            stated = [self._exhausted.get((name, key), (0, 0))[1] - now for name in self.rings]
            waits[row] = min([wait_ns, *(each for each in stated if each > 0)])

    def rows_to_ask(self, batch: Batch, results: Results) -> list[int]:
        """Return the indices of the denied checks in a batch that another data center may still
        allow, or of the refunds that removed too little here and for which another one has lent
        units.

        Groups of several checks are excluded: one data center charges the whole group or nothing.
        """
        if not self.can_ask(batch):
            return []
        if batch.op is Op.REFUND:
            removed = results.outcomes.slot_ids
            return [
                row
                for row, key in enumerate(batch.keys)
                if key in self._borrowed
                and key[:8] in self.rules
                and removed[row] < batch.costs[row]
            ]
        codes = results.outcomes.codes
        if Code.DENIED not in codes:
            return []
        now = self._clock()
        sizes = collections.Counter(batch.group_numbers())
        return [
            row
            for row, (key, number) in enumerate(zip(batch.keys, batch.group_numbers(), strict=True))
            if codes[row] == Code.DENIED
            and key[:8] in self.rules
            and sizes[number] == 1
            and any(self._may_lend(name, key, now) for name in self.rings)
        ]

    def _may_lend(self, datacenter: str, key: bytes, now: int) -> bool:
        if self._exhausted.get((datacenter, key), (0, 0))[0] > now:
            return False
        return self._silent.get(self.rings[datacenter].owner(shard_of(key)), 0) <= now

    async def borrow(self, batch: Batch, results: Results, within: float = math.inf) -> None:
        """Ask other data centers to allow denied checks of a batch, and store their results.

        `within` are the seconds until the deadline of the caller. Without an answer in a part of
        this time, the checks stay denied. Units that arrive later stay counted where they are.
        """
        denied = self.rows_to_ask(batch, results)
        until = _end_of_wait(within)
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
            denied = [row for row in denied if results.outcomes.codes[row] == Code.DENIED]
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
        asked_at, borrowed = self._clock(), self._borrowed
        ids = [batch.ids[row] for row in rows] if batch.ids else [NO_ID] * len(rows)
        is_first = [borrowed.is_first_ask(datacenter, check) for check in ids]
        answer = await self._answer(owner, batch.take(rows), until)
        if answer is None:
            return
        now, theirs, ours = self._clock(), answer.outcomes, results.outcomes
        for at, row in enumerate(rows):
            key, wait_ns = batch.keys[row], theirs.retry_after_ns[at]
            if theirs.codes[at] <= Code.OVER_SOFT:
                results.scatter([row], answer.slice(at, at + 1))
                self._counters.add("borrowed")
                ends_at = asked_at + theirs.reset_after_ns[at]
                if is_first[at]:
                    borrowed.add(key, Loan(datacenter, batch.costs[row], asked_at, ends_at), now)
            elif theirs.codes[at] == Code.DENIED:
                self._mark_exhausted(datacenter, key, wait_ns, passes_at=now + wait_ns)
                # The check passes as soon as one of the shares has room.
                ours.retry_after_ns[row] = min(ours.retry_after_ns[row], wait_ns)
            elif theirs.codes[at] == Code.NEVER:
                self._mark_exhausted(datacenter, key, _LONGEST_EXHAUSTED_NS, passes_at=0)

    async def give_back(
        self, batch: Batch, rows: Sequence[int], results: Results, within: float = math.inf
    ) -> None:
        """Give the units of refunds that this data center did not have back to their lenders, and
        add them to the refunded units in the results.

        Waits no longer than a check that borrows. Units of a lender without an answer are not in
        the results.
        """
        until, now = _end_of_wait(within), self._clock()
        parts: dict[NodeId, list[tuple[int, Loan, int]]] = {}
        for row in rows:
            key, missing = batch.keys[row], batch.costs[row] - results.outcomes.slot_ids[row]
            owners = {name: ring.owner(shard_of(key)) for name, ring in self.rings.items()}
            lenders = [name for name, owner in owners.items() if self._link_to(owner) is not None]
            for loan, units in self._borrowed.take(key, missing, lenders, now):
                self._exhausted.pop((loan.datacenter, key), None)
                parts.setdefault(owners[loan.datacenter], []).append((row, loan, units))
        async with runtime.open_task_group() as nursery:
            for owner, part in parts.items():
                # A silent member must not hold up each refund.
                is_silent = self._silent.get(owner, 0) > now
                wait_until = -math.inf if is_silent else until
                for start in range(0, len(part), MAX_KEYS):
                    some = part[start : start + MAX_KEYS]
                    nursery.start_soon(self._return, owner, batch, some, results, wait_until)

    async def _return(
        self,
        owner: NodeId,
        batch: Batch,
        part: Sequence[tuple[int, Loan, int]],
        results: Results,
        until: float,
    ) -> None:
        now, rows = self._clock(), [row for row, _, _ in part]
        keys = [batch.keys[row] for row in rows]
        ages = batch.ages_ns or [0] * len(batch)
        refund = Batch(
            Op.REFUND,
            keys,
            [units for _, _, units in part],
            ages_ns=[max(ages[row], _age_ns(loan, now)) for row, loan, _ in part],
        )  # Without the caller's ids: one refund may have several loans of one lender.
        answer = await self._answer(owner, refund, until)
        if answer is not None:
            for row, units in zip(rows, answer.outcomes.slot_ids, strict=True):
                results.outcomes.slot_ids[row] += units

    async def _answer(self, owner: NodeId, batch: Batch, until: float) -> Results | None:
        """Send a batch to a member of another data center; return its answer, None without one.

        After the time `until`, this returns at once.
        """
        link = self._link_to(owner)
        if link is None:
            return None
        answered = runtime.Event()
        found: list[Results] = []

        def done(answer: object) -> None:
            if isinstance(answer, Results):
                found.append(answer)
            answered.set()

        link.ask(batch, hops=_LAST_HOP, as_standby=False, done=done)
        seconds = until - runtime.current_time()
        if seconds > 0:
            with runtime.move_on_after(seconds):
                await answered.wait()
            if not found:
                self._silent[owner] = self._clock() + _SILENT_NS
        return found[0] if found else None

    def _mark_exhausted(
        self, datacenter: str, key: bytes, retry_after_ns: int, *, passes_at: int
    ) -> None:
        if len(self._exhausted) >= _MAX_EXHAUSTED:
            self._exhausted.clear()
        asked_at = self._clock() + min(retry_after_ns, _LONGEST_EXHAUSTED_NS)
        self._exhausted[datacenter, key] = asked_at, passes_at


def _end_of_wait(within: float) -> float:
    return runtime.current_time() + min(_LONGEST_WAIT_S, _SHARE_OF_DEADLINE * within)


def _age_ns(loan: Loan, now: int) -> int:
    """Return the longest possible age of a loan when its refund arrives.

    With an age that is too small, the refund could remove units of a later window.
    """
    passed_ns = max(0, now - loan.asked_at)
    return passed_ns + min(passed_ns, _LATER_NS)
