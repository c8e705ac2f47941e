"""Reports of the decisions that this process made: to which member, and which one is sent again.

One report is under way at a time. A report without an answer may have been counted, so it goes to
the same member again, under the same number, for as long as that member is there. A core: members
and time come in by calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringfence.client.local_cache.local_decisions import Counted, LocalDecisions
from ringfence.wire import Done, Message, Report

__all__ = ["Reporting"]

_GIVE_UP_S = 30.0
"""Seconds without an answer after which another member gets the report, which then may be counted
twice: the first one is a member still, but out of this client's reach."""


class Member(Protocol):
    """A member that can be sent a report."""

    @property
    def name(self) -> str:
        """The member's name."""

    def report(self, make: Callable[[int], Message], on_reply: Callable[[object], None]) -> None:
        """Send the message that `make` builds for a number; pass on its reply, or None."""


@dataclass(slots=True)
class _Pending:
    number: int
    counted: Counted
    first_at: float
    member: str = ""
    """Name of the member that it was sent to."""


class Reporting:
    """Sends what a tally counted. `collect` fills the tally just before it is read."""

    def __init__(
        self,
        tally: LocalDecisions,
        client: int,
        collect: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """`client` is the random number of this process."""
        self._tally = tally
        self._client = client
        self._collect = collect
        self._now = now
        self._number = 0
        self._pending: _Pending | None = None
        self._preferred = ""
        self.is_under_way = False
        """Whether a member was sent a report and has not answered."""

    @property
    def has_any(self) -> bool:
        """Whether decisions wait for a report or for its answer."""
        self._collect()
        return self._pending is not None or bool(self._tally)

    def send(
        self, members: Sequence[Member], known: Sequence[str], done: Callable[[bool], None]
    ) -> bool:
        """Send one report, if there is anything to report; return whether a report has left.

        `members` can be reached now, `known` are the names of all members that are not gone. `done`
        receives whether the member has counted it.
        """
        if self.is_under_way:
            return False
        self._collect()
        if self._pending is None:
            counted = self._tally.take()
            if counted is None:
                return False
            self._number += 1
            self._pending = _Pending(self._number, counted, self._now())
        pending = self._pending
        member = self._choose(pending, members, known)
        if member is None:
            return False
        pending.member = self._preferred = member.name
        self.is_under_way = True

        def on_reply(reply: object) -> None:
            self.is_under_way = False
            is_counted = isinstance(reply, Done)
            if is_counted:
                self._pending = None
            done(is_counted)

        member.report(lambda seq: _report(seq, self._client, pending), on_reply)
        return True

    def _choose(
        self, pending: _Pending, members: Sequence[Member], known: Sequence[str]
    ) -> Member | None:
        """Choose the member that has perhaps counted it, else the one that got the last report."""
        by_name = {member.name: member for member in members}
        if pending.member in by_name:
            return by_name[pending.member]
        is_patient = self._now() < pending.first_at + _GIVE_UP_S
        if not members or (pending.member in known and is_patient):
            return None
        if self._preferred in by_name:
            return by_name[self._preferred]
        return members[self._client % len(members)]  # Clients spread over the members.


def _report(seq: int, client: int, pending: _Pending) -> Report:
    rows = pending.counted.rows
    return Report(
        seq,
        client,
        pending.number,
        pending.counted.named,
        [key for (key, _, _), _ in rows],
        [code for (_, code, _), _ in rows],
        [source for (_, _, source), _ in rows],
        [count for _, count in rows],
    )
