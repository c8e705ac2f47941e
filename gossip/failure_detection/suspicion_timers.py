"""Suspicions of members and their time-outs: a member is declared dead unless it refutes in time.

The more members share a suspicion, the shorter is its time-out. Source: Lifeguard, section "dynamic
suspicion timeouts".
"""

from math import log, log10

from msgspec import Struct, field

from gossip.members.member_table import MemberTable
from gossip.members.record import Record, Status
from gossip.settings import NS_PER_SECOND, ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["Suspicion", "SuspicionTimers"]


class SuspicionTimers:
    """Suspicions and their timers; at most one suspicion for each member."""

    def __init__(self, table: MemberTable, timers: Timers, settings: Settings) -> None:
        self._table = table
        self._timers = timers
        self._settings = settings
        self._running: dict[str, Suspicion] = {}

    def begin(self, record: Record, now: int) -> None:
        """Start a suspicion of a member, and its timer."""
        local_dc = self._table.is_in_local_dc(record)
        probing = self._settings.local_dc if local_dc else self._settings.remote_dc
        members = len(self._table.local_dc) + (0 if local_dc else len(self._table.remote_dc)) + 1
        suspicion = Suspicion.raised(now, probing, self._settings, members)
        suspicion.confirm(record.accuser)
        self._running[record.name] = suspicion
        self._timers.set((Due.SUSPICION, record.name), suspicion.deadline)

    def confirm(self, record: Record, now: int) -> bool:
        """Record that one more member shares a suspicion; return whether this shortens the
        time-out."""
        suspicion = self._running.get(record.name)
        if record.status is not Status.SUSPECT or suspicion is None:
            return False
        if not suspicion.confirm(record.accuser):
            return False
        # The new deadline may be in the past. Use `now`, so that it does not look like a pause.
        self._timers.set((Due.SUSPICION, record.name), max(now, suspicion.deadline))
        return True

    def drop(self, name: str) -> None:
        """Cancel the suspicion of a member and its timer."""
        if self._running.pop(name, None) is not None:
            self._timers.cancel((Due.SUSPICION, name))

    def restart(self, at: int) -> None:
        """Restart the time-outs of all suspicions, because a pause of this process may have caused
        them."""
        for name, suspicion in self._running.items():
            suspicion.began = at
            suspicion.accusers.clear()
            self._timers.set((Due.SUSPICION, name), suspicion.deadline)

    def postpone(self, by: int, *, no_sooner: int) -> None:
        """Extend the time-outs of all suspicions by the time in which no refutation could be
        received."""
        for name, suspicion in self._running.items():
            suspicion.began += max(by, no_sooner - suspicion.deadline)
            self._timers.set((Due.SUSPICION, name), suspicion.deadline)


class Suspicion(Struct):
    """Suspicion of one member. At `deadline` the member is declared dead, unless it refutes. Times
    in ns."""

    began: int
    least: int
    most: int
    wanted: int
    """Number of confirmations that shorten the time-out to `least`."""
    accusers: dict[str, None] = field(default_factory=dict)

    @classmethod
    def raised(
        cls, now: int, probing: ProbeSettings, settings: Settings, members: int
    ) -> "Suspicion":
        """Create a suspicion in a group of `members` members, including this member and the
        suspect."""
        least = probing.suspicion_factor * max(1.0, log10(max(1, members))) * probing.interval
        wanted = 0
        if settings.dynamic_suspicion:
            wanted = max(0, min(settings.confirmations, members - 2))
            if wanted == 0:
                least *= 2  # No other member can confirm it.
        most = probing.suspicion_max_factor * least
        return cls(now, round(least * NS_PER_SECOND), round(most * NS_PER_SECOND), wanted)

    @property
    def deadline(self) -> int:
        """Time at which the suspect is declared dead."""
        confirmations = max(0, len(self.accusers) - 1)
        if confirmations >= self.wanted:
            return self.began + self.least
        share = log(confirmations + 1) / log(self.wanted + 1)
        return self.began + round(self.most - share * (self.most - self.least))

    def confirm(self, accuser: str) -> bool:
        """Record that the member `accuser` shares the suspicion; return whether this shortens the
        time-out."""
        if not accuser or accuser in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers[accuser] = None
        return True
