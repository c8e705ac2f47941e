"""Total of the bytes that all sessions have sent and their peers have not acknowledged.

Decides which connections a node closes when the total exceeds its limit: those without progress for
the longest time, clients before members. Each session enforces its own limit.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

__all__ = ["MAX_UNSENT", "UnacknowledgedBytes"]

MAX_UNSENT = 32 << 20
"""Bytes that all sessions of a node may leave unacknowledged together."""
_KEPT = 0.75
"""Part of the bound to which the total is brought, so that not every message needs room made."""


class _Sending(Protocol):
    @property
    def unsent(self) -> int:
        """Number of bytes that were sent to the peer and not acknowledged."""

    @property
    def is_member(self) -> bool:
        """Whether the peer is a node of the cluster."""


SessionT = TypeVar("SessionT", bound=_Sending)


class _Account(Struct):
    noted: int = 0
    """Unacknowledged bytes at the last update."""
    moved_at: int = 0
    """Number of the look at which the peer was last seen to acknowledge something."""


class UnacknowledgedBytes(Generic[SessionT]):
    """Unacknowledged bytes of all sessions, and their limit.

    A call takes constant time; only when the limit is reached are all sessions examined.
    """

    def __init__(self, give_up: Callable[[SessionT], None], most: int = MAX_UNSENT) -> None:
        """`give_up` closes a session, which must then call `left`."""
        self.total = 0
        """Unacknowledged bytes of all sessions, as of the last look at each."""
        self._give_up = give_up
        self._most = most
        self._looks = 0
        self._accounts: dict[SessionT, _Account] = {}

    def sent(self, session: SessionT, size: int, unsent: int) -> None:
        """Count a message of `size` bytes; close slow sessions when the total exceeds the limit.

        `unsent` is the number of unacknowledged bytes of this session.
        """
        account = self._accounts.get(session)
        if account is None:
            if not unsent:
                return  # Closed meanwhile, or already acknowledged.
            account = self._accounts[session] = _Account()
        self._looks += 1
        if not account.noted or unsent <= account.noted + size:
            account.moved_at = self._looks  # A length prefix came on top of `size`.
        self.total += unsent - account.noted
        account.noted = unsent
        if self.total > self._most:
            self._make_room()

    def left(self, session: SessionT) -> None:
        """Remove a session whose connection has ended."""
        account = self._accounts.pop(session, None)
        if account is not None:
            self.total -= account.noted

    def _make_room(self) -> None:
        for session, account in self._accounts.items():
            unsent = session.unsent
            if unsent < account.noted:
                self.total += unsent - account.noted
                account.noted, account.moved_at = unsent, self._looks
        if self.total <= self._most:
            return
        waiting = [each for each in self._accounts.items() if each[1].noted]
        waiting.sort(key=lambda each: (each[0].is_member, each[1].moved_at))
        for session, _ in waiting:
            if self.total <= self._most * _KEPT:
                break
            self._give_up(session)
