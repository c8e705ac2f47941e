"""When to ask for another member's whole list: at the start, on a difference, now and then.

Decides when and with whom; what the lists change is for `membership` to say.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

from gossip.dissemination.outbox import Outbox
from gossip.members.member_table import MemberTable, Pool
from gossip.members.record import Address
from gossip.settings import ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["Exchanges"]

_NS = 1_000_000_000
_UNSCALED = 8
"""Up to so many members, regular exchanges keep their interval."""


class Exchanges:
    """Asks for exchanges, seldom enough."""

    def __init__(
        self,
        table: MemberTable,
        outbox: Outbox,
        timers: Timers,
        settings: Settings,
        random: Random,
        counters: Counter[str],
    ) -> None:
        self.seeds: tuple[Address, ...] = ()
        self._table = table
        self._outbox = outbox
        self._timers = timers
        self._settings = settings
        self._random = random
        self._counters = counters
        self._last_at: int | None = None
        self._differs_since: dict[str, int] = {}
        """By member: those who believe as we do say nothing of the others."""
        self._nobody_agrees_since: int | None = None
        """Among many members it takes long until one is heard of again."""
        self._join_pause = settings.join_pause

    def start(self, now: int) -> None:
        """Begin the regular exchanges."""
        for which in ("near", "far"):
            self._timers.set((Due.EXCHANGE, which), now + self._regular_pause(which))

    def join(self, seeds: Sequence[Address], now: int) -> None:
        """Look for members at these addresses, at once and until one is found."""
        self.seeds = tuple(dict.fromkeys(seeds))
        self._join_pause = self._settings.join_pause
        self.look_for_seeds(now)

    def look_for_seeds(self, now: int) -> None:
        """Ask all seeds while we know nobody; later one that is no member, if there is any."""
        if not self.seeds:
            return
        if self._table.is_alone:
            for seed in self.seeds:
                if seed != self._table.me.address:
                    self._ask(seed)
            self._timers.set((Due.JOIN, ""), now + self._jittered(self._join_pause))
            self._join_pause = min(self._settings.join_pause_most, 2 * self._join_pause)
            return
        self._join_pause = self._settings.join_pause
        self._timers.set((Due.JOIN, ""), now + self._jittered(self._settings.seeds_every))
        known = {record.address for record in self._table.records.values() if not record.is_gone}
        strangers = [seed for seed in self.seeds if seed not in known]
        if strangers:
            self._ask(self._random.choice(strangers))

    def compare(self, sender: str, digest: int, now: int) -> None:
        """Notice that others believe something else for longer than news take to arrive."""
        record = self._table.get(sender)
        if digest == self._table.digest:
            self._differs_since.pop(sender, None)
            self._nobody_agrees_since = None
            return
        if record is None or record.is_gone:
            return
        if self._nobody_agrees_since is None:
            self._nobody_agrees_since = now
        since = min(self._differs_since.setdefault(sender, now), self._nobody_agrees_since)
        which = "near" if self._table.is_near(record) else "far"
        patience = round(
            self._settings.mismatch_rounds * self._probing(which).gossip_interval * _NS
        )
        if now - since >= patience and self._may_ask(now):
            self._differs_since.clear()
            self._nobody_agrees_since = None
            self._last_at = now
            self._ask(record.address)

    def regular(self, which: str, now: int) -> None:
        """Ask anybody, for what a digest does not tell."""
        self._timers.set((Due.EXCHANGE, which), now + self._regular_pause(which))
        for name in self._pool(which).draw(1, self._random):
            self._ask(self._table.records[name].address)

    def ask_again_soon(self, now: int) -> None:
        """Bring the next regular exchanges forward, now that we know somebody.

        What another newcomer said while nobody had heard of us may be too new for the list that we
        were given, and too old to be told any longer.
        """
        for which in ("near", "far"):
            self._timers.set((Due.EXCHANGE, which), now + self._jittered(self._settings.ask_again))

    def _ask(self, address: Address) -> None:
        self._counters["exchanges"] += 1
        self._outbox.exchange(address)

    def _may_ask(self, now: int) -> bool:
        pause = round(self._settings.exchange_pause * _NS)
        return self._last_at is None or now - self._last_at >= pause

    def _regular_pause(self, which: str) -> int:
        scale = max(1.0, len(self._table.records) / _UNSCALED)
        return self._jittered(self._probing(which).exchange_every * scale)

    def _pool(self, which: str) -> Pool:
        return self._table.near if which == "near" else self._table.far

    def _probing(self, which: str) -> ProbeSettings:
        return self._settings.near if which == "near" else self._settings.far

    def _jittered(self, seconds: float) -> int:
        return round(seconds * (0.75 + 0.5 * self._random.random()) * _NS)
