"""Exact replay of the checks of one key, at known instants.

A wait is found by a search for the first instant at which the check would pass, not by a formula.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from math import ceil, floor

from simulations.oracle.terms import Terms
from simulations.oracle.usage import HeldSlots, usage_of

__all__ = ["Answer", "Code", "LONGEST_NS", "Replay", "first_instant"]

LONGEST_NS = 2**63 - 1
"""Longest wait that is reported; longer ones are shortened to it."""


class Code(Enum):
    """Results of checks, charges and renewals."""

    ALLOWED = "allowed"
    OVER_SOFT = "over_soft"
    DENIED = "denied"
    NEVER = "never"
    OVERDRAWN = "overdrawn"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer that is right for one check, charge or renewal. Durations are in ns."""

    code: Code
    remaining: int
    """Largest cost that would be admitted now, afterwards."""
    retry_after: int = 0
    """For a denial or a debt: the wait until the cost would pass."""
    reset_after: int = 0
    """Time until the key is unused without further checks."""
    delay: int = 0
    """Queue mode: time until the turn of an admitted check."""
    slot: int = 0
    """Concurrency limits: number of the granted slot, counted from 1. Refunds: units given back."""

    @property
    def is_admitted(self) -> bool:
        """Whether the check has passed."""
        return self.code in (Code.ALLOWED, Code.OVER_SOFT)


class Replay:
    """Exact state of one key under one limit. Instants are integer ns.

    An instant before an earlier one counts as that earlier one: a clock that is set back stands
    still. Only slots follow the clock back. Durations in answers start at the instant that counts.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._numbers = count(1)
        self._usage = usage_of(terms, self._numbers)
        self._changed: Terms | None = None
        self._now = 0

    def change(self, terms: Terms) -> None:
        """Apply another limit from the next check, charge or answer on.

        Used units stay used. Until then, the key drains by the limit before.
        """
        self._changed = terms

    def check(self, cost: int, now: int) -> Answer:
        """Spend `cost` units if the limit permits; cost 0 only returns the state, as for cost 1."""
        now = self._advance(now)
        self._convert(now)
        terms, usage = self._terms, self._usage
        wanted = cost or 1
        if usage.used(now) + wanted > terms.ceiling:
            if wanted > terms.ceiling:
                return self._answer(Code.NEVER, now)
            return self._answer(Code.DENIED, now, retry_after=self._wait(wanted, now))
        delay = slot = 0
        if cost:
            if terms.queue:
                delay = first_instant(lambda at: not usage.used(at), now) - now
            if isinstance(usage, HeldSlots):
                slot = usage.grant(cost, now)
            else:
                usage.add(cost, now)
        return self._answer(self._standing(now), now, delay=delay, slot=slot)

    def spend(self, units: int, now: int) -> None:
        """Count units even beyond the limit, as a charge does, without an answer."""
        now = self._advance(now)
        self._convert(now)
        self._usage.charge(units, now)

    def charge(self, cost: int, now: int) -> Answer:
        """Count `cost` units even beyond the limit; return whether the limit still holds."""
        now = self._advance(now)
        before = self._terms, self._usage, self._changed
        self.spend(cost, now)
        code = self._standing(now)
        wait = 0
        if code is Code.OVERDRAWN and self._terms.ceiling:
            wait = self._wait(1, now)
        answer = self._answer(code, now, retry_after=wait)
        if not cost:  # Nothing was counted, so a change of the limit is applied later.
            self._terms, self._usage, self._changed = before
        return answer

    def peek_by(self, terms: Terms, now: int) -> Answer:
        """Return the state of the key under another limit, and change nothing."""
        before = self._terms, self._usage, self._changed
        self._changed = terms
        answer = self.check(0, now)
        self._terms, self._usage, self._changed = before
        return answer

    def refund(self, cost: int, now: int, *, age: int = 0, slot: int = 0) -> Answer:
        """Give units back, or release a slot; return the state afterwards, as for cost 1, and the
        units that were given back."""
        now = self._advance(now)
        before = ceil(self._usage.used(now))
        if isinstance(self._usage, HeldSlots) and slot:
            if cost:
                self._usage.release(slot)
        else:
            self._usage.give_back(cost, now, age)
        given_back = before - ceil(self._usage.used(now))
        return replace(self.check(0, now), slot=given_back)

    def renew(self, slot: int, now: int) -> Answer:
        """Extend a slot by a whole period; denied when the slot has ended."""
        now = self._advance(now)
        if isinstance(self._usage, HeldSlots) and self._usage.renew(slot, now):
            within = self._usage.used(now) <= self._terms.hard
            return self._answer(Code.ALLOWED if within else Code.OVER_SOFT, now, slot=slot)
        if not (isinstance(self._usage, HeldSlots) and self._usage.used(now)):
            self._convert(now)  # Held slots stay under their limit until the next check.
        return self._answer(Code.DENIED, now)

    def used(self, now: int) -> int:
        """Return the units in use, rounded up."""
        now = max(self._now, now)
        return -floor(-self._usage.used(now))

    def _advance(self, now: int) -> int:
        """Return the instant that counts: the latest one so far.

        A slot lasts one period by the clock that granted it, so slots count by the instant itself.
        """
        self._now = max(self._now, now)
        if isinstance(self._usage, HeldSlots):
            self._usage.expire(now)
            return now
        return self._now

    def _convert(self, now: int) -> None:
        """Apply a change of the limit."""
        if self._changed is not None and self._changed != self._terms:
            old, self._terms = self._usage, self._changed
            self._usage = usage_of(self._terms, self._numbers)
            self._usage.take_over(old, now)
        self._changed = None

    def _standing(self, now: int) -> Code:
        used = self._usage.used(now)
        if used > self._terms.ceiling:
            return Code.OVERDRAWN
        return Code.ALLOWED if used <= self._terms.hard else Code.OVER_SOFT

    def _wait(self, cost: int, now: int) -> int:
        used, room = self._usage.used, self._terms.ceiling - cost
        return min(first_instant(lambda at: used(at) <= room, now) - now, LONGEST_NS)

    def _answer(
        self, code: Code, now: int, *, retry_after: int = 0, delay: int = 0, slot: int = 0
    ) -> Answer:
        used = self._usage.used
        return Answer(
            code,
            max(0, floor(self._terms.ceiling - used(now))),
            retry_after,
            min(first_instant(lambda at: not used(at), now) - now, LONGEST_NS),
            delay,
            slot,
        )


def first_instant(is_over: Callable[[int], bool], begin: int) -> int:
    """Return the first instant from `begin` at which a condition holds that then stays true.

    Searches no further than twice the longest wait.
    """
    if is_over(begin):
        return begin
    step = 1
    while step <= LONGEST_NS and not is_over(begin + step):
        step *= 2
    before, after = begin + step // 2, begin + step
    while after - before > 1:
        middle = (before + after) // 2
        if is_over(middle):
            after = middle
        else:
            before = middle
    return after
