"""Slots of concurrency limits: who held one when, and what must hold of it.

A slot is used at most from shortly before its holder learns of it until its release was answered,
and at least from then until the release began. So there are two laws: never more holders at once
than slots, and nobody waits for long while one is surely free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from simulations.reporting.outcome import Violation

__all__ = ["HeldSlot", "HoldLedger", "slot_violations"]

_KEPT = 1.5
"""Seconds before its holder learns of it for which a slot may be kept: a waiter that was called has
a second to come, and the way there and back."""
_LATE = 4.0
"""Seconds for which a slot may be free while somebody waits: a lost wake-up is made up for when the
waiter asks again, and a waiter before it that is gone is dropped."""
_DEADLINE = 4.5
"""Seconds beyond its longest wait in which a caller has an answer."""


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """One caller that wanted a slot; times in seconds since the load began."""

    asked: float
    told: float
    datacenter: str
    key: str
    max_wait: float
    is_held: bool
    """Whether it got a slot that some member counts."""
    until: float
    """When it began to release it."""
    freed: float
    """When the release was answered."""


class HoldLedger:
    """All callers of a run that wanted a slot, by rule."""

    def __init__(self) -> None:
        self._by_rule: dict[str, list[HeldSlot]] = {}

    def add(self, rule: str, held: HeldSlot) -> None:
        """Take note of a caller that is done."""
        self._by_rule.setdefault(rule, []).append(held)

    def rules(self) -> list[str]:
        """The rules whose slots were asked for."""
        return list(self._by_rule)

    def keys(self, rule: str) -> list[str]:
        """The keys of a rule."""
        return sorted({held.key for held in self._by_rule.get(rule, [])})

    def columns(self, rule: str) -> dict[tuple[str, str], list[HeldSlot]]:
        """The callers by data center and key."""
        found: dict[tuple[str, str], list[HeldSlot]] = {}
        for held in self._by_rule.get(rule, []):
            found.setdefault((held.datacenter, held.key), []).append(held)
        return found


def slot_violations(
    column: Sequence[HeldSlot],
    slots: int,
    *,
    sides: int,
    lost_spans: Sequence[tuple[float, float]],
    is_clean: bool,
) -> Iterator[Violation]:
    """Judge the callers of one key.

    `sides` members may decide at once, each up to the limit; slots that were taken in one of
    `lost_spans` may have been forgotten. Only a `is_clean` run has no releases that were lost.
    """
    key = column[0].key if column else ""
    held = sorted((each for each in column if each.is_held), key=lambda each: each.told)
    for each in held:
        now = [other for other in held if other.told <= each.told < other.until]
        forgotten = sum(_is_in(other.told, lost_spans) for other in now)
        if len(now) > slots * sides + forgotten:
            text = f"{key}: {len(now)} hold a slot of {slots} at once, {forgotten} may be forgotten"
            yield Violation("over_admission", each.told, text)
            break
    for each in column:
        if each.told - each.asked > each.max_wait + _DEADLINE:
            text = f"{key}: waited {each.told - each.asked:.2f} s for a slot, not {each.max_wait:g}"
            yield Violation("deadline", each.told, text)
            break
        if is_clean:
            begin = _free_for(each, held, slots)
            if begin is not None:
                text = f"{key}: waited on for {_LATE:g} s although a slot was free"
                yield Violation("lost_wakeup", begin, text)
                break


def _is_in(instant: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any([begin <= instant <= end for begin, end in spans])


def _free_for(waiter: HeldSlot, held: Sequence[HeldSlot], slots: int) -> float | None:
    """When a slot began to be free for too long while this caller waited; None for never."""
    end = waiter.told - (_KEPT if waiter.is_held else 0.0)
    others = [other for other in held if other is not waiter]
    edges = sorted({waiter.asked, *(min(other.freed, inf) for other in others)})
    for begin in edges:
        if not waiter.asked <= begin <= end - _LATE:
            continue
        span = begin, begin + _LATE
        used = sum(other.told - _KEPT < span[1] and other.freed > span[0] for other in others)
        if used < slots:
            return begin
    return None
