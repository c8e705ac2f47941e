"""Probes of members, direct and indirect, and pings on behalf of other members.

Decides order and timing of probes. `member_states` handles members that do not answer.

Source: SWIM, sections 3.1 and 4.3; nacks and the events of local health are Lifeguard's.
"""

from collections import Counter
from random import Random

from msgspec import Struct

from gossip.datagrams.messages import Ack, Nack, Ping, PingReq
from gossip.dissemination.outbox import Outbox
from gossip.effects import ProbeClock
from gossip.members.member_table import MemberTable, Pool
from gossip.members.record import Address, Record, Status
from gossip.settings import NS_PER_SECOND, ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["LocalHealth", "Prober", "Rounds"]

_MAX_RELAYS = 256
_MAX_PROBES = 16
_SMOOTHING = 8
_SET_NS = 50_000_000
"""A cluster clock that gained more during a probe was set."""


class Rounds:
    """Order in which a set of members is probed: round-robin, shuffled for each round."""

    def __init__(self, pool: Pool, random: Random) -> None:
        self._pool = pool
        self._random = random
        self._ahead: list[str] = []

    def add(self, name: str) -> None:
        """Insert a new member at a random position among the members to probe in the current
        round."""
        self._ahead.insert(self._random.randrange(len(self._ahead) + 1), name)

    def next(self) -> str | None:
        """Return the next member to probe; None when the set is empty."""
        while self._ahead:
            name = self._ahead.pop()
            if name in self._pool:
                return name
        self._ahead = list(self._pool)
        self._random.shuffle(self._ahead)
        return self._ahead.pop() if self._ahead else None


class LocalHealth:
    """Local health multiplier of Lifeguard: a score from 0 (healthy) to `most`.

    A member that receives no answers may be the faulty one, so each step makes its probes slower.
    """

    def __init__(self, most: int, *, is_used: bool) -> None:
        self.score = 0
        self._most = most if is_used else 0

    def change(self, by: int) -> None:
        """Change the health score by a number of steps; a positive number is worse."""
        self.score = max(0, min(self._most, self.score + by))

    def scaled(self, duration_ns: int) -> int:
        """Multiply a duration by the current health score plus one."""
        return duration_ns * (1 + self.score)


class _SentPing(Struct, frozen=True):
    """Ping of a probe: its number, and the times at which it was sent."""

    seq: int
    at: int
    stamp: int
    """Time of the cluster's clock."""


class _Probe(Struct):
    """Running probe that has no answer yet."""

    target: str
    generation: int
    first: _SentPing
    second: _SentPing | None = None
    """Ping that was sent because the first one had no answer."""
    helpers: int = 0
    """Number of helpers that must answer with an ack or a nack."""
    nacks: int = 0

    def ping(self, seq: int) -> _SentPing:
        """Return the ping with a number; helpers use the number of the first one."""
        second = self.second
        return self.first if second is None or second.seq != seq else second


class _Relay(Struct, frozen=True):
    """Running indirect probe that another member requested."""

    requester: Address
    requester_name: str
    seq: int
    target: str


class Prober:
    """All running probes of this member, including indirect probes for other members."""

    def __init__(
        self,
        table: MemberTable,
        outbox: Outbox,
        timers: Timers,
        health: LocalHealth,
        settings: Settings,
        random: Random,
        clock: ProbeClock,
        counters: Counter[str],
    ) -> None:
        self.rtts: dict[str, int] = {}
        """Smoothed round trip by member, in ns."""
        self.local_dc = Rounds(table.local_dc, random)
        self.remote_dc = Rounds(table.remote_dc, random)
        self._table = table
        self._outbox = outbox
        self._timers = timers
        self._health = health
        self._settings = settings
        self._random = random
        self._clock = clock
        self._counters = counters
        self._seq = random.getrandbits(16)
        """Number of probes from a random start. Answers to an earlier process at this address do
        not match."""
        self._probes: dict[int, _Probe] = {}
        """By the number of the first ping."""
        self._second_pings: dict[int, int] = {}
        """Number of the first ping by that of the second one. An answer to the second ping must
        not measure the round trip from the first one."""
        self._running: dict[str, int] = {}
        self._relays: dict[int, _Relay] = {}
        self._paused_at: dict[str, int] = {}
        """Instant of the last timer of a set of members that was empty then."""

    def add(self, record: Record, now: int) -> None:
        """Include a new member in the current round of probes."""
        (self.local_dc if self._table.is_in_local_dc(record) else self.remote_dc).add(record.name)
        self.resume(now)

    def resume(self, now: int) -> None:
        """Set the timers of probes again for sets of members that are not empty any more."""
        pools = {"local_dc": self._table.local_dc, "remote_dc": self._table.remote_dc}
        for which, at in [*self._paused_at.items()]:
            if pools[which]:
                del self._paused_at[which]
                interval = round(self._settings.probing(which).interval * NS_PER_SECOND)
                # As if the timer had continued: new members are not probed at the same time.
                self._timers.set((Due.PROBE, which), at + ((now - at) // interval + 1) * interval)

    def probe_next(self, which: str, now: int) -> None:
        """Probe the next member of the local or of the other data centers, and schedule the
        following probe."""
        name = (self.local_dc if which == "local_dc" else self.remote_dc).next()
        if name is None:
            self._paused_at[which] = now  # `resume` sets the timer when there is a member.
            return
        interval = round(self._settings.probing(which).interval * NS_PER_SECOND)
        self._timers.set((Due.PROBE, which), now + self._health.scaled(interval))
        self.begin(name, now)

    def begin(self, name: str, now: int) -> None:
        """Start a probe of a member, unless a probe of it is already running."""
        target = self._table.get(name)
        if target is None or name in self._running or len(self._probes) >= _MAX_PROBES:
            return
        probing = self._probing(target)
        seq = self._next_seq()
        sent = _SentPing(seq, now, self._clock.read(now))
        self._probes[seq] = _Probe(name, target.generation, sent)
        self._running[name] = seq
        self._counters["probes"] += 1
        timeout = self._health.scaled(self._timeout(name, probing))
        interval = self._health.scaled(round(probing.interval * NS_PER_SECOND))
        self._timers.set((Due.INDIRECT_PROBE, seq), now + timeout)
        self._timers.set((Due.PROBE_TIMEOUT, seq), now + interval)
        self._ping(target, seq)

    def probe_indirectly(self, seq: int, now: int) -> None:
        """Ask helpers to ping a member that has not answered, and ping it again.

        The network path from this member may be broken, or a datagram may have been lost.
        """
        probe = self._probes[seq]
        target = self._table.get(probe.target)
        if target is None:
            return
        second = self._next_seq()
        probe.second = _SentPing(second, now, self._clock.read(now))
        self._second_pings[second] = seq
        self._ping(target, second)
        me = self._table.me
        request = PingReq(me.name, me.generation, seq, target.name, target.address)
        for name in self._helpers(target):
            probe.helpers += 1
            self._counters["indirect_probes"] += 1
            self._outbox.send_to(self._table.records[name], request)

    def fail(self, seq: int) -> tuple[str, int]:
        """End a probe that had no answer; return the name and generation of the probed member."""
        probe = self._end(seq)
        self._counters["probes_failed"] += 1
        # Helpers that did not answer indicate that this member may be at fault.
        self._health.change(probe.helpers - probe.nacks if probe.helpers else 1)
        return probe.target, probe.generation

    def abandon(self) -> None:
        """Cancel all running probes and draw no conclusion from them, because this process was
        paused."""
        for seq in list(self._probes):
            self._end(seq)

    def on_ping(self, ping: Ping, source: Address, now: int) -> None:
        """Answer a ping if it is addressed to this member."""
        me = self._table.me
        if ping.target != me.name:
            self._counters["refused_not_me"] += 1
            return  # The ping is for an earlier node at this address.
        is_accused = any(record.name == me.name for record in ping.updates)
        ack = Ack(me.name, me.generation, ping.seq, self._table.digest, self._clock.read(now))
        sender = self._table.get(ping.sender)
        self._outbox.send(source, sender, ack, (me,) if is_accused else ())

    def on_ack(self, ack: Ack, now: int) -> None:
        """Process an answer to a probe, or forward it to the member that requested an indirect
        probe."""
        relay = self._relays.pop(ack.seq, None)
        if relay is not None and relay.target == ack.sender:
            self._relay_ack(relay, ack)
            return
        seq = self._second_pings.get(ack.seq, ack.seq)
        probe = self._probes.get(seq)
        if probe is None or (ack.sender == probe.target and ack.generation < probe.generation):
            return
        self._end(seq)
        self._health.change(-1)
        if ack.sender == probe.target:
            self._measure(ack, probe.ping(ack.seq), now)
        else:
            self._counters["saved_indirectly"] += 1

    def on_nack(self, nack: Nack) -> None:
        """Record that a helper also received no answer from the probed member."""
        probe = self._probes.get(nack.seq)
        if probe is not None and probe.nacks < probe.helpers:
            probe.nacks += 1
            self._counters["nacks"] += 1

    def on_ping_req(self, request: PingReq, source: Address, now: int) -> None:
        """Ping a third member, because another member requested it."""
        if len(self._relays) >= _MAX_RELAYS:
            self._counters["refused_relays"] += 1
            return
        target = self._table.get(request.target)
        probing = self._settings.local_dc if target is None else self._probing(target)
        seq = self._next_seq()
        self._relays[seq] = _Relay(source, request.sender, request.seq, request.target)
        waits = round(self._settings.nack_share * probing.timeout * NS_PER_SECOND)
        self._timers.set((Due.NACK, seq), now + waits)
        self._timers.set((Due.RELAY_END, seq), now + round(probing.interval * NS_PER_SECOND))
        me = self._table.me
        ping = Ping(me.name, me.generation, seq, request.target, self._table.digest)
        self._outbox.send(request.address, target, ping)

    def send_nack(self, seq: int) -> None:
        """Report to the member that requested an indirect probe that the probed member has not
        answered."""
        relay = self._relays.get(seq)
        if relay is not None:
            me = self._table.me
            nack = Nack(me.name, me.generation, relay.seq)
            self._outbox.send(relay.requester, self._table.get(relay.requester_name), nack)

    def end_relay(self, seq: int) -> None:
        """End an indirect probe on behalf of another member."""
        self._relays.pop(seq, None)

    def _relay_ack(self, relay: _Relay, ack: Ack) -> None:
        me = self._table.me
        relayed = Ack(me.name, me.generation, relay.seq, self._table.digest, 0)
        requester = self._table.get(relay.requester_name)
        target = self._table.get(ack.sender)
        is_update = target is not None and target.name in {each.name for each in ack.updates}
        first = (target,) if target and is_update else ()
        self._outbox.send(relay.requester, requester, relayed, first)

    def _measure(self, ack: Ack, sent: _SentPing, now: int) -> None:
        rtt = max(0, now - sent.at - ack.delay)
        known = self.rtts.get(ack.sender, rtt)
        self.rtts[ack.sender] = ((_SMOOTHING - 1) * known + rtt) // _SMOOTHING
        passed, lasted = self._clock.read(now) - sent.stamp, now - sent.at
        if not 0 <= passed <= lasted + _SET_NS:
            return  # The local clock was set during the probe, so the sample is useless.
        # A clock whose host was set back stands still, so `passed` may be less than `lasted`.
        offset = ack.stamp - sent.stamp - passed + lasted - rtt // 2
        self._clock.sample(ack.sender, offset, rtt, now)

    def _helpers(self, target: Record) -> list[str]:
        """Choose helpers for an indirect probe: members of the target's data center, then of the
        local one."""

        def can_help(name: str) -> bool:
            return name != target.name and self._table.records[name].status is not Status.SUSPECT

        count = self._settings.indirect
        candidates = self._table.pool_of(target).draw(count, self._random, can_help)
        if len(candidates) < count and not self._table.is_in_local_dc(target):
            candidates += self._table.local_dc.draw(count - len(candidates), self._random, can_help)
        return candidates

    def _timeout(self, name: str, probing: ProbeSettings) -> int:
        most = round(probing.timeout * NS_PER_SECOND)
        rtt = self.rtts.get(name)
        if rtt is None:
            return most
        return min(most, max(3 * rtt, round(probing.min_timeout * NS_PER_SECOND)))

    def _ping(self, target: Record, seq: int) -> None:
        me = self._table.me
        ping = Ping(me.name, me.generation, seq, target.name, self._table.digest)
        self._outbox.send_to(target, ping)

    def _probing(self, target: Record) -> ProbeSettings:
        return (
            self._settings.local_dc
            if self._table.is_in_local_dc(target)
            else self._settings.remote_dc
        )

    def _end(self, seq: int) -> _Probe:
        probe = self._probes.pop(seq)
        if probe.second is not None:
            del self._second_pings[probe.second.seq]
        del self._running[probe.target]
        self._timers.cancel((Due.INDIRECT_PROBE, seq))
        self._timers.cancel((Due.PROBE_TIMEOUT, seq))
        return probe

    def _next_seq(self) -> int:
        self._seq = (self._seq + 1) & 0xFFFFFFFF
        return self._seq
