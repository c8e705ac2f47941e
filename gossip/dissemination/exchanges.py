"""Full exchanges of member lists (anti-entropy): at the start, periodically, and when digests
differ.

Decides when to exchange and with which member. `member_states` merges the lists.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

from gossip.dissemination.outbox import Outbox
from gossip.members.member_table import MemberTable, Pool
from gossip.members.record import Address
from gossip.settings import NS_PER_SECOND, Settings
from gossip.timers import Due, Timers

__all__ = ["Exchanges"]

_UNSCALED = 8
"""Up to this number of members, periodic exchanges keep their interval."""


class Exchanges:
    """Schedule of full exchanges of the member list, with a bounded rate."""

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
        """Addresses to contact; `set_seeds` replaces them."""
        self._table = table
        self._outbox = outbox
        self._timers = timers
        self._settings = settings
        self._random = random
        self._counters = counters
        self._last_at: int | None = None
        self._differs_since: dict[str, int] = {}
        """Start of the digest mismatch by member."""
        self._no_match_since: int | None = None
        """Time since which no member had an equal digest."""
        self._join_pause = settings.join_pause
        self._seeds_pause = settings.seeds_every
        """Seconds until a seed of an unknown member is contacted again."""

    def start(self, now: int) -> None:
        """Start the periodic exchanges of member lists."""
        for which in ("local_dc", "remote_dc"):
            self._timers.set((Due.EXCHANGE, which), now + self._regular_pause(which))

    def join(self, seeds: Sequence[Address], now: int) -> None:
        """Contact the given addresses now, and again until a member answers."""
        self.set_seeds(seeds)
        self._join_pause = self._settings.join_pause
        self.contact_seeds(now)

    def set_seeds(self, seeds: Sequence[Address]) -> None:
        """Replace the seed addresses, at which the first members are contacted."""
        self.seeds = tuple(dict.fromkeys(seeds))

    def contact_seeds(self, now: int) -> None:
        """Contact all seed addresses while no other member is known, otherwise one seed of an
        unknown member: soon after the first contact, which may have been with another new member,
        and later rarely."""
        if not self.seeds:
            return
        if self._table.is_alone:
            for seed in self.seeds:
                if seed != self._table.me.address:
                    self._ask(seed)
            self._timers.set((Due.JOIN, ""), now + self._jittered(self._join_pause))
            self._join_pause = min(self._settings.max_join_pause, 2 * self._join_pause)
            return
        self._join_pause = self._settings.join_pause
        self._timers.set((Due.JOIN, ""), now + self._jittered(self._seeds_pause))
        self._seeds_pause = min(self._settings.seeds_every, 2 * self._seeds_pause)
        known = {record.address for record in self._table.records.values() if not record.is_gone}
        unknown_seeds = [seed for seed in self.seeds if seed not in known]
        if unknown_seeds:
            self._ask(self._random.choice(unknown_seeds))

    def on_digest(self, sender: str, digest: int, now: int) -> None:
        """Exchange member lists with a sender whose digest has differed for longer than updates
        need to arrive."""
        record = self._table.get(sender)
        if digest == self._table.digest:
            self._differs_since.pop(sender, None)
            self._no_match_since = None
            return
        if record is None or record.is_gone:
            return
        if self._no_match_since is None:
            self._no_match_since = now
        since = min(self._differs_since.setdefault(sender, now), self._no_match_since)
        which = "local_dc" if self._table.is_in_local_dc(record) else "remote_dc"
        limit_ns = round(
            self._settings.mismatch_rounds
            * self._settings.probing(which).gossip_interval
            * NS_PER_SECOND
        )
        if now - since >= limit_ns and self._may_ask(now):
            self._differs_since.clear()
            self._no_match_since = None
            self._last_at = now
            self._ask(record.address)

    def start_regular(self, which: str, now: int) -> None:
        """Exchange member lists with a random member, to find differences that the digest does not
        show."""
        self._timers.set((Due.EXCHANGE, which), now + self._regular_pause(which))
        for name in self._pool(which).draw(1, self._random):
            self._ask(self._table.records[name].address)

    def ask_again_soon(self, now: int) -> None:
        """Schedule the next periodic exchanges early, after the first contact.

        The first list may lack other new members, and updates about them may no longer be sent.
        """
        for which in ("local_dc", "remote_dc"):
            self._timers.set((Due.EXCHANGE, which), now + self._jittered(self._settings.ask_again))
        if self.seeds:
            self._seeds_pause = self._settings.join_pause
            self._timers.set((Due.JOIN, ""), now + self._jittered(self._seeds_pause))

    def _ask(self, address: Address) -> None:
        self._counters["exchanges"] += 1
        self._outbox.exchange(address)

    def _may_ask(self, now: int) -> bool:
        pause = round(self._settings.exchange_pause * NS_PER_SECOND)
        return self._last_at is None or now - self._last_at >= pause

    def _regular_pause(self, which: str) -> int:
        scale = max(1.0, len(self._table.records) / _UNSCALED)
        return self._jittered(self._settings.probing(which).exchange_every * scale)

    def _pool(self, which: str) -> Pool:
        return self._table.local_dc if which == "local_dc" else self._table.remote_dc

    def _jittered(self, seconds: float) -> int:
        return round(seconds * (0.75 + 0.5 * self._random.random()) * NS_PER_SECOND)
