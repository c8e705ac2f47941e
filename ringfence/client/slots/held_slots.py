"""Slots of concurrency limits that this process holds and renews until they are released.

Decides when each is renewed: three times a period, and sooner again after a renewal that nobody
answered. Slots whose decision the application has dropped without releasing it are not renewed, so
that they are free after their period. A core: the caller tells the time in seconds, and asks the
owners.
"""

import weakref
from dataclasses import dataclass, replace

from ringfence.wire import Batch, Op

__all__ = ["RENEWED_PART", "Held", "HeldSlots"]

RENEWED_PART = 3
_AGAIN_PART = 12
_LEAST_S = 0.02


@dataclass(slots=True, eq=False)
class Held:
    """The slots of one decision."""

    release: Batch
    """What gives them back; a slot that had ended and was taken anew has another lease."""
    period_s: float
    since: float
    due: float
    """When they are renewed."""
    origin: "weakref.ref[Batch]"
    """What gave them back at first: the name by which they are let go."""
    is_released: bool = False
    is_lost: bool = False
    """Whether a slot has ended and none was free: it is tried again with each renewal."""

    def renewal(self) -> Batch:
        """What lets them live for another period."""
        taken = self.release
        return Batch(
            *(Op.RENEW, taken.keys, [0] * len(taken)),
            limits=taken.limits,
            which=taken.which,
            leases=taken.leases,
        )

    def renewed(self, now: float) -> None:
        """Take note that the slots live for another period."""
        self.is_lost = False
        self.due = now + max(_LEAST_S, self.period_s / RENEWED_PART)

    def unanswered(self, now: float) -> None:
        """Take note that nobody has renewed them: try again soon."""
        self.due = now + max(_LEAST_S, self.period_s / _AGAIN_PART)

    def again(self) -> Batch:
        """What takes the slots anew, after they have ended."""
        taken = self.release
        groups = [len(taken)] if len(taken) > 1 else []
        return Batch(Op.CHECK, taken.keys, taken.costs, groups, taken.limits, taken.which)


class HeldSlots:
    """All slots that are renewed."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def origins(self) -> list[Batch]:
        """What gave the slots back at first."""
        found = [held.origin() for held in self._held.values()]
        return [origin for origin in found if origin is not None]

    def keep(self, release: Batch, period_s: float, now: float) -> None:
        """Renew the slots that `release` gives back, which were taken just now."""
        held = Held(replace(release), period_s, now, now, weakref.ref(release))
        held.renewed(now)
        self._held[id(release)] = held

    def let_go(self, release: Batch, now: float) -> Batch:
        """Renew no more; return what gives back the slots as they are now, and their age."""
        held = self._held.get(id(release))
        if held is None or held.origin() is not release:
            return release
        del self._held[id(release)]
        held.is_released = True
        age_ns = max(1, round((now - held.since) * 1e9))
        return replace(held.release, ages_ns=[age_ns] * len(release))

    def due(self, now: float) -> list[Held]:
        """Find the slots that are to be renewed now; those of forgotten decisions no more."""
        for name, held in list(self._held.items()):
            if held.due <= now and held.origin() is None:
                del self._held[name]
        return [held for held in self._held.values() if held.due <= now]

    def next_due(self) -> float | None:
        """When the next slots are to be renewed; None without any."""
        return min([held.due for held in self._held.values()], default=None)
