"""The dead and the departed: how long they are remembered, told of, and spoken to."""

from random import Random

from gossip.members.member_table import MemberTable
from gossip.members.record import Status
from gossip.settings import Settings
from gossip.timers import Due, Timers

__all__ = ["Tombstones"]

_NS = 1_000_000_000
_LOOK_AT = 16


class Tombstones:
    """Members that are gone, since when, and whether others are told."""

    def __init__(self, timers: Timers, settings: Settings) -> None:
        self.hushed: dict[str, None] = {}
        """Those heard of in an exchange only: others are not told, lest no one ever forgets."""
        self._timers = timers
        self._settings = settings
        self._since: dict[str, int] = {}

    def add(self, name: str, now: int, *, is_seed: bool, is_hushed: bool) -> None:
        """Remember a member that is gone, a seed for longer."""
        self._since.pop(name, None)
        self._since[name] = now
        if is_hushed:
            self.hushed[name] = None
        lasts = self._settings.forget_seeds_after if is_seed else self._settings.forget_after
        self._timers.set((Due.FORGET, name), now + round(lasts * _NS))

    def drop(self, name: str) -> None:
        """Let go of a member: it is back, or forgotten."""
        if self._since.pop(name, None) is not None:
            self.hushed.pop(name, None)
            self._timers.cancel((Due.FORGET, name))

    def recent(self, now: int, table: MemberTable, random: Random) -> list[str]:
        """One of those that died a moment ago, if any: it may hear of it and refute it."""
        oldest = now - round(self._settings.gossip_to_dead * _NS)
        names: list[str] = []
        for name in reversed(self._since):
            if self._since[name] < oldest or len(names) == _LOOK_AT:
                break
            if table.records[name].status is Status.DEAD:
                names.append(name)
        return [random.choice(names)] if names else []
