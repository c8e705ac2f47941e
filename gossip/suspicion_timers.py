"""The suspicions that run: each ends in a verdict unless its member refutes it first."""

from gossip.member_table import MemberTable
from gossip.record import Record, Status
from gossip.settings import Settings
from gossip.suspicion import Suspicion
from gossip.timers import Due, Timers

__all__ = ["SuspicionTimers"]


class SuspicionTimers:
    """One suspicion at most for each member, and its timer."""

    def __init__(self, table: MemberTable, timers: Timers, settings: Settings) -> None:
        self._table = table
        self._timers = timers
        self._settings = settings
        self._running: dict[str, Suspicion] = {}

    def begin(self, record: Record, now: int) -> None:
        """Doubt a member from now on."""
        near = self._table.is_near(record)
        probing = self._settings.near if near else self._settings.far
        members = len(self._table.near) + (0 if near else len(self._table.far)) + 1
        suspicion = Suspicion.raised(now, probing, self._settings, members)
        suspicion.confirm(record.accuser)
        self._running[record.name] = suspicion
        self._timers.set((Due.SUSPICION, record.name), suspicion.deadline)

    def confirm(self, record: Record, now: int) -> bool:
        """Take another's word for a doubt that we share; whether it shortens ours."""
        suspicion = self._running.get(record.name)
        if record.status is not Status.SUSPECT or suspicion is None:
            return False
        if not suspicion.confirm(record.accuser):
            return False
        # It may end in the past by that: now, that is, and no sign that we have overslept.
        self._timers.set((Due.SUSPICION, record.name), max(now, suspicion.deadline))
        return True

    def drop(self, name: str) -> None:
        """Doubt a member no more."""
        if self._running.pop(name, None) is not None:
            self._timers.cancel((Due.SUSPICION, name))

    def restart(self, at: int) -> None:
        """Begin all doubts anew: what raised them may have been our own absence."""
        for name, suspicion in self._running.items():
            suspicion.began = at
            suspicion.accusers.clear()
            self._timers.set((Due.SUSPICION, name), suspicion.deadline)

    def postpone(self, by: int, *, no_sooner: int) -> None:
        """Give all doubts back the time in which we could not hear a refutation."""
        for name, suspicion in self._running.items():
            suspicion.began += max(by, no_sooner - suspicion.deadline)
            self._timers.set((Due.SUSPICION, name), suspicion.deadline)
