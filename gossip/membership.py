"""Who is in the cluster, as one member believes: SWIM with Lifeguard, without any I/O.

Facts come in by `receive`, `tick`, `merge` and the member's own wishes; what is to be done comes
out as effects. Times are ns on any clock that never goes back. Which member owns what follows from
`routed()` and is `hashring`'s to say; sealing, sockets and exchanges over QUIC are the shell's.

Source: SWIM (2002), Lifeguard (2017), and the troubles that users of their implementations
reported, each of which is a test.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import assert_never

from gossip.datagrams.codec import MAX_OWN_RECORD, record_size
from gossip.datagrams.messages import Ack, Gossip, Message, Nack, Ping, PingReq
from gossip.dissemination.exchanges import Exchanges
from gossip.dissemination.outbox import Outbox
from gossip.effects import Effect, Stamps
from gossip.failure_detection.prober import LocalHealth, Prober
from gossip.failure_detection.suspicion_timers import SuspicionTimers
from gossip.local_member import LocalMember
from gossip.members.member_table import MemberTable
from gossip.members.record import Address, Record, Status
from gossip.members.tombstones import Tombstones
from gossip.settings import ProbeSettings, Settings
from gossip.timers import Due, Timer, Timers

__all__ = ["Membership"]

_NS = 1_000_000_000
_FAR_FUTURE = (1 << 62) - 1


class Membership:
    """One member's belief. All calls come from one task; each returns what is to be done."""

    def __init__(
        self, me: Record, settings: Settings, random: Random, now: int, stamps: Stamps
    ) -> None:
        """Raises `ValueError` when the texts of `me` are too long together for a datagram."""
        if record_size(me) > MAX_OWN_RECORD:
            raise ValueError(
                f"name, address, data center, zone and version of {me.name!r} take "
                f"{record_size(me)} bytes; shorten them to {MAX_OWN_RECORD}"
            )
        self.counters: Counter[str] = Counter()
        """What has happened so far, by name."""
        self._settings = settings
        self._random = random
        self._table = MemberTable(me)
        self._timers = Timers()
        self._health = LocalHealth(settings.max_health, is_used=settings.local_health)
        self._outbox = Outbox(self._table, self._timers, settings, self.counters, now)
        self._prober = Prober(
            self._table,
            self._outbox,
            self._timers,
            self._health,
            settings,
            random,
            stamps,
            self.counters,
        )
        self._exchanges = Exchanges(
            self._table, self._outbox, self._timers, settings, random, self.counters
        )
        self._suspicion_timers = SuspicionTimers(self._table, self._timers, settings)
        self._tombstones = Tombstones(self._timers, settings)
        self._local_member = LocalMember(
            self._table, self._outbox, self._timers, self._health, settings, self.counters
        )
        self._late_until = now
        for which, probing in (("near", settings.near), ("far", settings.far)):
            self._timers.set((Due.PROBE, which), now + self._phase(probing.interval))
        self._timers.set((Due.ANNOUNCE, ""), now + self._phase(settings.announce_every))
        self._exchanges.start(now)

    # -- what is believed ----------------------------------------------------------------------

    @property
    def me(self) -> Record:
        """What this member says of itself."""
        return self._table.me

    @property
    def records(self) -> Mapping[str, Record]:
        """All members that are remembered, this one included."""
        return self._table.records

    def snapshot(self) -> list[Record]:
        """The records to tell in an exchange."""
        hushed = self._tombstones.hushed
        return [each for name, each in self._table.records.items() if name not in hushed]

    def routed(self) -> list[Record]:
        """The members that checks are sent to, sorted by name."""
        return [each for _, each in sorted(self._table.records.items()) if each.is_routed]

    def placed(self) -> list[Record]:
        """The members that counters belong to, sorted by name."""
        return [each for _, each in sorted(self._table.records.items()) if each.is_placed]

    @property
    def is_damped(self) -> bool:
        """Whether this member stays out of the ring for a while, being accused too often."""
        return self.me.forward_only and self._local_member.is_damped

    @property
    def datacenters_left(self) -> set[str]:
        """The data centers whose members have all left by their own will."""
        return self._table.datacenters_left()

    @property
    def digest(self) -> int:
        """Names what is believed in 64 bits; equal beliefs have equal digests."""
        return self._table.digest

    @property
    def health(self) -> int:
        """Lifeguard's local health multiplier: 0 is well, each step slows this member down."""
        return self._health.score

    @property
    def pending(self) -> int:
        """News that wait to be sent: at most one for each member and each of two queues."""
        return len(self._outbox.near) + len(self._outbox.far)

    def rtt_ns(self, name: str) -> int | None:
        """The smoothed round trip to a member, once it has been probed."""
        return self._prober.rtts.get(name)

    # -- own wishes ----------------------------------------------------------------------------

    def join(self, seeds: Sequence[Address], now: int) -> list[Effect]:
        """Look for members at these addresses, again and again while nobody else is known."""
        self._exchanges.join(seeds, now)
        return self._outbox.take()

    def set_seeds(self, seeds: Sequence[Address]) -> None:
        """Look at these addresses from now on: names may lead elsewhere after a while."""
        self._exchanges.seeds = tuple(dict.fromkeys(seeds))

    def become_alive(self, now: int) -> list[Effect]:
        """Take a place in the ring."""
        if self.me.status is Status.JOINING:
            self._local_member.say(now, status=Status.ALIVE)
        return self._outbox.take()

    def leave(self, now: int) -> list[Effect]:
        """Give the place in the ring up, and tell everybody near at once."""
        if self.me.status in (Status.JOINING, Status.ALIVE):
            self._local_member.say(now, status=Status.LEAVING)
            self._tell_all_near()
        return self._outbox.take()

    def left(self, now: int) -> list[Effect]:
        """Say goodbye for good; from now on this member is silent."""
        if not self._local_member.has_left:
            self._local_member.say(now, status=Status.LEFT)
            self._tell_all_near()
        return self._outbox.take()

    def set_forward_only(self, flag: bool, now: int) -> list[Effect]:
        """Leave the ring while still serving, or come back to it."""
        self._local_member.set_forward_only(flag, now)
        return self._outbox.take()

    def report_unreachable(self, name: str, now: int) -> list[Effect]:
        """Probe a member at once: the shell could not reach it."""
        record = self._table.get(name)
        if record is not None and not record.is_gone and record is not self.me:
            self._prober.begin(name, now)
        return self._outbox.take()

    # -- what comes in -------------------------------------------------------------------------

    def receive(self, message: Message, source: Address, now: int) -> list[Effect]:
        """Take a datagram's message."""
        if self._local_member.has_left or message.sender == self.me.name:
            self.counters["refused_own_name"] += not self._local_member.has_left
            return []
        self._notice_lag(now)
        for record in message.updates:
            self._hear(record, now, sender=message.sender, source=source)
        sender = self._table.get(message.sender)
        if sender is not None and sender.generation == message.generation:
            self._tell_the_accused(sender, message, source)
        match message:
            case Ping():
                self._prober.on_ping(message, source, now)
                self._exchanges.compare(message.sender, message.digest, now)
            case Ack():
                self._prober.on_ack(message, now)
                self._exchanges.compare(message.sender, message.digest, now)
            case PingReq():
                self._prober.on_ping_req(message, source, now)
            case Nack():
                self._prober.on_nack(message)
            case Gossip():
                pass
            case _:
                assert_never(message)
        return self._outbox.take()

    def merge(self, records: Iterable[Record], now: int) -> list[Effect]:
        """Take another member's list."""
        if not self._local_member.has_left:
            is_first = self._table.is_alone
            known = self._table.records
            for record in records:
                if known.get(record.name) is not record:  # Else it is known for sure.
                    self._merge_exchanged(record, now, is_first=is_first)
        return self._outbox.take()

    def next_deadline(self) -> int:
        """When `tick` has something to do."""
        at = self._timers.next_at()
        return _FAR_FUTURE if self._local_member.has_left or at is None else at

    def tick(self, now: int) -> list[Effect]:
        """Do what is due; harmless when early."""
        if not self._local_member.has_left:
            self._notice_lag(now)
            while (timer := self._timers.pop(now)) is not None:
                self._do(timer, now)
        return self._outbox.take()

    def _do(self, timer: Timer, now: int) -> None:
        match timer:
            case (Due.PROBE, str(which)):
                self._probe_next(which, now)
            case (Due.ASK_OTHERS, int(seq)):
                self._prober.ask_others(seq)
            case (Due.VERDICT, int(seq)):
                self._accuse(*self._prober.fail(seq), now)
            case (Due.NACK, int(seq)):
                self._prober.nack(seq)
            case (Due.RELAY_END, int(seq)):
                self._prober.end_relay(seq)
            case (Due.GOSSIP, str(which)):
                self._gossip(which, now)
            case (Due.SUSPICION, str(name)):
                self._declare_dead(name, now)
            case (Due.FORGET, str(name)):
                self._forget(name)
            case (Due.ANNOUNCE, _):
                self._announce(now)
            case (Due.EXCHANGE, str(which)):
                self._exchanges.regular(which, now)
            case (Due.JOIN, _):
                self._exchanges.look_for_seeds(now)
            case (Due.DAMPING, _):
                self._local_member.end_damping(now)

    # -- what is said of others ----------------------------------------------------------------

    def _hear(self, record: Record, now: int, *, sender: str, source: Address) -> None:
        """Take one saying from a message."""
        known = self._table.get(record.name)
        if record.name == self.me.name:
            self._local_member.hear(record, now)
        elif known is None or record.replaces(known):
            self._adopt(record, now)
        elif record.rank == known.rank:
            if self._suspicion_timers.confirm(record, now):
                self._outbox.spread(record, now)
        else:
            self.counters["updates_stale"] += 1
            if known.status in (Status.SUSPECT, Status.DEAD) and record.status <= Status.LEAVING:
                # Whoever still believes in it must hear what it is accused of: the accused, who may
                # not have heard itself, and alone can refute it, or somebody who passes it on.
                self._outbox.tell(source, known)

    def _merge_exchanged(self, record: Record, now: int, *, is_first: bool) -> None:
        """Take one saying from a list, which may be older than it looks.

        After a split each side's list holds the other side dead. Those words begin a suspicion
        only, so that nobody leaves the ring who is there to refute it. And what is said there of
        the dead that we forgot, or never knew, goes no further: else they would be told for ever.
        """
        known = self._table.get(record.name)
        if record.name == self.me.name:
            self._local_member.hear(record, now)
        elif known is None:
            self._adopt(record, now, is_hushed=record.is_gone, is_news=not is_first)
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
        self, record: Record, now: int, *, is_hushed: bool = False, is_news: bool = True
    ) -> None:
        """Believe this from now on, and pass it on."""
        before = self._table.get(record.name)
        was_gone = before is None or before.is_gone
        was_alone = self._table.is_alone
        self._table.put(record)
        if was_alone:
            # What we said of ourselves while alone, nobody heard.
            self._outbox.spread(self.me, now)
            self._exchanges.ask_again_soon(now)
        self._suspicion_timers.drop(record.name)
        if record.is_gone:
            is_seed = record.address in self._exchanges.seeds
            self._tombstones.add(record.name, now, is_seed=is_seed, is_hushed=is_hushed)
            self._prober.rtts.pop(record.name, None)
            self.counters["deaths"] += record.status is Status.DEAD and not was_gone
        else:
            self._tombstones.drop(record.name)
            if was_gone:
                rounds = self._prober.near if self._table.is_near(record) else self._prober.far
                rounds.add(record.name)
        if before is not None and before.status is Status.DEAD and not record.is_gone:
            self.counters["flaps"] += before.generation == record.generation
        if record.status is Status.SUSPECT:
            self._suspicion_timers.begin(record, now)
            self._start_indirect_probe(record, now)
        if is_news and not is_hushed:
            self._outbox.spread(record, now)
        self._outbox.changed(before, record)
        was_routed = before is not None and before.is_routed
        if was_routed and not record.is_routed and self._table.is_near(record):
            self._local_member.look_around(now)

    def _accuse(self, name: str, generation: int, now: int) -> None:
        """Hold a member's silence against it."""
        record = self._table.get(name)
        if record is None or record.is_gone or record.generation != generation:
            return
        accusation = replace(record, status=Status.SUSPECT, accuser=self.me.name)
        if record.status is not Status.SUSPECT:
            self.counters["suspicions"] += 1
            self._adopt(accusation, now)
        elif self._suspicion_timers.confirm(accusation, now):
            self._outbox.spread(accusation, now)
        if self._settings.buddy:
            # An accuser goes on asking: the answer to a ping that accuses is the refutation.
            self._outbox.tell(record.address, accusation)
            self._prober.begin(name, now)

    def _start_indirect_probe(self, record: Record, now: int) -> None:
        """Some of those who hear of a suspicion look for themselves, a few in the whole cluster."""
        if not self._settings.dynamic_suspicion or record.accuser == self.me.name:
            return
        likely = 2 * self._settings.confirmations / max(1, len(self._table.beside(record)))
        if self._table.is_near(record) and self._random.random() < likely:
            self._prober.begin(record.name, now)

    def _declare_dead(self, name: str, now: int) -> None:
        record = self._table.records[name]
        self._adopt(replace(record, status=Status.DEAD, accuser=self.me.name), now)

    def _tell_the_accused(self, sender: Record, message: Message, source: Address) -> None:
        """Answer whoever we hold for dead or suspect: it lives, and should refute that."""
        if isinstance(message, Ping):
            return  # The answer to a ping says it anyway.
        if sender.status is Status.DEAD or (
            sender.status is Status.SUSPECT and self._settings.buddy
        ):
            # Two that hold each other dead would answer accusations with accusations, without end:
            # whoever accuses us is told that we live. Nobody else is: a member that was started
            # again would hear of a thousand others one by one, and reckon its ring each time.
            is_accused = any([record.name == self.me.name for record in message.updates])
            self._outbox.tell(source, sender, *([self.me] if is_accused else []))

    def _forget(self, name: str) -> None:
        self._tombstones.drop(name)
        self._outbox.drop(name)
        self._table.forget(name)

    # -- when something is due -----------------------------------------------------------------

    def _probe_next(self, which: str, now: int) -> None:
        interval = round(self._probing(which).interval * _NS)
        self._timers.set((Due.PROBE, which), now + self._health.scaled(interval))
        rounds = self._prober.near if which == "near" else self._prober.far
        name = rounds.next()
        if name is not None:
            self._prober.begin(name, now)

    def _gossip(self, which: str, now: int) -> None:
        probing = self._probing(which)
        pool = self._table.near if which == "near" else self._table.far
        names = pool.draw(probing.gossip_fanout, self._random)
        if which == "near":
            names += self._tombstones.recent(now, self._table, self._random)
        self._outbox.gossip(which, names, probing, now)

    def _announce(self, now: int) -> None:
        """Speak to members held dead: after a split they are not, and will say so."""
        self._timers.set((Due.ANNOUNCE, ""), now + round(self._settings.announce_every * _NS))
        for name in self._table.dead.draw(self._settings.announce_to, self._random):
            record = self._table.records[name]
            self._outbox.tell(record.address, record, self.me)

    def _tell_all_near(self) -> None:
        for name in self._table.near:
            self._outbox.tell(self._table.records[name].address, self.me)

    def _notice_lag(self, now: int) -> None:
        """Hold against nobody what was missed while we could not look."""
        due = self.next_deadline()
        lag = now - max(due, self._late_until)
        if lag <= round(self._settings.lag * _NS):
            return
        self._late_until = now
        self._health.change(1)
        if not self._settings.own_pauses:
            return
        self._prober.abandon()
        interval = round(self._settings.near.interval * _NS)
        if lag > 2 * interval:
            self.counters["own_pauses"] += 1
            self._suspicion_timers.restart(now + interval)
        else:
            self._suspicion_timers.postpone(lag, no_sooner=now + interval)

    def _phase(self, interval: float) -> int:
        """When to begin: members that boot together should not do everything together for ever."""
        return round(self._random.random() * interval * _NS)

    def _probing(self, which: str) -> ProbeSettings:
        return self._settings.near if which == "near" else self._settings.far
