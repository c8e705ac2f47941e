"""Effects (messages and reports) of one call of the membership state machine, and queues of
piggybacked updates.

Decides which updates a message carries. The callers choose the recipients.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from gossip.datagrams.codec import room_for_updates
from gossip.datagrams.messages import Gossip, Message
from gossip.dissemination.updates import Updates, transmissions
from gossip.effects import Changed, Conflict, Effect, Exchange, Send
from gossip.members.member_table import MemberTable
from gossip.members.record import Address, Record, Status
from gossip.settings import NS_PER_SECOND, ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["Outbox"]


class Outbox:
    """Effects that a call of the membership state machine collects, and two queues of membership
    updates."""

    def __init__(
        self,
        table: MemberTable,
        timers: Timers,
        settings: Settings,
        counters: Counter[str],
        now: int,
    ) -> None:
        self.local_dc = Updates()
        """Updates for the local data center."""
        self.remote_dc = Updates()
        """Updates for other data centers, where gossip is slower."""
        self._table = table
        self._timers = timers
        self._settings = settings
        self._counters = counters
        self._quiet_until = {"local_dc": now, "remote_dc": now}
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Return and remove the collected effects: messages to send and changes to report."""
        effects, self._effects = self._effects, []
        return effects

    def disseminate(self, record: Record, now: int) -> None:
        """Send a membership record to all members, now or with the next gossip message if one was
        just sent."""
        if self._table.local_dc or self._table.remote_dc:
            self.local_dc.add(record)
            self._schedule_gossip("local_dc", now)
        if self._table.remote_dc:
            self.remote_dc.add(record)
            self._schedule_gossip("remote_dc", now)

    def gossip(self, which: str, names: Iterable[str], probing: ProbeSettings, now: int) -> None:
        """Send queued membership updates to the named members; schedule another round if updates
        are left."""
        queue = self.local_dc if which == "local_dc" else self.remote_dc
        self._quiet_until[which] = now + round(probing.gossip_interval * NS_PER_SECOND)
        me = self._table.me
        is_sent = False
        for name in names:
            if queue:
                self.send_to(self._table.records[name], Gossip(me.name, me.generation))
                is_sent = True
        if queue and is_sent:
            self._schedule_gossip(which, now)

    def drop(self, name: str) -> None:
        """Stop sending the record of a member to other members."""
        self.local_dc.drop(name)
        self.remote_dc.drop(name)

    def send_to(self, member: Record, message: Message, first: Iterable[Record] = ()) -> None:
        """Send a message to a member, with as many queued membership updates as fit."""
        self.send(member.address, member, message, first)

    def send(
        self, to: Address, member: Record | None, message: Message, first: Iterable[Record] = ()
    ) -> None:
        """Send a message to an address, with piggybacked membership updates.

        The records `first` come first, then an accusation of the receiving member, if any. A
        suspect receives the accusation that it must refute: this is the buddy system of Lifeguard.
        """
        if member is not None and self._needs_accusation(member):
            first = (*first, member)
        is_in_remote_dc = member is not None and not self._table.is_in_local_dc(member)
        queue = self.remote_dc if is_in_remote_dc else self.local_dc
        if queue or first:
            limit = transmissions(self._settings.retransmit, len(self._table.records))
            updates = queue.take(room_for_updates(message), limit, first)
            self._counters["updates_sent"] += len(updates)
            message = replace(message, updates=updates)
        self._effects.append(Send(to, message))

    def send_records(self, to: Address, *records: Record) -> None:
        """Send the given membership records to an address, without queued updates."""
        me = self._table.me
        self._effects.append(Send(to, Gossip(me.name, me.generation, records)))

    def exchange(self, with_: Address) -> None:
        """Request a full exchange of member lists with an address."""
        self._effects.append(Exchange(with_))

    def changed(self, before: Record | None, after: Record) -> None:
        """Report to the caller that a membership record has changed."""
        self._effects.append(Changed(before, after))

    def conflict(self, other: Record, *, steps_down: bool) -> None:
        """Report to the caller that another node uses the name of this node."""
        self._effects.append(Conflict(other, steps_down))

    def _schedule_gossip(self, which: str, now: int) -> None:
        if (Due.GOSSIP, which) not in self._timers:
            self._timers.set((Due.GOSSIP, which), max(now, self._quiet_until[which]))

    def _needs_accusation(self, member: Record) -> bool:
        is_suspect = member.status is Status.SUSPECT
        return member.status is Status.DEAD or (is_suspect and self._settings.buddy)
