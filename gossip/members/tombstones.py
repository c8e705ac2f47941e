"""Tombstones of members that are dead or have left, and their expiry."""

from random import Random

from gossip.members.member_table import MemberTable
from gossip.members.record import Status
from gossip.settings import NS_PER_SECOND, Settings
from gossip.timers import Due, Timers

__all__ = ["Tombstones"]

_MAX_SCANNED = 16


class Tombstones:
    """Members that died or left, each with the time, and whether its record is still
    disseminated."""

    def __init__(self, timers: Timers, settings: Settings) -> None:
        self.quiet: dict[str, None] = {}
        """Members known only from full exchanges; they are not disseminated any further."""
        self._timers = timers
        self._settings = settings
        self._since: dict[str, int] = {}

    def add(self, name: str, now: int, *, is_seed: bool, is_quiet: bool) -> None:
        """Add a member that is dead or has left; seeds are kept longer."""
        self._since.pop(name, None)
        self._since[name] = now
        if is_quiet:
            self.quiet[name] = None
        lasts = self._settings.forget_seeds_after if is_seed else self._settings.forget_after
        self._timers.set((Due.FORGET, name), now + round(lasts * NS_PER_SECOND))

    def drop(self, name: str) -> None:
        """Remove a tombstone, because the member is back or no longer remembered."""
        if self._since.pop(name, None) is not None:
            self.quiet.pop(name, None)
            self._timers.cancel((Due.FORGET, name))

    def recent(self, now: int, table: MemberTable, random: Random) -> list[str]:
        """Return one member that was declared dead recently, if any; it may be alive and refute its
        death."""
        oldest = now - round(self._settings.gossip_to_dead * NS_PER_SECOND)
        names: list[str] = []
        for name in reversed(self._since):
            if self._since[name] < oldest or len(names) == _MAX_SCANNED:
                break
            if table.records[name].status is Status.DEAD:
                names.append(name)
        return [random.choice(names)] if names else []
