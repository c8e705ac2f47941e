"""Queue of the checks that wait for a slot of a concurrency limit, by key, in order of arrival.

Decides which waiter is called when a slot is free, and that no other check overtakes the waiters.
A called waiter asks again under its ticket; the slot is kept for it meanwhile. A node has one queue
for the keys that it decides, and so has a limiter without nodes. Also estimates when a slot will be
free. A core: the caller tells the time and notifies the waiters.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from ringfence.limiter import Algorithm, Code, Limit, Outcomes
from ringfence.rules import Rule
from ringfence.wire import Batch, Op, Results

__all__ = ["ASK_AGAIN_NS", "MOST_PER_CONNECTION", "MOST_WAITERS", "SlotQueue"]

MOST_WAITERS = 16_384
"""Waiters of one queue. One more is denied as without a ticket, and asks again in a while."""
MOST_PER_CONNECTION = 1024
ASK_AGAIN_NS = 2_000_000_000
"""Interval at which a waiter asks again although nobody has called it."""
_SILENT_NS = 3 * ASK_AGAIN_NS
"""A waiter that has not asked for so long is gone."""
_KEPT_NS = 1_000_000_000
"""How long a free slot is kept for a waiter that was called."""
_UNKNOWN_HOLD_NS = 1_000_000_000
"""Estimate of the time to the next free slot before any release was observed."""
_SHORTEST_RETRY_NS = 1_000_000
_MOST_RULES = 4096
_SMOOTHING = 8
_ID_BYTES = 8
_DENIED = Code.DENIED.value
_UNCHARGED = Code.UNCHARGED.value
_LAST_CHARGED = Code.OVER_SOFT.value

WhoT = TypeVar("WhoT")
_Decide: TypeAlias = Callable[[Batch, int], Outcomes]


@dataclass(slots=True)
class _Waiter(Generic[WhoT]):
    who: WhoT
    units: int
    heard_at: int
    kept_until: int = 0
    """Until when a slot is kept for it, once it was called."""

    def is_silent(self, now: int) -> bool:
        """Whether it has not asked for so long that it must be gone."""
        return self.heard_at + _SILENT_NS <= now


@dataclass(slots=True)
class _Line(Generic[WhoT]):
    """Waiters of one key by ticket, in order of arrival."""

    limit: Limit | None
    """The limit that came with the check; None for the rule's own."""
    sweep_at: int
    """When waiters that are gone are dropped."""
    waiters: OrderedDict[int, _Waiter[WhoT]] = field(default_factory=OrderedDict)
    called: dict[int, _Waiter[WhoT]] = field(default_factory=dict)
    """Those that a slot is kept for, in the order in which they were called."""
    kept_units: int = 0
    look_at: int = 0
    """When the next waiter may be called without a release, or one is to be dropped."""

    def find(self, ticket: int) -> _Waiter[WhoT] | None:
        """Find a waiter, called or not."""
        return self.waiters.get(ticket) or self.called.get(ticket)

    def pop(self, ticket: int) -> _Waiter[WhoT] | None:
        """Take a waiter out of the line."""
        waiter = self.called.pop(ticket, None)
        if waiter is None:
            return self.waiters.pop(ticket, None)
        self.kept_units -= waiter.units
        return waiter

    def gone(self, now: int) -> list[int]:
        """Tickets of waiters that have not taken the slot kept for them, or ask no more."""
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


class SlotQueue(Generic[WhoT]):
    """Waiters for slots. `call(who, tickets)` says that slots are kept for these tickets."""

    def __init__(
        self,
        decide: _Decide,
        rule_of: Callable[[int], Rule | None],
        call: Callable[[WhoT, list[int]], None],
        *,
        most: int = MOST_WAITERS,
        most_of: Callable[[WhoT], int] = lambda _: MOST_PER_CONNECTION,
    ) -> None:
        """`decide` counts a batch; `most_of` bounds the waiters of one caller."""
        self.refused = 0
        """Waiters that found the queue full."""
        self.on_earlier: Callable[[], object] = lambda: None
        """Called when `next_deadline` has become earlier."""
        self._decide = decide
        self._rule_of = rule_of
        self._call = call
        self._most, self._most_of = most, most_of
        self._lines: dict[bytes, _Line[WhoT]] = {}
        self._size = 0
        self._by_who: dict[WhoT, int] = {}
        self._due: list[tuple[int, bytes]] = []
        self._has_slots: dict[bytes, bool] = {}
        """By rule id, whether the rule is a concurrency limit."""
        self._hold_ns: dict[bytes, int] = {}
        """By rule id, smoothed time for which a slot was held."""

    def __len__(self) -> int:
        return self._size

    def decide(self, batch: Batch, now: int) -> Outcomes:
        """Count a batch; a check of a key that has waiters is denied unless it was called."""
        if batch.op is not Op.CHECK:
            outcomes = self._decide(batch, now)
            if batch.op is Op.REFUND:
                self._observe(batch)
            if self._lines and batch.op is not Op.RENEW:
                self.freed(batch.keys, now)
        elif self._lines:
            outcomes = self._decide_in_turn(batch, now)
        else:
            outcomes = self._decide(batch, now)
        if _DENIED in outcomes.codes:
            self._estimate(batch, outcomes)
        return outcomes

    def answered(self, who: WhoT, batch: Batch, verdicts: Results, now: int) -> None:
        """Queue the denied checks of a batch that have tickets; others wait no longer."""
        if batch.op is not Op.CHECK:
            return
        for row, ticket in enumerate(batch.leases):
            if not ticket or not batch.costs[row]:
                continue
            key = batch.keys[row]
            if verdicts.outcomes.codes[row] != _DENIED:
                self._remove(key, ticket)
                self.freed([key], now)  # It may not have taken the slot that was kept for it.
                continue
            limit = batch.limits[batch.which[row] - 1] if batch.which and batch.which[row] else None
            if self._vetoes(key, limit):
                self._join(key, ticket, _Waiter(who, batch.costs[row], now), limit)
                if key in self._lines:
                    self.call_next(key, now)

    def freed(self, keys: Iterable[bytes], now: int) -> None:
        """Call the next waiters of keys of which slots were released."""
        for key in dict.fromkeys(keys):
            if key in self._lines:
                self.call_next(key, now)

    def call_next(self, key: bytes, now: int) -> None:
        """Call the waiters of a key for whom there are free slots, in order of arrival."""
        line = self._lines[key]
        for ticket in line.gone(now):
            self._remove(key, ticket)
        if key not in self._lines:
            return
        limits, which = ([line.limit], [1]) if line.limit is not None else ([], [])
        stands = self._decide(Batch(Op.CHECK, [key], [0], limits=limits, which=which), now)
        left = stands.remaining[0]
        look_at = line.sweep_at if left else min(line.sweep_at, now + stands.retry_after_ns[0])
        left -= line.kept_units
        called: dict[WhoT, list[int]] = {}
        while line.waiters:
            ticket, waiter = next(iter(line.waiters.items()))
            if waiter.is_silent(now):
                self._remove(key, ticket)
                continue
            if waiter.units > left:
                break
            left -= waiter.units
            waiter.kept_until = now + _KEPT_NS
            line.called[ticket] = line.waiters.pop(ticket)
            line.kept_units += waiter.units
            called.setdefault(waiter.who, []).append(ticket)
        if line.called:
            look_at = min(look_at, next(iter(line.called.values())).kept_until)
        self._look_at(key, line, max(now + 1, look_at))
        for who, tickets in called.items():
            self._call(who, tickets)

    def call_all(self) -> None:
        """Have every waiter ask again: this queue no longer decides, or rules have changed."""
        self._has_slots.clear()
        called: dict[WhoT, list[int]] = {}
        for line in self._lines.values():
            for ticket, waiter in [*line.called.items(), *line.waiters.items()]:
                called.setdefault(waiter.who, []).append(ticket)
        self._lines.clear()
        self._by_who.clear()
        self._due.clear()
        self._size = 0
        for who, tickets in called.items():
            self._call(who, tickets)

    def left(self, who: WhoT, now: int) -> None:
        """Drop the waiters of a caller that is gone, and call those behind them."""
        if who not in self._by_who:
            return
        for key, line in list(self._lines.items()):
            waiters = [*line.called.items(), *line.waiters.items()]
            gone = [ticket for ticket, waiter in waiters if waiter.who == who]
            for ticket in gone:
                self._remove(key, ticket)
            if gone:
                self.freed([key], now)

    def tick(self, now: int) -> None:
        """Call waiters of slots whose time has ended, and drop waiters that are gone."""
        while self._due and self._due[0][0] <= now:
            when, key = heappop(self._due)
            line = self._lines.get(key)
            if line is not None and line.look_at == when:
                self.call_next(key, now)

    def next_deadline(self) -> int | None:
        """When `tick` has something to do; None without waiters."""
        while self._due:
            when, key = self._due[0]
            line = self._lines.get(key)
            if line is not None and line.look_at == when:
                return when
            heappop(self._due)
        return None

    # -- waiters -------------------------------------------------------------------------------

    def _decide_in_turn(self, batch: Batch, now: int) -> Outcomes:
        """Count a batch; rows that would overtake waiters are denied, and charge nothing."""
        keys, costs, tickets = batch.keys, batch.costs, batch.leases
        for row, ticket in enumerate(tickets):
            if ticket and not costs[row]:
                self._remove(keys[row], ticket)
        self.freed(keys, now)
        barred: set[int] = set()
        for row, key in enumerate(keys):
            line = self._lines.get(key)
            is_called = line is None or (bool(tickets) and tickets[row] in line.called)
            if costs[row] and not is_called:
                barred.add(row)
        if not barred:
            return self._decide(batch, now)
        peeked = _groups_of(barred, batch.groups)
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

    def _join(self, key: bytes, ticket: int, waiter: _Waiter[WhoT], limit: Limit | None) -> None:
        line = self._lines.get(key)
        known = None if line is None else line.find(ticket)
        if line is not None and known is not None:
            known.heard_at = waiter.heard_at
            self._count(known.who, -1)
            known.who = waiter.who  # It may have come back on another connection.
            self._count(known.who, 1)
            if ticket in line.called:  # It came, and found no slot: it is the next one still.
                line.pop(ticket)
                line.waiters[ticket] = known
                line.waiters.move_to_end(ticket, last=False)
            return
        if self._size >= self._most or self._of(waiter.who) >= self._most_of(waiter.who):
            self.refused += 1
            return
        if line is None:
            line = self._lines[key] = _Line(limit, waiter.heard_at + _SILENT_NS)
        line.waiters[ticket] = waiter
        self._count(waiter.who, 1)

    def _of(self, who: WhoT) -> int:
        return self._by_who.get(who, 0)

    def _remove(self, key: bytes, ticket: int) -> None:
        line = self._lines.get(key)
        waiter = None if line is None else line.pop(ticket)
        if line is not None and waiter is not None:
            self._count(waiter.who, -1)
            if not line.waiters and not line.called:
                del self._lines[key]

    def _count(self, who: WhoT, change: int) -> None:
        self._size += change
        count = self._of(who) + change
        if count:
            self._by_who[who] = count
        else:
            del self._by_who[who]

    def _look_at(self, key: bytes, line: _Line[WhoT], when: int) -> None:
        if when == line.look_at:
            return
        line.look_at = when
        before = self.next_deadline()
        heappush(self._due, (when, key))
        if before is None or when < before:
            self.on_earlier()

    # -- which limits have slots, and when one will be free ------------------------------------

    def _vetoes(self, key: bytes, limit: Limit | None) -> bool:
        """Whether a check of this key can wait: its limit has slots and its denial counts."""
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
            if len(self._has_slots) >= _MOST_RULES:
                self._has_slots.clear()
            known = limit is not None and limit.algorithm is Algorithm.CONCURRENCY
            self._has_slots[name] = known
        return known

    def _observe(self, batch: Batch) -> None:
        """Take note of how long released slots were held, as far as their holders say so."""
        for row, lease in enumerate(batch.leases):
            held_ns = batch.ages_ns[row] if batch.ages_ns else 0
            if lease and held_ns:
                name = batch.keys[row][:_ID_BYTES]
                before = self._hold_ns.pop(name, held_ns)
                if len(self._hold_ns) >= _MOST_RULES:
                    del self._hold_ns[next(iter(self._hold_ns))]
                self._hold_ns[name] = before + (held_ns - before) // _SMOOTHING

    def _estimate(self, batch: Batch, outcomes: Outcomes) -> None:
        """Tell denied checks when a slot is likely to be free, at the latest when one must be."""
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
            line = self._lines.get(key)
            ahead = 0 if line is None else len(line.waiters) + len(line.called)
            hold_ns = self._hold_ns.get(key[:_ID_BYTES])
            likely_ns = _UNKNOWN_HOLD_NS
            if hold_ns is not None:
                likely_ns = hold_ns * (ahead + 1) // max(1, outcomes.limits[row])
            latest_ns = outcomes.retry_after_ns[row] or likely_ns
            outcomes.retry_after_ns[row] = min(latest_ns, max(_SHORTEST_RETRY_NS, likely_ns))


def _groups_of(rows: set[int], groups: Sequence[int]) -> set[int]:
    """Add to `rows` those that share an all-or-nothing group with one of them."""
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
