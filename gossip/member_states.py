"""State changes of other members: from records, failed probes and expired suspicions.

Decides which record replaces another, when a suspicion starts, and which members are informed.
"""

from collections import Counter
from dataclasses import replace
from random import Random

from gossip.datagrams.messages import Message, Ping
from gossip.dissemination.exchanges import Exchanges
from gossip.dissemination.outbox import Outbox
from gossip.failure_detection.prober import Prober
from gossip.failure_detection.suspicion_timers import SuspicionTimers
from gossip.local_member import LocalMember
from gossip.members.member_table import MemberTable
from gossip.members.record import Address, Record, Status
from gossip.members.tombstones import Tombstones
from gossip.settings import Settings
from gossip.timers import Timers

__all__ = ["MemberStates"]


class MemberStates:
    """State machine that applies records and probe results to the member table."""

    def __init__(
        self,
        table: MemberTable,
        outbox: Outbox,
        timers: Timers,
        prober: Prober,
        exchanges: Exchanges,
        local_member: LocalMember,
        settings: Settings,
        random: Random,
        counters: Counter[str],
    ) -> None:
        self.suspicion_timers = SuspicionTimers(table, timers, settings)
        self.tombstones = Tombstones(timers, settings)
        self._table = table
        self._outbox = outbox
        self._prober = prober
        self._exchanges = exchanges
        self._local_member = local_member
        self._settings = settings
        self._random = random
        self._counters = counters

    def on_update(self, record: Record, now: int, *, sender: str, source: Address) -> None:
        """Apply a membership record that was received with a message."""
        known = self._table.get(record.name)
        if record.name == self._table.me.name:
            me = self._table.me
            is_refuted = record.generation == me.generation and record.rank < me.rank
            self._local_member.on_record(record, now)
            if is_refuted and record.status in (Status.SUSPECT, Status.DEAD):
                self._outbox.send_records(source, me)  # The sender has missed the refutation.
        elif known is None or record.replaces(known):
            self._adopt(record, now)
        elif record.rank == known.rank:
            if self.suspicion_timers.confirm(record, now):
                self._outbox.disseminate(record, now)
        else:
            self._counters["updates_stale"] += 1
            if known.status in (Status.SUSPECT, Status.DEAD) and record.status <= Status.LEAVING:
                # The sender has an older record. Only the accused can refute the accusation, so the
                # sender, which is the accused or can forward it, must receive the newer record.
                self._outbox.send_records(source, known)

    def on_exchanged(self, record: Record, now: int, *, is_first: bool) -> None:
        """Apply a membership record from a full exchange, which may be outdated.

        After a partition, each side lists the other side as dead. Such a record only starts a
        suspicion, which a living member can refute before it leaves the ring. Records of unknown
        dead members are not disseminated, because otherwise no member would ever forget them.
        """
        known = self._table.get(record.name)
        if record.name == self._table.me.name:
            self._local_member.on_record(record, now)
        elif known is None:
            self._adopt(record, now, is_quiet=record.is_gone, is_news=not is_first)
        elif record.replaces(known):
            if record.status is Status.DEAD and record.generation == known.generation:
                if known.is_gone:
                    return
                record = replace(record, status=Status.SUSPECT, accuser="")
                if not record.replaces(known):
                    return
                self._prober.begin(record.name, now)
            self._adopt(record, now)

    def _adopt(
        self, record: Record, now: int, *, is_quiet: bool = False, is_news: bool = True
    ) -> None:
        """Store a record in the member table and disseminate it."""
        before = self._table.get(record.name)
        was_gone = before is None or before.is_gone
        was_alone = self._table.is_alone
        self._table.put(record)
        if was_alone:
            # No other member received our record while we were alone.
            self._outbox.disseminate(self._table.me, now)
            self._exchanges.ask_again_soon(now)
        self.suspicion_timers.drop(record.name)
        if record.is_gone:
            is_seed = record.address in self._exchanges.seeds
            self.tombstones.add(record.name, now, is_seed=is_seed, is_quiet=is_quiet)
            self._prober.rtts.pop(record.name, None)
            self._counters["deaths"] += record.status is Status.DEAD and not was_gone
        else:
            self.tombstones.drop(record.name)
            if was_gone:
                self._prober.add(record, now)
        if before is not None and before.status is Status.DEAD and not record.is_gone:
            self._counters["flaps"] += before.generation == record.generation
        if record.status is Status.SUSPECT:
            self.suspicion_timers.begin(record, now)
            self._start_indirect_probe(record, now)
        if is_news and not is_quiet:
            self._outbox.disseminate(record, now)
        self._outbox.changed(before, record)
        was_routed = before is not None and before.is_routed
        if was_routed and not record.is_routed and self._table.is_in_local_dc(record):
            self._local_member.on_ring_change(now)

    def on_probe_failed(self, name: str, generation: int, now: int) -> None:
        """Suspect a member that did not answer a probe, or confirm an existing suspicion."""
        record = self._table.get(name)
        if record is None or record.is_gone or record.generation != generation:
            return
        # A leaving member has probably ended. As a suspect of the ring, it would get shards again.
        has_ended = record.status is Status.LEAVING
        accusation = replace(
            record,
            status=Status.SUSPECT,
            accuser=self._table.me.name,
            forward_only=record.forward_only or has_ended,
        )
        if record.status is not Status.SUSPECT:
            self._counters["suspicions"] += 1
            self._adopt(accusation, now)
        elif self.suspicion_timers.confirm(accusation, now):
            self._outbox.disseminate(accusation, now)
        if self._settings.buddy:
            # The accuser keeps probing: the answer to a ping with an accusation is a refutation.
            self._outbox.send_records(record.address, accusation)
            self._prober.begin(name, now)

    def _start_indirect_probe(self, record: Record, now: int) -> None:
        """Probe a suspected member at random, such that only a few members of the data center probe
        it."""
        if not self._settings.dynamic_suspicion or record.accuser == self._table.me.name:
            return
        probability = 2 * self._settings.confirmations / max(1, len(self._table.pool_of(record)))
        if self._table.is_in_local_dc(record) and self._random.random() < probability:
            self._prober.begin(record.name, now)

    def declare_dead(self, name: str, now: int) -> None:
        """Declare a member dead when its suspicion timed out."""
        record = self._table.records[name]
        self._adopt(replace(record, status=Status.DEAD, accuser=self._table.me.name), now)

    def notify_accused(self, sender: Record, message: Message, source: Address) -> None:
        """Send a member its record if that calls it dead or suspect, so that the member can refute
        it."""
        if isinstance(message, Ping):
            return  # The answer to a ping carries the record anyway.
        if sender.status is Status.DEAD or (
            sender.status is Status.SUSPECT and self._settings.buddy
        ):
            # Two members that consider each other dead would exchange accusations forever, so a
            # sender that accuses us also receives our record. Other senders do not: a restarted
            # member would receive a thousand records one by one and compute its ring each time.
            accuses_us = any([record.name == self._table.me.name for record in message.updates])
            self._outbox.send_records(source, sender, *([self._table.me] if accuses_us else []))

    def forget(self, name: str) -> None:
        """Remove the record of a member that has been dead or absent for long enough."""
        self.tombstones.drop(name)
        self._outbox.drop(name)
        self._table.forget(name)
