"""Suspicions of members and their time-outs: each suspicion ends in a death unless it is refuted.

The more members share a suspicion, the sooner it times out.
Source: Lifeguard, section "dynamic suspicion timeouts".
"""

from dataclasses import dataclass, field
from math import log, log10

from gossip.members.member_table import MemberTable
from gossip.members.record import Record, Status
from gossip.settings import ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["Suspicion", "SuspicionTimers"]

_NS = 1_000_000_000


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


@dataclass(slots=True)
class Suspicion:
    """Ends at `deadline` unless the member refutes it; times in ns."""

    began: int
    least: int
    most: int
    wanted: int
    """Confirmations after which it lasts no longer than `least`."""
    accusers: dict[str, None] = field(default_factory=dict)

    @classmethod
    def raised(
        cls, now: int, probing: ProbeSettings, settings: Settings, members: int
    ) -> "Suspicion":
        """Doubt one of so many `members`, ourselves and the suspect counted."""
        least = probing.suspicion_factor * max(1.0, log10(max(1, members))) * probing.interval
        if not settings.dynamic_suspicion:
            return cls(now, round(least * _NS), round(least * _NS), 0)
        wanted = max(0, min(settings.confirmations, members - 2))
        if wanted == 0:
            # Nobody can confirm it: be twice as patient instead.
            return cls(now, round(2 * least * _NS), round(2 * least * _NS), 0)
        most = probing.suspicion_stretch * least
        return cls(now, round(least * _NS), round(most * _NS), wanted)

    @property
    def deadline(self) -> int:
        """When the member is declared dead."""
        confirmations = max(0, len(self.accusers) - 1)
        if confirmations >= self.wanted:
            return self.began + self.least
        share = log(confirmations + 1) / log(self.wanted + 1)
        return self.began + round(self.most - share * (self.most - self.least))

    def confirm(self, accuser: str) -> bool:
        """Take a member's doubt; whether it is another one that shortens this."""
        if not accuser or accuser in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers[accuser] = None
        return True
