"""Cluster membership as one member sees it: SWIM with Lifeguard, without any I/O.

Inputs are `receive`, `tick`, `merge` and the requests of the local node. Outputs are effects.
Times are ns on a monotonic clock. The caller encrypts datagrams, owns the sockets and performs
full exchanges over QUIC.

Source: SWIM (2002), Lifeguard (2017), and problems that users of their implementations reported;
each of these problems has a test.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import assert_never

from gossip.datagrams.codec import MAX_OWN_RECORD, record_size
from gossip.datagrams.messages import Ack, Gossip, Message, Nack, Ping, PingReq
from gossip.dissemination.exchanges import Exchanges
from gossip.dissemination.outbox import Outbox
from gossip.effects import Effect, ProbeClock
from gossip.failure_detection.prober import LocalHealth, Prober
from gossip.local_member import LocalMember
from gossip.member_states import MemberStates
from gossip.members.member_table import MemberTable
from gossip.members.record import Address, Record, Status
from gossip.settings import NS_PER_SECOND, Settings
from gossip.timers import Due, Timer, Timers

__all__ = ["Membership"]

_FAR_FUTURE = (1 << 62) - 1
_REMOTE_RECEIVERS = 10
"""Members of other data centers that get the record of the last member of a data center."""


class Membership:
    """Membership state machine of one member. Each call returns the effects to perform.

    All calls must come from one task.
    """

    def __init__(
        self, me: Record, settings: Settings, random: Random, now: int, clock: ProbeClock
    ) -> None:
        """Raises `ValueError` when the name and the other texts of the local record `me` do not fit
        into a datagram."""
        _require_encodable(me)
        self.counters: Counter[str] = Counter()
        """Number of events so far, by name."""
        self._settings = settings
        self._random = random
        self._table = MemberTable(me)
        self._timers = Timers()
        self._health = LocalHealth(settings.max_health, is_used=settings.local_health)
        self._outbox = Outbox(self._table, self._timers, settings, self.counters, now)
        parts = self._table, self._outbox, self._timers
        counters = self.counters
        self._prober = Prober(*parts, self._health, settings, random, clock, counters)
        self._exchanges = Exchanges(*parts, settings, random, counters)
        self._local_member = LocalMember(*parts, self._health, settings, counters)
        others = self._prober, self._exchanges, self._local_member
        self._states = MemberStates(*parts, *others, settings, random, counters)
        self._late_until = now
        self._lag_ns = round(settings.lag * NS_PER_SECOND)
        self._start_timers(now)

    # -- state ---------------------------------------------------------------------------------

    @property
    def me(self) -> Record:
        """Membership record of this node."""
        return self._table.me

    @property
    def records(self) -> Mapping[str, Record]:
        """Records of all known members, including this one."""
        return self._table.records

    def snapshot(self) -> list[Record]:
        """Return the membership records to send in a full exchange of member lists."""
        quiet = self._states.tombstones.quiet
        return [each for name, each in self._table.records.items() if name not in quiet]

    def routed(self) -> list[Record]:
        """Return the members that receive checks, sorted by name."""
        return [each for _, each in sorted(self._table.records.items()) if each.is_routed]

    def placed(self) -> list[Record]:
        """Return the members that hold counters, sorted by name."""
        return [each for _, each in sorted(self._table.records.items()) if each.is_placed]

    @property
    def is_damped(self) -> bool:
        """Whether flap damping keeps this node out of the ring."""
        return self.me.forward_only and self._local_member.is_damped

    @property
    def datacenters_left(self) -> set[str]:
        """Data centers whose members have all left voluntarily."""
        return self._table.datacenters_left()

    @property
    def digest(self) -> int:
        """64-bit hash of the member table; equal tables have equal digests."""
        return self._table.digest

    @property
    def health(self) -> int:
        """Score of Lifeguard's local health: 0 is healthy, and each step makes probes slower."""
        return self._health.score

    @property
    def pending(self) -> int:
        """Number of membership updates in both queues; each queue has at most one update per
        member."""
        return len(self._outbox.local_dc) + len(self._outbox.remote_dc)

    def rtt_ns(self, name: str) -> int | None:
        """Return the smoothed round-trip time to a member; None before its first answer."""
        return self._prober.rtts.get(name)

    # -- requests of the local node ------------------------------------------------------------

    def found(self, records: Iterable[Record], now: int) -> list[Effect]:
        """Start with the records of all members of a new cluster; each member gets the same
        records.

        No record is disseminated, because no member lacks any. The members must be running.
        """
        for record in records:
            if record.name != self.me.name:
                self._table.put(record)
                self._outbox.changed(None, record)
        self._prober.resume(now)
        return self._outbox.take()

    def join(self, seeds: Sequence[Address], now: int) -> list[Effect]:
        """Contact members at the given addresses, repeatedly until another member is known."""
        self._exchanges.join(seeds, now)
        return self._outbox.take()

    def set_seeds(self, seeds: Sequence[Address]) -> None:
        """Replace the seed addresses, for example after a new DNS look-up."""
        self._exchanges.set_seeds(seeds)

    def become_alive(self, now: int) -> list[Effect]:
        """Announce that this node is alive, so that it joins the ring."""
        if self.me.status is Status.JOINING:
            self._local_member.update(now, status=Status.ALIVE)
        return self._outbox.take()

    def leave(self, now: int) -> list[Effect]:
        """Announce that this node is leaving the ring, first to the local data center."""
        if self.me.status in (Status.JOINING, Status.ALIVE):
            self._local_member.update(now, status=Status.LEAVING)
            self._send_own_record()
        return self._outbox.take()

    def left(self, now: int) -> list[Effect]:
        """Announce that this node has left the cluster. Afterwards, it only answers pings with its
        record, because the announcement may be lost."""
        if not self._local_member.has_left:
            self._local_member.update(now, status=Status.LEFT)
            self._send_own_record()
        return self._outbox.take()

    def set_forward_only(self, flag: bool, now: int) -> list[Effect]:
        """Leave the ring while still forwarding checks, or return to it."""
        self._local_member.set_forward_only(flag, now)
        return self._outbox.take()

    def report_unreachable(self, name: str, now: int) -> list[Effect]:
        """Probe a member now, because the caller could not reach it."""
        record = self._table.get(name)
        if record is not None and not record.is_gone and record is not self.me:
            self._prober.begin(name, now)
        return self._outbox.take()

    # -- inputs --------------------------------------------------------------------------------

    def receive(self, message: Message, source: Address, now: int) -> list[Effect]:
        """Process a gossip message from a datagram."""
        if message.sender == self.me.name:
            self.counters["refused_own_name"] += not self._local_member.has_left
            return []
        if self._local_member.has_left:
            if isinstance(message, Ping) and message.target == self.me.name:
                self._outbox.send_records(source, self.me)
            return self._outbox.take()
        self._notice_lag(now)
        for record in message.updates:
            self._states.on_update(record, now, sender=message.sender, source=source)
        sender = self._table.get(message.sender)
        if sender is not None and sender.generation == message.generation:
            self._states.notify_accused(sender, message, source)
        match message:
            case Ping():
                self._prober.on_ping(message, source, now)
                self._exchanges.on_digest(message.sender, message.digest, now)
            case Ack():
                self._prober.on_ack(message, now)
                self._exchanges.on_digest(message.sender, message.digest, now)
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
        """Merge the member list that another member sent in a full exchange."""
        if not self._local_member.has_left:
            is_first = self._table.is_alone
            known = self._table.records
            for record in records:
                if known.get(record.name) is not record:  # Members of one process share records.
                    self._states.on_exchanged(record, now, is_first=is_first)
        return self._outbox.take()

    def next_deadline(self) -> int:
        """Return the time when `tick` must be called next."""
        at = self._timers.next_at()
        return _FAR_FUTURE if self._local_member.has_left or at is None else at

    def tick(self, now: int) -> list[Effect]:
        """Run the timers that are due; has no effect when called early."""
        if not self._local_member.has_left:
            self._notice_lag(now)
            while (timer := self._timers.pop(now)) is not None:
                self._run_timer(timer, now)
        return self._outbox.take()

    def _run_timer(self, timer: Timer, now: int) -> None:
        match timer:
            case (Due.PROBE, str(which)):
                self._prober.probe_next(which, now)
            case (Due.INDIRECT_PROBE, int(seq)):
                self._prober.probe_indirectly(seq, now)
            case (Due.PROBE_TIMEOUT, int(seq)):
                self._states.on_probe_failed(*self._prober.fail(seq), now)
            case (Due.NACK, int(seq)):
                self._prober.send_nack(seq)
            case (Due.RELAY_END, int(seq)):
                self._prober.end_relay(seq)
            case (Due.GOSSIP, str(which)):
                self._gossip(which, now)
            case (Due.SUSPICION, str(name)):
                self._states.declare_dead(name, now)
            case (Due.FORGET, str(name)):
                self._states.forget(name)
            case (Due.ANNOUNCE, _):
                self._announce(now)
            case (Due.EXCHANGE, str(which)):
                self._exchanges.start_regular(which, now)
            case (Due.JOIN, _):
                self._exchanges.contact_seeds(now)
            case (Due.DAMPING, _):
                self._local_member.end_damping(now)

    # -- timers --------------------------------------------------------------------------------

    def _gossip(self, which: str, now: int) -> None:
        probing = self._settings.probing(which)
        pool = self._table.local_dc if which == "local_dc" else self._table.remote_dc
        names = pool.draw(probing.gossip_fanout, self._random)
        if which == "local_dc":
            names += self._states.tombstones.recent(now, self._table, self._random)
        self._outbox.gossip(which, names, probing, now)

    def _announce(self, now: int) -> None:
        """Contact dead members: they may be alive after a partition, and then they will answer."""
        self._timers.set(
            (Due.ANNOUNCE, ""), now + round(self._settings.announce_every * NS_PER_SECOND)
        )
        for name in self._table.dead.draw(self._settings.announce_to, self._random):
            record = self._table.records[name]
            self._outbox.send_records(record.address, record, self.me)

    def _send_own_record(self) -> None:
        """Send this member's record to its data center, and to others if no member stays here."""
        names, records = [*self._table.local_dc], self._table.records
        if all([records[name].status is Status.LEAVING for name in names]):
            names += self._table.remote_dc.draw(_REMOTE_RECEIVERS, self._random)
        for name in names:
            self._outbox.send_records(records[name].address, self.me)

    def _notice_lag(self, now: int) -> None:
        """Reset probes and suspicions if this process was paused."""
        due = self.next_deadline()
        lag = now - max(due, self._late_until)
        if lag <= self._lag_ns:
            return
        self._late_until = now
        self._health.change(1)
        if not self._settings.own_pauses:
            return
        self._prober.abandon()
        interval = round(self._settings.local_dc.interval * NS_PER_SECOND)
        if lag > 2 * interval:
            self.counters["own_pauses"] += 1
            self._states.suspicion_timers.restart(now + interval)
        else:
            self._states.suspicion_timers.postpone(lag, no_sooner=now + interval)

    def _start_timers(self, now: int) -> None:
        settings = self._settings
        for which, probing in (("local_dc", settings.local_dc), ("remote_dc", settings.remote_dc)):
            self._timers.set((Due.PROBE, which), now + _phase(probing.interval, self._random))
        self._timers.set((Due.ANNOUNCE, ""), now + _phase(settings.announce_every, self._random))
        self._exchanges.start(now)


def _require_encodable(me: Record) -> None:
    if record_size(me) > MAX_OWN_RECORD:
        raise ValueError(
            f"name, address, data center, zone and version of {me.name!r} take "
            f"{record_size(me)} bytes; shorten them to {MAX_OWN_RECORD}"
        )


def _phase(interval: float, random: Random) -> int:
    """Draw a random start for a periodic task, so that members do not act together."""
    return round(random.random() * interval * NS_PER_SECOND)
