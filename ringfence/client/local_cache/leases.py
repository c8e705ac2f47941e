"""Units of hot keys that this process may spend without asking: what to borrow, spend, give back.

A key that is asked about often is borrowed: its owner lends some units for a short time, which it
counts as spent. A lease is spent here until it is used up, recalled, or three quarters of its time
are over, from when it was *asked* for; then the owner is told how much was spent, well before it
would take all of it for spent. The next lease is asked for before the last unit is gone.

A core: asking is a call that comes in from outside, and whoever calls says what time it is.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ringfence.client.decision import Decision
from ringfence.limiter import Code
from ringfence.wire import MAX_COST, LeaseGrant, OutcomeRow, Source

__all__ = ["LeaseAsk", "Lease", "Leases"]

_ALLOWED = Code.ALLOWED.value
_LEASE = Source.LEASE.value
_HOT = 4
"""A key is hot that is asked about so often within `_SPAN`."""
_SPAN = 0.1
_FIRST_WANT = 64
_GROWTH = 4
_PART_OF_TIME = 0.75
_PAUSE = 0.1
"""Seconds until a key is asked for again that nobody could be asked for, or that was recalled."""
_LONG_AGO = float("-inf")
_MOST_KEYS = 1024
"""Keys borrowed at once."""


@dataclass(slots=True)
class Lease:
    """Units of one key. Whoever spends checks `left` and `until`, and reports when it is low."""

    key: bytes
    number: int
    units: int
    left: int
    low: int
    """When less is left, the next lease is asked for."""
    until: float
    limit: int
    remaining: int
    reset_after_ns: int
    teller: Hashable
    """Who lent it."""
    said: Decision | None = None
    """The decision that was last told of it."""
    said_until: int = MAX_COST + 1
    """With so much left at least it is told again: never, before it was told once."""
    beyond: int = 0
    """Units spent by checks beyond one for each check."""
    reported: int = 0
    """Checks that `count` has returned."""

    def count(self) -> int:
        """Count the checks it paid for since this was last called.

        Nearly all checks cost one unit, so units are counted, and corrected where one cost more.
        """
        checks = self.units - self.left - self.beyond
        new, self.reported = checks - self.reported, checks
        return new

    def row(self) -> OutcomeRow:
        """The decision on a check that it paid for."""
        remaining = self.remaining + self.left
        return (_ALLOWED, self.limit, remaining, 0, self.reset_after_ns, 0, 0, _LEASE)


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """What to tell the owner of a key, or whoever lent what is given back."""

    key: bytes
    want: int
    leases: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    teller: Hashable | None = None


class Leases:
    """The leases of this process. `ask` sends; its answer, or None, comes back by `lent`."""

    def __init__(self, ask: Callable[[LeaseAsk], None]) -> None:
        self._ask = ask
        self.paid: Callable[[bytes, int], None] = _ignore
        """Receives how many checks of a key were paid for, when a lease ends or by `report`."""
        self._current: dict[bytes, Lease] = {}
        self._next: dict[bytes, Lease] = {}
        self._asking: set[bytes] = set()
        self._want: dict[bytes, int] = {}
        self._quiet_until: dict[bytes, float] = {}
        self._counts: Counter[bytes] = Counter()
        self._counted_until = float("-inf")
        self.find = self._current.get
        """The lease of a key that is being spent, over or not."""

    def __len__(self) -> int:
        return len(self._current) + len(self._next)

    def spend(self, key: bytes, cost: int, now: float) -> Lease | None:
        """Spend `cost` of a key's lease; None when its owner must be asked."""
        lease = self._current.get(key)
        if lease is None:
            self._count(key, now)
            return None
        if now >= lease.until:
            self._turn(lease, now)
            lease = self._current.get(key)
        elif lease.left < cost and key in self._next:
            self._turn(lease, now)
            lease = self._current[key]
        if lease is None or lease.left < cost or now >= lease.until:
            return None
        lease.left -= cost
        if cost != 1:
            lease.beyond += cost - 1
        if lease.left < lease.low:
            self.run_low(lease, now)
        return lease

    def run_low(self, lease: Lease, now: float) -> None:
        """Ask for the next lease: this one will not last."""
        lease.low = 0
        key = lease.key
        if key not in self._next and key not in self._asking:
            self._want[key] = min(self._want.get(key, _FIRST_WANT) * _GROWTH, MAX_COST)
            self._borrow(key, now)

    def lent(
        self, ask: LeaseAsk, teller: Hashable, asked_at: float, answer: LeaseGrant | None
    ) -> None:
        """Take the answer to what was asked at `asked_at`; None when there is none."""
        key = ask.key
        if not ask.want:
            return
        self._asking.discard(key)
        if answer is None or not answer.units:
            pause = _PAUSE if answer is None else answer.for_ns / 1e9
            self._rest(key, asked_at + pause)
            self._want.pop(key, None)
            return
        lease = Lease(
            *(key, answer.lease, answer.units, answer.units, answer.units // 2),
            asked_at + answer.for_ns / 1e9 * _PART_OF_TIME,
            *(answer.limit, answer.remaining, answer.reset_after_ns, teller),
        )
        if key not in self._current:
            self._current[key] = lease
        elif key not in self._next:
            self._next[key] = lease
        else:
            self._give_back([lease])

    def recall(self, teller: Hashable, keys: Sequence[bytes], now: float) -> None:
        """Give keys back that a teller wants back; no keys stand for all of that teller's."""
        for key in keys or [*self._current]:
            leases = [
                lease
                for held in (self._current, self._next)
                if (lease := held.get(key)) is not None and lease.teller == teller
            ]
            for lease in leases:
                self._drop(lease)
            if leases:
                self._rest(key, now + _PAUSE)
                self._want.pop(key, None)
                self._give_back(leases)

    def forget(self, teller: Hashable) -> None:
        """Spend no more of what a teller lent, for it can no longer recall it."""
        for held in (self._current, self._next):
            for key in [key for key, lease in held.items() if lease.teller == teller]:
                self._report(held.pop(key))
        for key in [key for key in self._next if key not in self._current]:
            self._current[key] = self._next.pop(key)

    def tick(self, now: float) -> None:
        """Give back what is over."""
        for held in (self._next, self._current):
            for lease in [lease for lease in held.values() if now >= lease.until]:
                if self._current.get(lease.key) is lease:
                    self._turn(lease, now)
                else:
                    self._drop(lease)
                    self._give_back([lease])

    def report(self) -> None:
        """Pass on to `paid` what was not passed on yet."""
        for held in (self._current, self._next):
            for lease in held.values():
                self._report(lease)

    def _report(self, lease: Lease) -> None:
        checks = lease.count()
        if checks:
            self.paid(lease.key, checks)

    def next_deadline(self) -> float:
        """When `tick` has something to do; never when nothing is borrowed."""
        untils = [lease.until for held in (self._current, self._next) for lease in held.values()]
        return min(untils, default=float("inf"))

    def _turn(self, lease: Lease, now: float) -> None:
        """Go on with the next lease, if there is one, and tell what was spent of this one.

        One that was hardly touched is not renewed, and the next one is smaller when this one
        lasted too long.
        """
        key, spent = lease.key, lease.units - lease.left
        self._drop(lease)
        following = self._next.pop(key, None)
        if following is not None:
            self._current[key] = following
        if now >= lease.until:
            self._want[key] = max(_FIRST_WANT, 2 * spent)
        if following is not None or key in self._asking or spent < _HOT:
            self._give_back([lease])
        else:
            self._borrow(key, now, lease)

    def _count(self, key: bytes, now: float) -> None:
        """Note that a key was asked about; borrow it when it is hot."""
        self._begin_span(now)
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        if count >= _HOT:
            self._borrow_hot(key, now)

    def count_all(self, keys: Sequence[bytes], now: float) -> None:
        """Note that keys without a lease are to be charged; borrow those that are hot."""
        self._begin_span(now)
        counts = self._counts
        before = len(counts)
        counts.update(keys)
        if len(counts) == before + len(keys):
            return  # Nobody asked for any of them before.
        for key in dict.fromkeys([key for key in keys if counts[key] >= _HOT]):
            self._borrow_hot(key, now)

    def _begin_span(self, now: float) -> None:
        """Count from zero when the last span is over, or too many keys were counted in it."""
        if now >= self._counted_until or len(self._counts) >= _MOST_KEYS:
            self._counts.clear()
            self._counted_until = now + _SPAN

    def _borrow_hot(self, key: bytes, now: float) -> None:
        if key not in self._asking and now >= self._quiet_until.get(key, _LONG_AGO):
            self._counts[key] = 0
            if len(self._current) + len(self._asking) < _MOST_KEYS:
                self._borrow(key, now)

    def _borrow(self, key: bytes, now: float, done: Lease | None = None) -> None:
        if now < self._quiet_until.get(key, _LONG_AGO):
            if done is not None:
                self._give_back([done])
            return
        self._asking.add(key)
        want = self._want.get(key, _FIRST_WANT)
        if done is None:
            self._ask(LeaseAsk(key, want))
        else:
            spent = done.units - done.left
            self._ask(LeaseAsk(key, want, (done.number,), (spent,), done.teller))

    def _give_back(self, leases: Sequence[Lease]) -> None:
        numbers = tuple(lease.number for lease in leases)
        spent = tuple(lease.units - lease.left for lease in leases)
        self._ask(LeaseAsk(leases[0].key, 0, numbers, spent, leases[0].teller))

    def _drop(self, lease: Lease) -> None:
        lease.low = 0
        self._report(lease)
        for held in (self._current, self._next):
            if held.get(lease.key) is lease:
                del held[lease.key]

    def _rest(self, key: bytes, until: float) -> None:
        if len(self._quiet_until) >= _MOST_KEYS:
            self._quiet_until.clear()
        self._quiet_until[key] = until


def _ignore(key: bytes, checks: int) -> None:
    """Nothing is reported."""
