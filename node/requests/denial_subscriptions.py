"""Subscriptions of clients that cache denials: the node revokes a denial that ends early.

Every denial for a subscribed client is recorded until its retry time. When the records are full,
the oldest denial is revoked, and its client checks again. A core; the call that sends revocations
is injected.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ringfence.limiter import Code
from ringfence.wire import Batch, Op, Results

__all__ = ["DenialSubscriptions"]

_DENIED = Code.DENIED.value
_MOST = 65_536
"""Most denials that are recorded, of all clients together."""
_LOOK_AT = 2
"""Oldest records that each new record checks for expiry."""

WhoT = TypeVar("WhoT")


class DenialSubscriptions(Generic[WhoT]):
    """Recorded denials by client. `tell(who, keys)` revokes the denials of keys; an empty list
    means all."""

    def __init__(self, tell: Callable[[WhoT, list[bytes]], None], most: int = _MOST) -> None:
        self._tell = tell
        self._most = most
        self._listening: dict[WhoT, None] = {}
        self._until: OrderedDict[tuple[bytes, WhoT], int] = OrderedDict()
        self._holders: dict[bytes, dict[WhoT, None]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def listen(self, who: WhoT) -> None:
        """Subscribe this client: record its denials from now on."""
        self._listening[who] = None

    def listens(self, who: WhoT) -> bool:
        """Whether this client is subscribed, because it caches denials."""
        return who in self._listening

    def left(self, who: WhoT) -> None:
        """Remove a client that has disconnected."""
        if who in self._listening:
            del self._listening[who]
            for note in [note for note in self._until if note[1] is who]:
                self._drop(note)

    def denied(self, who: WhoT, batch: Batch, verdicts: Results, now: int) -> None:
        """Record the denials of a batch that this node decided for a client."""
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
        """Revoke denials that another member decided for a subscribed client.

        The client has no subscription at that member.
        """
        if who in self._listening and batch.op is Op.CHECK:
            codes = verdicts.outcomes.codes
            keys = [key for key, code in zip(batch.keys, codes, strict=True) if code == _DENIED]
            if keys:
                self._tell(who, keys)

    def lift(self, keys: Sequence[bytes]) -> None:
        """Revoke the denials of keys that were refunded or reset."""
        if not self._until:
            return
        revoked: dict[WhoT, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            for who in list(self._holders.get(key, ())):
                self._drop((key, who))
                revoked.setdefault(who, []).append(key)
        for who, lifted in revoked.items():
            self._tell(who, lifted)

    def lift_all(self) -> None:
        """Revoke all denials of all clients."""
        revoked = dict.fromkeys(who for _, who in self._until)
        self._until.clear()
        self._holders.clear()
        for who in revoked:
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
