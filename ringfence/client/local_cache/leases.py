"""Leases of this process: units of hot keys that their owner lends, spent without asking the owner.

A key that is checked often gets a lease. Its owner lends some units for a short time, and counts
them as spent. The lease ends when its units are spent, when the owner recalls it, or when three
quarters of its time have passed since it was requested. Then the owner receives the number of spent
units, before it would count all of them as spent. The next lease is requested before the units run
out.

No I/O: a callback sends the requests, and the time is an argument.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct, field

from ringfence.client.decision import Decision
from ringfence.limiter import Code
from ringfence.wire import MAX_COST, UNKNOWN_LEASE, LeaseGrant, OutcomeRow, Source

__all__ = ["FIRST_RETRY", "Lease", "LeaseAsk", "Leases"]

_ALLOWED = Code.ALLOWED.value
_LEASE = Source.LEASE.value
_HOT_CHECKS = 4
"""Checks within `_HOT_SECONDS` that make a key hot."""
_HOT_SECONDS = 0.1
_FIRST_UNITS = 64
_GROWTH = 4
_USED_SHARE = 0.75
"""Share of a lease's time in which it is used."""
_RETRY_PAUSE = 0.1
"""Seconds without a request for a key, after no owner was available or a lease was recalled."""
FIRST_RETRY, _LONGEST_RETRY = 0.5, 8.0
"""Seconds until the report of an ended lease is sent again without an answer; doubled each time."""
_ARRIVED_WITHIN = 5.0
"""Seconds after which a report without an answer arrives at no node any more."""
_MOST_REPORTED = 16
"""Leases in one report."""
_REPORTED_WITHIN = 32.0
"""Seconds for which an ended lease is reported: longer than the owner accepts the report, so that a
report of unknown leases always has it."""
_NEVER = float("-inf")
_MAX_KEYS = 1024
"""Maximum number of keys that have a lease at the same time."""


class Lease(Struct):
    """Lent units of one key. A caller that spends them compares `left` and `until` first."""

    key: bytes
    number: int
    units: int
    left: int
    low: int
    """Number of remaining units below which the next lease is requested."""
    until: float
    limit: int
    remaining: int
    reset_after_ns: int
    node: Hashable
    """The link to the owner that lent the units."""
    decision: Decision | None = None
    """The last decision by this lease."""
    repeat_until_left: int = MAX_COST + 1
    """Minimum of `left` at which `decision` is repeated; above all units without a decision."""
    extra_units: int = 0
    """Units spent beyond one per check."""
    counted: int = 0
    """Number of checks that `count` has already returned."""

    def count(self) -> int:
        """Return the number of checks that spent units of this lease since the last call.

        Nearly all checks cost one unit, so spent units are counted and corrected by `extra_units`.
        """
        checks = self.units - self.left - self.extra_units
        new, self.counted = checks - self.counted, checks
        return new

    def row(self) -> OutcomeRow:
        """Create the result of a check that this lease allows."""
        remaining = self.remaining + self.left
        return (_ALLOWED, self.limit, remaining, 0, self.reset_after_ns, 0, 0, _LEASE)


class LeaseAsk(Struct, frozen=True):
    """Lease request to the owner of a key: the units wanted, and the spent units of leases that
    have ended."""

    key: bytes
    want: int
    leases: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    node: Hashable | None = None
    """Link to the node that lent the ending leases; None means the owner of the key."""


class _Unreported(Struct):
    """Ended leases of one key and node whose spent units the node may not know."""

    key: bytes
    node: Hashable
    until: float
    """Time after which the node does not accept the report."""
    retry_at: float
    pause: float = FIRST_RETRY
    sent_at: float = _NEVER
    spent: dict[int, int] = field(default_factory=dict)
    """Spent units by number of the lease."""


def _ignore_spent(key: bytes, checks: int) -> None:
    """Do nothing with the number of checks that a lease has decided."""


def _unknown_owner(key: bytes) -> Hashable | None:
    """Return no owner, so that any node may be the owner."""
    return None


def _itself(node: Hashable) -> Hashable:
    return node


class Leases:
    """All leases of this process; `on_answer` receives the answers to lease requests."""

    def __init__(
        self,
        send: Callable[[LeaseAsk], bool],
        on_spent: Callable[[bytes, int], None] = _ignore_spent,
        owner_of: Callable[[bytes], Hashable | None] = _unknown_owner,
        name_of: Callable[[Hashable], Hashable] = _itself,
    ) -> None:
        """`send` returns whether the request could be sent. If not, it calls `on_answer` before,
        unless leases are disabled. `on_spent` receives the number of checks of a key when a lease
        ends, and at each `report`. `owner_of` returns the name of the owner of a key, and `name_of`
        the name of a node, which stays the same when the link to it is replaced."""
        self._send = send
        self._owner_of, self._name_of = owner_of, name_of
        self._on_spent = on_spent
        self._current: dict[bytes, Lease] = {}
        self._next: dict[bytes, Lease] = {}
        self._requested: set[bytes] = set()
        self._want: dict[bytes, int] = {}
        self._paused_until: dict[bytes, float] = {}
        self._check_counts: Counter[bytes] = Counter()
        self._counted_until = float("-inf")
        self._unreported: dict[tuple[bytes, Hashable], _Unreported] = {}
        """Reports without an answer, by key and node."""
        self._has_all_reports = True
        """Whether `_unreported` has each lease that its node may still regard as open."""
        self._has_ended = False
        """Whether all leases were given back, and no new one is used."""
        self.find = self._current.get
        """Return the current lease of a key, or None; it may have ended."""

    def __len__(self) -> int:
        return len(self._current) + len(self._next)

    def spend(self, key: bytes, cost: int, now: float) -> Lease | None:
        """Spend `cost` units of the lease of a key; return None when the owner must be asked."""
        lease = self._current.get(key)
        if lease is None:
            self._count_check(key, now)
            return None
        if now >= lease.until:
            self._end(lease, now)
            lease = self._current.get(key)
        elif lease.left < cost and key in self._next:
            self._end(lease, now)
            lease = self._current[key]
        if lease is None or lease.left < cost or now >= lease.until:
            return None
        lease.left -= cost
        if cost != 1:
            lease.extra_units += cost - 1
        if lease.left < lease.low:
            self._request_next(lease, now)
        return lease

    def undo(self, key: bytes, cost: int) -> None:
        """Return units that a cancelled check has just spent, if their lease has not ended."""
        lease = self._current.get(key)
        if lease is not None and lease.left + cost <= lease.units:
            lease.left += cost
            if cost != 1:
                lease.extra_units -= cost - 1

    def on_answer(
        self, ask: LeaseAsk, node: Hashable, asked_at: float, answer: LeaseGrant | None
    ) -> None:
        """Use the answer to a lease request that was sent at `asked_at`; None means that there was
        no answer."""
        key = ask.key
        if answer is None:
            if ask.leases:
                spent = dict(zip(ask.leases, ask.spent, strict=True))
                self._add_unreported(key, ask.node, spent, asked_at)
            if ask.want and node is not None and self._has_all_reports:
                # The node may have lent units.
                self._add_unreported(key, node, {UNKNOWN_LEASE: 0}, asked_at)
        elif ask.leases:
            self._on_reported(key, ask.node, ask.leases)
        if not ask.want:
            return
        self._requested.discard(key)
        if answer is None or not answer.units:
            pause = _RETRY_PAUSE if answer is None else answer.for_ns / 1e9
            self._pause(key, asked_at + pause)
            self._want.pop(key, None)
            return
        lease = Lease(
            *(key, answer.lease, answer.units, answer.units, answer.units // 2),
            asked_at + answer.for_ns / 1e9 * _USED_SHARE,
            *(answer.limit, answer.remaining, answer.reset_after_ns, node),
        )
        if self._has_ended:
            self._give_back([lease])
        elif key not in self._current:
            self._current[key] = lease
        elif key not in self._next:
            self._next[key] = lease
        else:
            self._give_back([lease])

    def recall(self, node: Hashable, keys: Sequence[bytes], now: float) -> None:
        """Return leases that a node recalls; without keys, all leases of that node."""
        for key in keys or [*self._current]:
            leases = [
                lease
                for held in (self._current, self._next)
                if (lease := held.get(key)) is not None and lease.node == node
            ]
            for lease in leases:
                self._drop(lease)
            if leases:
                self._pause(key, now + _RETRY_PAUSE)
                self._want.pop(key, None)
                self._give_back(leases)

    def drop_node(self, node: Hashable) -> None:
        """Drop all leases from a node, because it can no longer recall them. Their spent units are
        reported when the node is connected again."""
        for held in (self._current, self._next):
            for key in [key for key, lease in held.items() if lease.node == node]:
                lease = held.pop(key)
                self._report(lease)
                spent = {lease.number: lease.units - lease.left}
                self._add_unreported(key, node, spent, lease.until)
        for key in [key for key in self._next if key not in self._current]:
            self._current[key] = self._next.pop(key)

    def tick(self, now: float) -> None:
        """Return the leases whose time has ended, and send reports without an answer again."""
        for held in (self._next, self._current):
            for lease in [lease for lease in held.values() if now >= lease.until]:
                if self._current.get(lease.key) is lease:
                    self._end(lease, now)
                else:
                    self._drop(lease)
                    self._give_back([lease])
        for place, each in list(self._unreported.items()):
            if now >= each.until:
                del self._unreported[place]
            elif now >= each.retry_at:
                self._send_again(each, now)
                each.pause = min(2 * each.pause, _LONGEST_RETRY)

    def report_again(self, now: float, node: Hashable = None) -> None:
        """Send the unanswered reports to a node again, or those to all nodes.

        The node is reachable again, and the next repetition may be too late: the node accepts a
        report only for a time.
        """
        for each in list(self._unreported.values()):
            is_for_node = node is None or self._name_of(each.node) == self._name_of(node)
            if is_for_node and now >= each.sent_at + FIRST_RETRY:
                self._send_again(each, now)

    def give_back_all(self) -> None:
        """Return all leases to their owners, also those that are requested now."""
        self._has_ended = True
        for held in (self._next, self._current):
            for lease in [*held.values()]:
                self._drop(lease)
                self._give_back([lease])

    def next_deadline(self) -> float:
        """Return when `tick` must be called next; infinity without leases."""
        untils = [lease.until for held in (self._current, self._next) for lease in held.values()]
        retries = [each.retry_at for each in self._unreported.values()]
        return min([*untils, *retries], default=float("inf"))

    def report(self) -> None:
        """Pass to `on_spent` the number of checks that leases have decided since the last
        report."""
        for held in (self._current, self._next):
            for lease in held.values():
                self._report(lease)

    def count_all(self, keys: Sequence[bytes], now: float) -> None:
        """Count the checks of keys without a lease, and request leases for keys that are checked
        often."""
        self._begin_span(now)
        counts = self._check_counts
        before = len(counts)
        counts.update(keys)
        if len(counts) == before + len(keys):
            return  # Every key is new.
        for key in dict.fromkeys([key for key in keys if counts[key] >= _HOT_CHECKS]):
            self._request_hot(key, now)

    def _count_check(self, key: bytes, now: float) -> None:
        self._begin_span(now)
        count = self._check_counts.get(key, 0) + 1
        self._check_counts[key] = count
        if count >= _HOT_CHECKS:
            self._request_hot(key, now)

    def _begin_span(self, now: float) -> None:
        """Reset the counts of checks by key when their measuring period is over, or when there
        are too many keys."""
        if now >= self._counted_until or len(self._check_counts) >= _MAX_KEYS:
            self._check_counts.clear()
            self._counted_until = now + _HOT_SECONDS

    def _report(self, lease: Lease) -> None:
        checks = lease.count()
        if checks:
            self._on_spent(lease.key, checks)

    def _end(self, lease: Lease, now: float) -> None:
        """End a lease: report the spent units to the owner, and use the next lease.

        A lease that was hardly used is not renewed. The next one is smaller when this one lasted
        longer than its time.
        """
        key, spent = lease.key, lease.units - lease.left
        self._drop(lease)
        following = self._next.pop(key, None)
        if following is not None:
            self._current[key] = following
        if now >= lease.until:
            self._want[key] = max(_FIRST_UNITS, 2 * spent)
        if following is not None or key in self._requested or spent < _HOT_CHECKS:
            self._give_back([lease])
        else:
            self._request(key, now, lease)

    def _request_next(self, lease: Lease, now: float) -> None:
        """Request the next lease of a key, because few units of the current one are left."""
        lease.low = 0
        key = lease.key
        if key not in self._next and key not in self._requested:
            self._want[key] = min(self._want.get(key, _FIRST_UNITS) * _GROWTH, MAX_COST)
            self._request(key, now)

    def _request_hot(self, key: bytes, now: float) -> None:
        if key not in self._requested and now >= self._paused_until.get(key, _NEVER):
            self._check_counts[key] = 0
            if len(self._current) + len(self._requested) < _MAX_KEYS:
                self._request(key, now)

    def _request(self, key: bytes, now: float, ended: Lease | None = None) -> None:
        if now < self._paused_until.get(key, _NEVER) or self._has_unknown_lease(key, now):
            if ended is not None:
                self._give_back([ended])
            return
        self._requested.add(key)
        want = self._want.get(key, _FIRST_UNITS)
        if ended is None:
            self._send(LeaseAsk(key, want))
        else:
            spent = ended.units - ended.left
            self._add_unreported(key, ended.node, {ended.number: spent}, ended.until)
            self._send(LeaseAsk(key, want, (ended.number,), (spent,), ended.node))

    def _add_unreported(
        self, key: bytes, node: Hashable, spent: dict[int, int], ended_at: float
    ) -> None:
        place = key, node
        if place not in self._unreported:
            self._has_all_reports = self._has_all_reports or not self._unreported
            if len(self._unreported) >= _MAX_KEYS:
                del self._unreported[next(iter(self._unreported))]
                self._forget_unknown_leases()
            until, retry_at = ended_at + _REPORTED_WITHIN, ended_at + FIRST_RETRY
            self._unreported[place] = _Unreported(key, node, until, retry_at)
        report = self._unreported[place]
        known = report.spent
        new = {number: units for number, units in spent.items() if number not in known}
        if new:
            report.until = max(report.until, ended_at + _REPORTED_WITHIN)
        known.update(new)
        if len(known) > _MOST_REPORTED:
            del known[next(iter(known))]
            self._forget_unknown_leases()

    def _forget_unknown_leases(self) -> None:
        """Report no unknown leases until all other reports are answered, because a report was
        dropped: its lease would count as an unknown one, so as unspent."""
        self._has_all_reports = False
        for place, each in list(self._unreported.items()):
            if UNKNOWN_LEASE in each.spent:
                self._on_reported(*place, [UNKNOWN_LEASE])

    def _send_again(self, report: _Unreported, now: float) -> None:
        report.retry_at = now + report.pause
        if UNKNOWN_LEASE not in report.spent or not self._may_hold(report):
            numbers, spent = tuple(report.spent), tuple(report.spent.values())
            if self._send(LeaseAsk(report.key, 0, numbers, spent, report.node)):
                report.sent_at = now

    def _may_hold(self, report: _Unreported) -> bool:
        """Return whether this process may hold a lease from the node of a report."""
        held = [self._current.get(report.key), self._next.get(report.key)]
        names = [self._name_of(lease.node) for lease in held if lease is not None]
        return report.key in self._requested or self._name_of(report.node) in names

    def _has_unknown_lease(self, key: bytes, now: float) -> bool:
        """Return whether the owner of a key may have granted a lease of it without our knowledge.

        Until it has answered the report of this lease, no other one is requested: it would take it
        for the unknown one. If it does not answer for a time, the report is dropped.
        """
        for place, each in list(self._unreported.items()):
            if each.key != key or UNKNOWN_LEASE not in each.spent:
                continue
            if self._owner_of(key) in (None, self._name_of(each.node)):
                if each.pause < _LONGEST_RETRY or now < each.sent_at + _ARRIVED_WITHIN:
                    return True
                self._on_reported(*place, [UNKNOWN_LEASE])
        return False

    def _on_reported(self, key: bytes, node: Hashable, numbers: Sequence[int]) -> None:
        """Drop the reports of leases that their node has answered."""
        known = self._unreported.get((key, node))
        if known is not None:
            for number in numbers:
                known.spent.pop(number, None)
            if not known.spent:
                del self._unreported[key, node]

    def _give_back(self, leases: Sequence[Lease]) -> None:
        numbers = tuple(lease.number for lease in leases)
        spent = tuple(lease.units - lease.left for lease in leases)
        first = leases[0]
        # Another report of unknown leases must not count these as unspent.
        self._add_unreported(
            first.key, first.node, dict(zip(numbers, spent, strict=True)), first.until
        )
        self._send(LeaseAsk(first.key, 0, numbers, spent, first.node))

    def _drop(self, lease: Lease) -> None:
        lease.low = 0
        self._report(lease)
        for held in (self._current, self._next):
            if held.get(lease.key) is lease:
                del held[lease.key]

    def _pause(self, key: bytes, until: float) -> None:
        if len(self._paused_until) >= _MAX_KEYS:
            self._paused_until.clear()
        self._paused_until[key] = until
