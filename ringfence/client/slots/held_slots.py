"""Slots of concurrency limits that this process holds, and when each slot is renewed.

Slots are renewed three times a period, and sooner after a renewal without an answer. When the
application drops a decision without releasing it, its slots are not renewed and expire after their
period. No I/O: the time is an argument in seconds, and the caller sends the renewals.
"""

import weakref

from msgspec import Struct
from msgspec.structs import replace

from ringfence.wire import Batch, Op

__all__ = ["RENEWALS_PER_PERIOD", "Held", "HeldSlots"]

RENEWALS_PER_PERIOD = 3
_RETRIES_PER_PERIOD = 12
_MIN_PAUSE = 0.02
"""Minimum seconds between two renewals."""


class Held(Struct, eq=False):
    """Slots of concurrency limits that one decision holds."""

    release: Batch
    """Request that releases the slots. A slot that ended and was taken again has a new id."""
    period: float
    since: float
    due: float
    """Time of the next renewal."""
    origin: "weakref.ref[Batch]"
    """The first release request, which identifies the slots in `stop_renewing`."""
    is_released: bool = False
    is_lost: bool = False
    """Whether a slot has ended and none was free. Each renewal tries to take it again."""

    def renewal(self) -> Batch:
        """Create the request that renews the slots for another period."""
        taken = self.release
        return Batch(
            *(Op.RENEW, taken.keys, [0] * len(taken)),
            limits=taken.limits,
            which=taken.which,
            slot_ids=taken.slot_ids,
        )

    def on_renewed(self, now: float) -> None:
        """Schedule the next renewal of the slots after a successful one."""
        self.is_lost = False
        self.due = now + max(_MIN_PAUSE, self.period / RENEWALS_PER_PERIOD)

    def on_unanswered(self, now: float) -> None:
        """Schedule an early retry after a renewal of the slots got no answer."""
        self.due = now + max(_MIN_PAUSE, self.period / _RETRIES_PER_PERIOD)

    def new_check(self) -> Batch:
        """Create a check that acquires new slots after the held ones have expired."""
        taken = self.release
        groups = [len(taken)] if len(taken) > 1 else []
        return Batch(Op.CHECK, taken.keys, taken.costs, groups, taken.limits, taken.which)


class HeldSlots:
    """All concurrency slots that this process renews, with the times of their renewal."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def origins(self) -> list[Batch]:
        """Return the release requests that decisions hold, without those of decisions that no
        longer exist."""
        found = [held.origin() for held in self._held.values()]
        return [origin for origin in found if origin is not None]

    def keep(self, release: Batch, period: float, now: float) -> None:
        """Start to renew the slots that the request `release` would release; they were acquired
        just now."""
        held = Held(replace(release), period, now, now, weakref.ref(release))
        held.on_renewed(now)
        self._held[id(release)] = held

    def stop_renewing(self, release: Batch, now: float) -> Batch:
        """Stop renewing slots; return the request that releases them and states how long they
        were held."""
        held = self._held.get(id(release))
        if held is None or held.origin() is not release:
            return release
        del self._held[id(release)]
        held.is_released = True
        age_ns = max(1, round((now - held.since) * 1e9))
        return replace(held.release, ages_ns=[age_ns] * len(release))

    def due(self, now: float) -> list[Held]:
        """Return the slots to renew now, and forget those whose decisions no longer exist."""
        for name, held in list(self._held.items()):
            if held.due <= now and held.origin() is None:
                del self._held[name]
        return [held for held in self._held.values() if held.due <= now]

    def next_due(self) -> float | None:
        """Return the time of the next renewal; None without slots."""
        return min([held.due for held in self._held.values()], default=None)
