"""Queue of checks that wait for a slot of a concurrency limit, by key, in order of arrival.

Decides which waiting check gets a free slot. No later check can take it first. The waiting check is
notified and must be repeated with its ticket; the slot is reserved for it until then. A node has
one queue for the keys that it decides; a limiter without nodes has one, too. The queue also
estimates when a slot will be free. It does no I/O: its caller passes the time and notifies the
waiting checks.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from ringfence.limiter import Algorithm, Code, Limit, Outcomes
from ringfence.rules import Rule
from ringfence.wire import Batch, Op, Results

__all__ = ["ASK_AGAIN_NS", "MAX_PER_CONNECTION", "MAX_WAITERS", "SlotQueue"]

MAX_WAITERS = 16_384
"""Maximum number of waiting checks in one queue. Further checks are denied without waiting."""
MAX_PER_CONNECTION = 1024
"""Maximum number of waiting checks of one client connection."""
ASK_AGAIN_NS = 2_000_000_000
"""Interval at which a waiting check is repeated without a notification."""
_SILENT_NS = 3 * ASK_AGAIN_NS
"""Time after which a waiting check that is not repeated is removed."""
_KEPT_NS = 1_000_000_000
"""Time for which a free slot is reserved for a notified check."""
_UNKNOWN_HOLD_NS = 1_000_000_000
"""Estimate of the time to the next free slot before any release was observed."""
_SHORTEST_RETRY_NS = 1_000_000
_MAX_RULES = 4096
_SMOOTHING = 8
_ID_BYTES = 8
_DENIED = Code.DENIED.value
_UNCHARGED = Code.UNCHARGED.value
_LAST_CHARGED = Code.OVER_SOFT.value

CallerT = TypeVar("CallerT")
_Decide: TypeAlias = Callable[[Batch, int], Outcomes]


class _Waiter(Struct, Generic[CallerT]):
    caller: CallerT
    units: int
    asked_at: int
    """Time at which the waiting check was last repeated."""
    kept_until: int = 0
    """Time until which a slot is reserved for the waiting check; 0 before the notification."""

    def is_silent(self, now: int) -> bool:
        """Return whether the waiting check was not repeated for `_SILENT_NS`."""
        return self.asked_at + _SILENT_NS <= now


class _KeyQueue(Struct, Generic[CallerT]):
    """Waiting checks of one key by ticket, in order of arrival."""

    limit: Limit | None
    """The limit that the check carried; None for the rule's own."""
    sweep_at: int
    """Time at which waiting checks that are no longer repeated are removed."""
    waiters: OrderedDict[int, _Waiter[CallerT]] = field(default_factory=OrderedDict)
    called: dict[int, _Waiter[CallerT]] = field(default_factory=dict)
    """Waiting checks for which a slot is reserved, in the order of their notifications."""
    kept_units: int = 0
    check_at: int = 0
    """Time at which a waiting check can be notified without a release, or is removed."""

    def find(self, ticket: int) -> _Waiter[CallerT] | None:
        """Return the waiting check with this ticket, whether it was notified or not."""
        return self.waiters.get(ticket) or self.called.get(ticket)

    def pop(self, ticket: int) -> _Waiter[CallerT] | None:
        """Remove the waiting check with this ticket, and return it."""
        waiter = self.called.pop(ticket, None)
        if waiter is None:
            return self.waiters.pop(ticket, None)
        self.kept_units -= waiter.units
        return waiter

    def expired(self, now: int) -> list[int]:
        """Return the tickets of checks that did not take their slot in time, or are no longer
        repeated."""
        found = []
        for ticket, waiter in self.called.items():
            if waiter.kept_until > now:
                break
            found.append(ticket)
        if now >= self.sweep_at:
            self.sweep_at = now + _SILENT_NS
            waiters = self.waiters.items()
            found += [ticket for ticket, waiter in waiters if waiter.is_silent(now)]
        return found


class SlotQueue(Generic[CallerT]):
    """Queue of checks that wait for slots. `call(caller, tickets)` notifies a caller that slots
    are reserved for its checks with these tickets."""

    def __init__(
        self,
        decide: _Decide,
        rule_of: Callable[[int], Rule | None],
        call: Callable[[CallerT, list[int]], None],
        on_earlier: Callable[[], object] = lambda: None,
        *,
        most: int = MAX_WAITERS,
        most_of: Callable[[CallerT], int] = lambda _: MAX_PER_CONNECTION,
    ) -> None:
        """`decide` decides a batch; `most_of` returns the maximum number of waiting checks of one
        caller.

        `on_earlier` is called when `next_deadline` has become earlier.
        """
        self.refused = 0
        """Checks that could not wait because the queue was full."""
        self._on_earlier = on_earlier
        self._decide = decide
        self._rule_of = rule_of
        self._call = call
        self._most, self._most_of = most, most_of
        self._queues: dict[bytes, _KeyQueue[CallerT]] = {}
        self._size = 0
        self._by_caller: dict[CallerT, int] = {}
        self._due: list[tuple[int, bytes]] = []
        self._has_slots: dict[bytes, bool] = {}
        """Whether each rule, by its id, is a concurrency limit."""
        self._hold_ns: dict[bytes, int] = {}
        """Smoothed time for which slots were held, by rule id."""

    def __len__(self) -> int:
        return self._size

    def decide(self, batch: Batch, now: int) -> Outcomes:
        """Decide a batch. A check of a key for which others wait is denied, unless a slot is
        reserved for it."""
        if batch.op is not Op.CHECK:
            outcomes = self._decide(batch, now)
            if batch.op is Op.REFUND:
                self._observe(batch)
            if self._queues and batch.op is not Op.RENEW:
                self.on_released(batch.keys, now)
        elif self._queues:
            outcomes = self._decide_in_turn(batch, now)
        else:
            outcomes = self._decide(batch, now)
        if _DENIED in outcomes.codes:
            self._estimate(batch, outcomes)
        return outcomes

    def on_answered(self, caller: CallerT, batch: Batch, results: Results, now: int) -> None:
        """Queue the denied checks of a batch that have tickets, and remove allowed ones from the
        queue."""
        if batch.op is not Op.CHECK:
            return
        for row, ticket in enumerate(batch.slot_ids):
            if not ticket or not batch.costs[row]:
                continue
            key = batch.keys[row]
            if results.outcomes.codes[row] != _DENIED:
                self._remove(key, ticket)
                self.on_released([key], now)  # The slot reserved for it may be free.
                continue
            limit = batch.limits[batch.which[row] - 1] if batch.which and batch.which[row] else None
            if self._can_wait(key, limit):
                self._add(key, ticket, _Waiter(caller, batch.costs[row], now), limit)
                if key in self._queues:
                    self.call_next(key, now)

    def on_released(self, keys: Iterable[bytes], now: int) -> None:
        """Notify the next waiting checks of keys whose slots were released."""
        for key in dict.fromkeys(keys):
            if key in self._queues:
                self.call_next(key, now)

    def call_next(self, key: bytes, now: int) -> None:
        """Notify the waiting checks of a key in order of arrival, while there are free slots."""
        queue = self._queues[key]
        for ticket in queue.expired(now):
            self._remove(key, ticket)
        if key not in self._queues:
            return
        limits, which = ([queue.limit], [1]) if queue.limit is not None else ([], [])
        state = self._decide(Batch(Op.CHECK, [key], [0], limits=limits, which=which), now)
        left = state.remaining[0]
        check_at = queue.sweep_at if left else min(queue.sweep_at, now + state.retry_after_ns[0])
        left -= queue.kept_units
        called: dict[CallerT, list[int]] = {}
        while queue.waiters:
            ticket, waiter = next(iter(queue.waiters.items()))
            if waiter.is_silent(now):
                self._remove(key, ticket)
                continue
            if waiter.units > left:
                break
            left -= waiter.units
            waiter.kept_until = now + _KEPT_NS
            queue.called[ticket] = queue.waiters.pop(ticket)
            queue.kept_units += waiter.units
            called.setdefault(waiter.caller, []).append(ticket)
        if queue.called:
            check_at = min(check_at, next(iter(queue.called.values())).kept_until)
        self._schedule_check(key, queue, max(now + 1, check_at))
        for caller, tickets in called.items():
            self._call(caller, tickets)

    def call_all(self) -> None:
        """Notify every waiting check and empty the queue, because another node decides now, or
        the rules changed."""
        self._has_slots.clear()
        called: dict[CallerT, list[int]] = {}
        for queue in self._queues.values():
            for ticket, waiter in [*queue.called.items(), *queue.waiters.items()]:
                called.setdefault(waiter.caller, []).append(ticket)
        self._queues.clear()
        self._by_caller.clear()
        self._due.clear()
        self._size = 0
        for caller, tickets in called.items():
            self._call(caller, tickets)

    def on_caller_gone(self, caller: CallerT, now: int) -> None:
        """Remove the waiting checks of a caller that has disconnected, and notify the next ones."""
        if caller not in self._by_caller:
            return
        for key, queue in list(self._queues.items()):
            waiters = [*queue.called.items(), *queue.waiters.items()]
            gone = [ticket for ticket, waiter in waiters if waiter.caller == caller]
            for ticket in gone:
                self._remove(key, ticket)
            if gone:
                self.on_released([key], now)

    def tick(self, now: int) -> None:
        """Notify waiting checks when slots have expired, and remove checks that are no longer
        repeated."""
        while self._due and self._due[0][0] <= now:
            when, key = heappop(self._due)
            queue = self._queues.get(key)
            if queue is not None and queue.check_at == when:
                self.call_next(key, now)

    def next_deadline(self) -> int | None:
        """Return when `tick` must be called next; None when no check waits."""
        while self._due:
            when, key = self._due[0]
            queue = self._queues.get(key)
            if queue is not None and queue.check_at == when:
                return when
            heappop(self._due)
        return None

    # -- waiters -------------------------------------------------------------------------------

    def _decide_in_turn(self, batch: Batch, now: int) -> Outcomes:
        """Decide a batch; a check that would take the slot of a waiting check is denied and
        charges nothing."""
        keys, costs, tickets = batch.keys, batch.costs, batch.slot_ids
        for row, ticket in enumerate(tickets):
            if ticket and not costs[row]:
                self._remove(keys[row], ticket)
        self.on_released(keys, now)
        barred: set[int] = set()
        for row, key in enumerate(keys):
            queue = self._queues.get(key)
            is_called = queue is None or (bool(tickets) and tickets[row] in queue.called)
            if costs[row] and not is_called:
                barred.add(row)
        if not barred:
            return self._decide(batch, now)
        peeked = _rows_of_groups(barred, batch.groups)
        asked = [0 if row in peeked else cost for row, cost in enumerate(costs)]
        outcomes = self._decide(replace(batch, costs=asked), now)
        codes = outcomes.codes
        for row in peeked:
            if row in barred:
                if codes[row] <= _LAST_CHARGED:
                    codes[row], outcomes.remaining[row] = _DENIED, 0
            elif codes[row] <= _LAST_CHARGED:
                codes[row] = _UNCHARGED
        return outcomes

    def _add(self, key: bytes, ticket: int, waiter: _Waiter[CallerT], limit: Limit | None) -> None:
        queue = self._queues.get(key)
        known = None if queue is None else queue.find(ticket)
        if queue is not None and known is not None:
            known.asked_at = waiter.asked_at
            self._count(known.caller, -1)
            known.caller = waiter.caller  # The caller may have reconnected.
            self._count(known.caller, 1)
            if ticket in queue.called:  # The check got no slot, so it remains the next one.
                queue.pop(ticket)
                queue.waiters[ticket] = known
                queue.waiters.move_to_end(ticket, last=False)
            return
        if self._size >= self._most or self._waiters_of(waiter.caller) >= self._most_of(
            waiter.caller
        ):
            self.refused += 1
            return
        if queue is None:
            queue = self._queues[key] = _KeyQueue(limit, waiter.asked_at + _SILENT_NS)
        queue.waiters[ticket] = waiter
        self._count(waiter.caller, 1)

    def _waiters_of(self, caller: CallerT) -> int:
        return self._by_caller.get(caller, 0)

    def _remove(self, key: bytes, ticket: int) -> None:
        queue = self._queues.get(key)
        waiter = None if queue is None else queue.pop(ticket)
        if queue is not None and waiter is not None:
            self._count(waiter.caller, -1)
            if not queue.waiters and not queue.called:
                del self._queues[key]

    def _count(self, caller: CallerT, change: int) -> None:
        self._size += change
        count = self._waiters_of(caller) + change
        if count:
            self._by_caller[caller] = count
        else:
            del self._by_caller[caller]

    def _schedule_check(self, key: bytes, queue: _KeyQueue[CallerT], when: int) -> None:
        if when == queue.check_at:
            return
        queue.check_at = when
        before = self.next_deadline()
        heappush(self._due, (when, key))
        if before is None or when < before:
            self._on_earlier()

    # -- which limits have slots, and when one will be free ------------------------------------

    def _can_wait(self, key: bytes, limit: Limit | None) -> bool:
        """Return whether checks of a key can wait: the limit has slots, and its denial denies the
        request."""
        if limit is not None:
            return limit.algorithm is Algorithm.CONCURRENCY
        rule = self._rule_of(int.from_bytes(key[:_ID_BYTES], "big"))
        return self._is_slotted(key) and rule is not None and not (rule.shadow or rule.quota)

    def _is_slotted(self, key: bytes) -> bool:
        name = key[:_ID_BYTES]
        known = self._has_slots.get(name)
        if known is None:
            rule = self._rule_of(int.from_bytes(name, "big"))
            limit = None if rule is None else rule.limit
            if len(self._has_slots) >= _MAX_RULES:
                self._has_slots.clear()
            known = limit is not None and limit.algorithm is Algorithm.CONCURRENCY
            self._has_slots[name] = known
        return known

    def _observe(self, batch: Batch) -> None:
        """Update the estimate of how long slots are held, from releases that state this time."""
        for row, slot_id in enumerate(batch.slot_ids):
            held_ns = batch.ages_ns[row] if batch.ages_ns else 0
            if slot_id and held_ns:
                name = batch.keys[row][:_ID_BYTES]
                before = self._hold_ns.pop(name, held_ns)
                if len(self._hold_ns) >= _MAX_RULES:
                    del self._hold_ns[next(iter(self._hold_ns))]
                self._hold_ns[name] = before + (held_ns - before) // _SMOOTHING

    def _estimate(self, batch: Batch, outcomes: Outcomes) -> None:
        """Set `retry_after` of denied checks to the likely time of the next free slot."""
        limits = batch.limits
        for row, code in enumerate(outcomes.codes):
            if code != _DENIED:
                continue
            key = batch.keys[row]
            which = batch.which[row] if batch.which else 0
            carried = limits[which - 1] if which else None
            if carried is None:
                if not self._is_slotted(key):
                    continue
            elif carried.algorithm is not Algorithm.CONCURRENCY:
                continue
            queue = self._queues.get(key)
            ahead = 0 if queue is None else len(queue.waiters) + len(queue.called)
            hold_ns = self._hold_ns.get(key[:_ID_BYTES])
            likely_ns = _UNKNOWN_HOLD_NS
            if hold_ns is not None:
                likely_ns = hold_ns * (ahead + 1) // max(1, outcomes.limits[row])
            latest_ns = outcomes.retry_after_ns[row] or likely_ns
            outcomes.retry_after_ns[row] = min(latest_ns, max(_SHORTEST_RETRY_NS, likely_ns))


def _rows_of_groups(rows: set[int], groups: Sequence[int]) -> set[int]:
    """Return all rows of the all-or-nothing groups of a batch that contain one of `rows`."""
    if not groups:
        return rows
    found: set[int] = set()
    start = 0
    for run in groups:
        together = range(start, start + run)
        start += run
        if not rows.isdisjoint(together):
            found.update(together)
    return found
