"""What is to be done, gathered in order; and which news ride on which message.

Decides what goes into a message besides its own words. Whom to write to is decided elsewhere.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gossip.datagrams.codec import room_for_updates
from gossip.datagrams.messages import Gossip, Message
from gossip.dissemination.updates import Updates, transmissions
from gossip.effects import Changed, Conflict, Effect, Exchange, Send
from gossip.members.member_table import MemberTable
from gossip.members.record import Address, Record, Status
from gossip.settings import ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["Outbox"]

_NS = 1_000_000_000


class Outbox:
    """The effects of the call that runs, and the news that wait for a message to ride on."""

    def __init__(
        self,
        table: MemberTable,
        timers: Timers,
        settings: Settings,
        counters: Counter[str],
        now: int,
    ) -> None:
        self.near = Updates()
        """News for the own data center."""
        self.far = Updates()
        """News for the others: counted apart, since gossip there is slower."""
        self._table = table
        self._timers = timers
        self._settings = settings
        self._counters = counters
        self._quiet_until = {"near": now, "far": now}
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Give the effects gathered so far, once."""
        effects, self._effects = self._effects, []
        return effects

    def spread(self, record: Record, now: int) -> None:
        """Let everybody hear this: at once, unless other news were sent a moment ago."""
        if self._table.near or self._table.far:
            self.near.add(record)
            self._plan("near", now)
        if self._table.far:
            self.far.add(record)
            self._plan("far", now)

    def gossip(self, which: str, names: Iterable[str], probing: ProbeSettings, now: int) -> None:
        """Send the news that wait to these members, and plan the next time if some are left."""
        news = self.near if which == "near" else self.far
        self._quiet_until[which] = now + round(probing.gossip_interval * _NS)
        me = self._table.me
        is_sent = False
        for name in names:
            if news:
                self.write(self._table.records[name], Gossip(me.name, me.generation))
                is_sent = True
        if news and is_sent:
            self._plan(which, now)

    def drop(self, name: str) -> None:
        """Spread nothing of a member any more."""
        self.near.drop(name)
        self.far.drop(name)

    def write(self, member: Record, message: Message, first: Iterable[Record] = ()) -> None:
        """Send to a member, with as much news as fits."""
        self.answer(member.address, member, message, first)

    def answer(
        self, to: Address, member: Record | None, message: Message, first: Iterable[Record] = ()
    ) -> None:
        """Send to an address, `first` of all these records, then what is held against the member.

        Telling a suspect what it must refute is the buddy system of Lifeguard.
        """
        if member is not None and self._is_to_be_told(member):
            first = (*first, member)
        is_far = member is not None and not self._table.is_near(member)
        news = self.far if is_far else self.near
        if news or first:
            limit = transmissions(self._settings.retransmit, len(self._table.records))
            updates = news.take(room_for_updates(message), limit, first)
            self._counters["updates_sent"] += len(updates)
            message = replace(message, updates=updates)
        self._effects.append(Send(to, message))

    def tell(self, to: Address, *records: Record) -> None:
        """Send these records, and nothing else."""
        me = self._table.me
        self._effects.append(Send(to, Gossip(me.name, me.generation, records)))

    def exchange(self, with_: Address) -> None:
        """Ask for a full exchange."""
        self._effects.append(Exchange(with_))

    def changed(self, before: Record | None, after: Record) -> None:
        """Report a change."""
        self._effects.append(Changed(before, after))

    def conflict(self, other: Record, *, steps_down: bool) -> None:
        """Report that another node has our name."""
        self._effects.append(Conflict(other, steps_down))

    def _plan(self, which: str, now: int) -> None:
        if (Due.GOSSIP, which) not in self._timers:
            self._timers.set((Due.GOSSIP, which), max(now, self._quiet_until[which]))

    def _is_to_be_told(self, member: Record) -> bool:
        is_suspect = member.status is Status.SUSPECT
        return member.status is Status.DEAD or (is_suspect and self._settings.buddy)
