"""Units in use of one key at any instant, for each algorithm, by its definition.

Windows and logs keep the list of all hits. Their units in use are a sum over that list, in which
each algorithm gives each hit its own weight. A bucket keeps its level as a fraction. Nothing here
is fast, incremental or bounded.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, groupby
from math import ceil, gcd

from simulations.oracle.calendar_periods import calendar_period
from simulations.oracle.terms import Terms

__all__ = ["HeldSlots", "Usage", "usage_of"]

_MOST_UNITS = 2**60
"""Units that a counter holds at most; further units are not counted."""
_LOG_SPARE = 1024
"""Entries of a log above its limit from which charges are combined."""


def usage_of(terms: Terms, numbers: Iterator[int] | None = None) -> "Usage":
    """Return the empty usage of a key under a limit; `numbers` are those of the next slots."""
    if terms.is_bucket:
        return Level(terms)
    if terms.algorithm == "fixed_window":
        return FirstHitWindow(terms) if terms.first_hit else AlignedWindow(terms)
    if terms.algorithm == "sliding_window":
        return SlottedWindow(terms)
    if terms.algorithm == "sliding_window_log":
        return HitLog(terms)
    if terms.algorithm == "concurrency":
        return HeldSlots(terms, count(1) if numbers is None else numbers)
    raise ValueError(f"algorithm must be one of the six algorithms, got {terms.algorithm!r}")


class Usage(ABC):
    """Units in use of one key. Instants must not go back from one call that changes to the next."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @abstractmethod
    def used(self, at: int) -> int | Fraction:
        """Return the units in use at `at`, which is not before the last change."""

    @abstractmethod
    def add(self, units: int, now: int) -> None:
        """Count units that a check has spent."""

    def charge(self, units: int, now: int) -> None:
        """Count units even beyond the limit, up to the most that a counter holds."""
        self.add(max(0, min(units, _MOST_UNITS - self._held(now))), now)

    @abstractmethod
    def give_back(self, units: int, now: int, age: int) -> None:
        """Refund units that were spent at or after `now - age`; age 0 means the newest ones."""

    def take_over(self, old: "Usage", now: int) -> None:
        """Continue the usage under another limit: its used units count as spent now."""
        used = -(-old.used(now) // 1)
        if used:
            self.add(min(used, _MOST_UNITS), now)

    def _held(self, now: int) -> int:
        return -(-self.used(now) // 1)


class Level(Usage):
    """Level of a bucket. It falls evenly by `rate` units a period, and never below 0."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._rate = Fraction(terms.rate, terms.period_ns)
        self._level, self._since = Fraction(0), 0

    def used(self, at: int) -> Fraction:
        return max(Fraction(0), self._level - self._rate * (at - self._since))

    def add(self, units: int, now: int) -> None:
        self._level, self._since = self.used(now) + units, now

    def take_over(self, old: Usage, now: int) -> None:
        """Keep the level of another bucket in units, rounded up to whole ticks of this one."""
        if isinstance(old, Level):
            ticks = self.terms.period_ns // gcd(self.terms.period_ns, self.terms.rate)
            self._level, self._since = Fraction(ceil(old.used(now) * ticks), ticks), now
        else:
            super().take_over(old, now)

    def give_back(self, units: int, now: int, age: int) -> None:
        """Take out the part of the units that has not drained since."""
        not_drained = max(Fraction(0), units - self._rate * age)
        self._level, self._since = max(Fraction(0), self.used(now) - not_drained), now


@dataclass(slots=True)
class _Hit:
    """Units that were counted at one instant."""

    at: int
    units: int


class _Hits(Usage):
    """Usage that is a sum over the hits of a key."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.hits: list[_Hit] = []

    def add(self, units: int, now: int) -> None:
        if units:
            self.hits.append(_Hit(now, units))

    def take_over(self, old: Usage, now: int) -> None:
        """Keep the hits if both limits count them by the same windows."""
        if type(old) is type(self) and self._windows == old._windows:
            self.hits = [_Hit(hit.at, hit.units) for hit in old.hits]
        else:
            super().take_over(old, now)

    @property
    def _windows(self) -> tuple[object, ...]:
        """Value that is equal for limits which count hits by the same windows."""
        terms = self.terms
        if terms.calendar is not None:
            return terms.calendar, terms.timezone
        return terms.period_ns, terms.slots

    def _strike(self, candidates: list[_Hit], units: int) -> None:
        """Remove units from hits, in the given order."""
        for hit in candidates:
            struck = min(units, hit.units)
            hit.units -= struck
            units -= struck
        self.hits = [hit for hit in self.hits if hit.units]


class AlignedWindow(_Hits):
    """Hits of the window that contains an instant. Windows begin at multiples of the period since
    1970, or with a calendar period."""

    def window(self, at: int) -> tuple[int, int]:
        """Return the first instant of the window that contains `at`, and the first one after
        it."""
        terms = self.terms
        if terms.calendar is not None:
            return calendar_period(terms.calendar, terms.timezone, at)
        number = at // terms.period_ns
        return number * terms.period_ns, (number + 1) * terms.period_ns

    def used(self, at: int) -> int:
        return sum(hit.units for hit in self._in_window(at))

    def give_back(self, units: int, now: int, age: int) -> None:
        """Remove units of the present window, if all charges of that age lie in it."""
        if now - age >= self.window(now)[0]:
            self._strike(self._in_window(now), units)

    def _in_window(self, at: int) -> list[_Hit]:
        begin, end = self.window(at)
        return [hit for hit in self.hits if begin <= hit.at < end]


class FirstHitWindow(_Hits):
    """Hits of the present window. A window begins with the first hit after the window before."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._begin = 0
        """When the latest window began."""

    def used(self, at: int) -> int:
        return sum(hit.units for hit in self._in_window(at))

    def add(self, units: int, now: int) -> None:
        if units and not self._in_window(now):
            self.hits, self._begin = [], now
        super().add(units, now)

    def take_over(self, old: Usage, now: int) -> None:
        """Keep the window if both limits have the same period."""
        super().take_over(old, now)
        if isinstance(old, FirstHitWindow) and self._windows == old._windows:
            self._begin = old._begin

    def give_back(self, units: int, now: int, age: int) -> None:
        """Remove units of the present window, if all charges of that age lie in it.

        Without a hit left, the key is unused, so that the next hit begins a window.
        """
        if now - age >= self._begin:
            self._strike(self._in_window(now), units)

    def _in_window(self, at: int) -> list[_Hit]:
        return self.hits if at < self._begin + self.terms.period_ns else []


class SlottedWindow(_Hits):
    """Sliding window: all hits of the newest slots, and a part of the hits of the oldest slot.

    The part is that of the slot which the window of one period still covers, rounded down.
    """

    def used(self, at: int) -> int:
        terms = self.terms
        present = at // terms.slot_ns
        oldest = present - terms.slots
        full = sum(hit.units for hit in self.hits if oldest < hit.at // terms.slot_ns <= present)
        partly = sum(hit.units for hit in self.hits if hit.at // terms.slot_ns == oldest)
        covered = Fraction((oldest + 1) * terms.slot_ns - (at - terms.period_ns), terms.slot_ns)
        return full + int(partly * covered)

    def give_back(self, units: int, now: int, age: int) -> None:
        """Remove units of the slot that contains `now - age`, if that slot still counts.

        If no whole unit is in use after that, the key is forgotten, with the rest of its oldest
        slot.
        """
        slot_ns = self.terms.slot_ns
        slot = (now - age) // slot_ns
        if slot >= now // slot_ns - self.terms.slots:
            self._strike([hit for hit in self.hits if hit.at // slot_ns == slot], units)
        if not self.used(now):
            self.hits = []

    def _held(self, now: int) -> int:
        """Return all units that are counted in slots, also those of which only a part is in use."""
        oldest = now // self.terms.slot_ns - self.terms.slots
        return sum(hit.units for hit in self.hits if hit.at // self.terms.slot_ns >= oldest)


class HitLog(_Hits):
    """Hits of the last period, each of them for exactly one period."""

    def used(self, at: int) -> int:
        return sum(hit.units for hit in self._live(at))

    def charge(self, units: int, now: int) -> None:
        """Count units at `now`. Above 1024 spare entries, near charges share an instant."""
        instants = [at for at, _ in groupby(hit.at for hit in self._live(now))]
        near = self.terms.period_ns // _LOG_SPARE
        if len(instants) >= self.terms.ceiling + _LOG_SPARE and now - instants[-1] <= near:
            units = max(0, min(units, _MOST_UNITS - self._held(now)))
            self.add(units, instants[-1])
        else:
            super().charge(units, now)

    def give_back(self, units: int, now: int, age: int) -> None:
        """Remove the newest units, or with an age the oldest ones that are not older."""
        live = self._live(now)
        if not age:
            self._strike(live[::-1], units)
        elif age < self.terms.period_ns:
            self._strike([hit for hit in live if hit.at >= now - age], units)

    def _live(self, at: int) -> list[_Hit]:
        return [hit for hit in self.hits if at - self.terms.period_ns < hit.at]


@dataclass(slots=True)
class _Slot:
    """Units in flight until their holder releases them or their time ends."""

    number: int
    units: int
    end: int


class HeldSlots(Usage):
    """Slots of a concurrency limit that are neither released nor expired."""

    def __init__(self, terms: Terms, numbers: Iterator[int]) -> None:
        super().__init__(terms)
        self._slots: list[_Slot] = []
        self._numbers = numbers

    def used(self, at: int) -> int:
        """Return the units in flight."""
        return sum(slot.units for slot in self._slots if slot.end > at)

    def add(self, units: int, now: int) -> None:
        """Grant a slot of `units`."""
        self.grant(units, now)

    def grant(self, units: int, now: int) -> int:
        """Grant a slot for one period; return its number."""
        number = next(self._numbers)
        self._slots.append(_Slot(number, units, now + self.terms.period_ns))
        return number

    def charge(self, units: int, now: int) -> None:
        """Raise `ValueError`, since slots cannot be charged."""
        raise ValueError("a concurrency limit has no charges")

    def take_over(self, old: Usage, now: int) -> None:
        """Keep the slots of another limit; other units are in flight without a holder."""
        if isinstance(old, HeldSlots):
            self._slots = old._slots
        else:
            super().take_over(old, now)

    def expire(self, now: int) -> None:
        """Forget slots that have ended. They stay ended when the clock is set back."""
        self._slots = [slot for slot in self._slots if slot.end > now]

    def renew(self, number: int, now: int) -> bool:
        """Let a slot last a period from now; return whether it was still held."""
        for slot in self._slots:
            if slot.number == number and slot.end > now:
                slot.end = now + self.terms.period_ns
                return True
        return False

    def release(self, number: int) -> None:
        """Release a whole slot."""
        self._slots = [slot for slot in self._slots if slot.number != number]

    def give_back(self, units: int, now: int, age: int) -> None:
        """Release units without the number of their slot: those that expire first."""
        if age >= self.terms.period_ns:
            return
        for slot in sorted(self._slots, key=lambda slot: slot.end):
            if slot.end > now:
                struck = min(units, slot.units)
                slot.units -= struck
                units -= struck
        self._slots = [slot for slot in self._slots if slot.units]
