"""Clients that remember denials, and which: whoever ends a denial early must tell them.

Every denial that a listening client is told is noted until its time is over. When the notes are
full, the oldest denial is lifted although nothing has changed: its client asks again, and that is
all. A core, except that telling is a call that comes in from outside.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ringfence.limiter import Code
from ringfence.wire import Batch, Op, Results

__all__ = ["DenialSubscriptions"]

_DENIED = Code.DENIED.value
_MOST = 65_536
"""Denials noted at once, of all clients together."""
_LOOK_AT = 2
"""Oldest notes that each new one looks at, to drop them if they are over."""

WhoT = TypeVar("WhoT")


class DenialSubscriptions(Generic[WhoT]):
    """Who holds which denial. `tell(who, keys)` says that keys may pass; no keys stand for all."""

    def __init__(self, tell: Callable[[WhoT, list[bytes]], None], most: int = _MOST) -> None:
        self._tell = tell
        self._most = most
        self._listening: dict[WhoT, None] = {}
        self._until: OrderedDict[tuple[bytes, WhoT], int] = OrderedDict()
        self._holders: dict[bytes, dict[WhoT, None]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def listen(self, who: WhoT) -> None:
        """Note from now on what this client is denied."""
        self._listening[who] = None

    def listens(self, who: WhoT) -> bool:
        """Whether this client remembers denials."""
        return who in self._listening

    def left(self, who: WhoT) -> None:
        """The client is gone, and what it remembered with it."""
        if who in self._listening:
            del self._listening[who]
            for note in [note for note in self._until if note[1] is who]:
                self._drop(note)

    def denied(self, who: WhoT, batch: Batch, verdicts: Results, now: int) -> None:
        """Note what a client was just denied here."""
        codes = verdicts.outcomes.codes
        if who not in self._listening or batch.op is not Op.CHECK or _DENIED not in codes:
            return
        self._tidy(now)
        for row, code in enumerate(codes):
            if code == _DENIED:
                key = batch.keys[row]
                note = key, who
                self._until[note] = now + verdicts.outcomes.retry_after_ns[row]
                self._until.move_to_end(note)
                self._holders.setdefault(key, {})[who] = None
        while len(self._until) > self._most:
            note = next(iter(self._until))
            self._drop(note)
            self._tell(note[1], [note[0]])

    def unwatched(self, who: WhoT, batch: Batch, verdicts: Results) -> None:
        """Somebody else denied this, and will not tell the client when it ends: so it is over."""
        if who in self._listening and batch.op is Op.CHECK:
            codes = verdicts.outcomes.codes
            keys = [key for key, code in zip(batch.keys, codes, strict=True) if code == _DENIED]
            if keys:
                self._tell(who, keys)

    def lift(self, keys: Sequence[bytes]) -> None:
        """These keys were given something back: tell whoever believes them denied."""
        if not self._until:
            return
        told: dict[WhoT, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            for who in list(self._holders.get(key, ())):
                self._drop((key, who))
                told.setdefault(who, []).append(key)
        for who, lifted in told.items():
            self._tell(who, lifted)

    def lift_all(self) -> None:
        """Whatever was denied may pass, here or elsewhere: tell everybody."""
        told = dict.fromkeys(who for _, who in self._until)
        self._until.clear()
        self._holders.clear()
        for who in told:
            self._tell(who, [])

    def _tidy(self, now: int) -> None:
        for _ in range(_LOOK_AT):
            note = next(iter(self._until), None)
            if note is None or self._until[note] > now:
                return
            self._drop(note)

    def _drop(self, note: tuple[bytes, WhoT]) -> None:
        key, who = note
        self._until.pop(note, None)
        holders = self._holders.get(key)
        if holders is not None:
            holders.pop(who, None)
            if not holders:
                del self._holders[key]
