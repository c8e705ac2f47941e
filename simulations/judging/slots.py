"""Slots of concurrency limits: when each caller held a slot, and invariants about slots.

A slot is certainly in use from the holder's answer until its release begins. It is possibly in use
from shortly before that answer until the release is acknowledged. Two invariants follow. There are
never more certain holders than slots. No caller waits long while a slot is certainly free.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from ringfence.wire import Source
from simulations.reporting.outcome import Violation

__all__ = ["HeldSlot", "HoldLedger", "slot_violations"]

_RESERVED_S = 1.5
"""Seconds before its holder receives the answer for which a slot may be reserved. A notified
waiter has one second to claim the slot, plus a round trip."""
_FREE_S = 4.0
"""Seconds for which a slot may be free while a caller waits. After a lost wake-up the waiter
retries, and the owner drops earlier waiters that are gone."""
_DEADLINE_S = 4.5
"""Seconds after `max_wait` within which a caller must have an answer."""


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """Caller that requested a slot of a concurrency limit, with the times of the request. Times are
    seconds since the start of the load."""

    asked_at: float
    answered_at: float
    datacenter: str
    key: str
    max_wait: float
    is_held: bool
    """Whether the caller got a slot that some member counts."""
    release_began_at: float
    """Time at which the release began."""
    release_acknowledged_at: float
    """Time at which the release was acknowledged."""
    client: str = ""
    """Host of the caller; empty when it is not known."""
    source: Source = Source.OWNER
    """Source of the answer that granted the slot."""


class HoldLedger:
    """Record of all slot requests of a run, by rule."""

    def __init__(self) -> None:
        self._by_rule: dict[str, list[HeldSlot]] = {}

    def add(self, rule: str, held: HeldSlot) -> None:
        """Record a caller that has released its slot or stopped waiting for one."""
        self._by_rule.setdefault(rule, []).append(held)

    def rules(self) -> list[str]:
        """Return the rules for which slots were requested."""
        return list(self._by_rule)

    def keys(self, rule: str) -> list[str]:
        """Return the keys of a rule for which slots were requested."""
        return sorted({held.key for held in self._by_rule.get(rule, [])})

    def columns(self, rule: str) -> dict[tuple[str, str], list[HeldSlot]]:
        """Return the slot requests of a rule by data center and key."""
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
    is_beside_owner: Callable[[HeldSlot], bool] = lambda _: False,
) -> Iterator[Violation]:
    """Find violations of the invariants about concurrency slots among the callers of one key.

    `sides` members may decide at the same time, each up to the limit. Slots that were taken in one
    of `lost_spans` may be lost. Only an `is_clean` run loses no releases. `is_beside_owner` returns
    whether a standby may have granted a slot while the owner granted slots, too.
    """
    key = column[0].key if column else ""
    held = sorted((each for each in column if each.is_held), key=lambda each: each.answered_at)
    for each in held:
        now = [
            other
            for other in held
            if other.answered_at <= each.answered_at < other.release_began_at
        ]
        forgotten = sum(
            _is_in(other.answered_at, lost_spans) or is_beside_owner(other) for other in now
        )
        if len(now) > slots * sides + forgotten:
            text = f"{key}: {len(now)} hold a slot of {slots} at once, {forgotten} may be forgotten"
            yield Violation("over_admission", each.answered_at, text)
            break
    for each in column:
        if each.answered_at - each.asked_at > each.max_wait + _DEADLINE_S:
            waited = each.answered_at - each.asked_at
            text = f"{key}: waited {waited:.2f} s for a slot, not {each.max_wait:g}"
            yield Violation("deadline", each.answered_at, text)
            break
        if is_clean:
            begin = _free_since(each, held, slots)
            if begin is not None:
                text = f"{key}: waited on for {_FREE_S:g} s although a slot was free"
                yield Violation("lost_wakeup", begin, text)
                break


def _is_in(instant: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any([begin <= instant <= end for begin, end in spans])


def _free_since(waiter: HeldSlot, held: Sequence[HeldSlot], slots: int) -> float | None:
    """Return the time since which a slot stayed free for too long while a caller waited for one, or
    None."""
    end = waiter.answered_at - (_RESERVED_S if waiter.is_held else 0.0)
    others = [other for other in held if other is not waiter]
    edges = sorted(
        {waiter.asked_at, *(min(other.release_acknowledged_at, inf) for other in others)}
    )
    for begin in edges:
        if not waiter.asked_at <= begin <= end - _FREE_S:
            continue
        span = begin, begin + _FREE_S
        used = sum(
            other.answered_at - _RESERVED_S < span[1] and other.release_acknowledged_at > span[0]
            for other in others
        )
        if used < slots:
            return begin
    return None
