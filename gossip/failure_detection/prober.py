"""Whom to probe, what came of it, and pings on behalf of others.

Decides order and timing of probes. What a silent member means is for `membership` to say.

Source: SWIM, sections 3.1 and 4.3; nacks and the events of local health are Lifeguard's.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

from gossip.datagrams.messages import Ack, Nack, Ping, PingReq
from gossip.dissemination.outbox import Outbox
from gossip.effects import Stamps
from gossip.members.member_table import MemberTable, Pool
from gossip.members.record import Address, Record, Status
from gossip.settings import ProbeSettings, Settings
from gossip.timers import Due, Timers

__all__ = ["LocalHealth", "Prober", "Rounds"]

_NS = 1_000_000_000
_MOST_RELAYS = 256
_MOST_PROBES = 16
_SMOOTHING = 8
_SET_NS = 50_000_000
"""By so much the time of the cluster and that of probes never part in one probe by themselves."""


class Rounds:
    """Goes round a set of members in an order that is drawn anew for each round."""

    def __init__(self, pool: Pool, random: Random) -> None:
        self._pool = pool
        self._random = random
        self._ahead: list[str] = []

    def add(self, name: str) -> None:
        """Let a new member have its turn at a random place of the present round."""
        self._ahead.insert(self._random.randrange(len(self._ahead) + 1), name)

    def next(self) -> str | None:
        """Whose turn it is; None when there is nobody."""
        while self._ahead:
            name = self._ahead.pop()
            if name in self._pool:
                return name
        self._ahead = list(self._pool)
        self._random.shuffle(self._ahead)
        return self._ahead.pop() if self._ahead else None


class LocalHealth:
    """Local health multiplier of Lifeguard: a score from 0 (healthy) to `most`.

    A member that receives no answers should first doubt itself, so each step makes probes slower.
    """

    def __init__(self, most: int, *, is_used: bool) -> None:
        self.score = 0
        self._most = most if is_used else 0

    def change(self, by: int) -> None:
        """Worsen by a positive number of steps, recover by a negative one."""
        self.score = max(0, min(self._most, self.score + by))

    def scaled(self, duration_ns: int) -> int:
        """How long something that takes `duration_ns` when well may take now."""
        return duration_ns * (1 + self.score)


@dataclass(slots=True)
class _Probe:
    """A question that one member has not answered yet."""

    target: str
    generation: int
    sent_at: int
    stamp: int
    helpers: int = 0
    """Members that were asked to ping it, each of which owes an ack or a nack."""
    nacks: int = 0


@dataclass(frozen=True, slots=True)
class _Relay:
    """Somebody waits for our word on a third."""

    asker: Address
    asker_name: str
    seq: int
    target: str


class Prober:
    """The probes that run, ours and those on behalf of others."""

    def __init__(
        self,
        table: MemberTable,
        outbox: Outbox,
        timers: Timers,
        health: LocalHealth,
        settings: Settings,
        random: Random,
        stamps: Stamps,
        counters: Counter[str],
    ) -> None:
        self.rtts: dict[str, int] = {}
        """Smoothed round trip to each member that answered, in ns."""
        self.near = Rounds(table.near, random)
        self.far = Rounds(table.far, random)
        self._table = table
        self._outbox = outbox
        self._timers = timers
        self._health = health
        self._settings = settings
        self._random = random
        self._stamps = stamps
        self._counters = counters
        self._seq = random.getrandbits(16)
        """Answers to an earlier life at the same address must not be taken for ours."""
        self._probes: dict[int, _Probe] = {}
        self._running: dict[str, int] = {}
        self._relays: dict[int, _Relay] = {}

    def begin(self, name: str, now: int) -> None:
        """Probe a member, unless it is being probed."""
        target = self._table.get(name)
        if target is None or name in self._running or len(self._probes) >= _MOST_PROBES:
            return
        probing = self._probing(target)
        seq = self._next_seq()
        self._probes[seq] = _Probe(name, target.generation, now, self._stamps.read(now))
        self._running[name] = seq
        self._counters["probes"] += 1
        patience = self._health.scaled(self._patience(name, probing))
        interval = self._health.scaled(round(probing.interval * _NS))
        self._timers.set((Due.ASK_OTHERS, seq), now + patience)
        self._timers.set((Due.VERDICT, seq), now + interval)
        self._ping(target, seq)

    def ask_others(self, seq: int) -> None:
        """Have others ping a member that has not answered: perhaps only our way there is bad.

        And ping it once more, for a datagram may be lost, and a small data center has few others.
        """
        probe = self._probes[seq]
        target = self._table.get(probe.target)
        if target is None:
            return
        self._ping(target, seq)
        me = self._table.me
        request = PingReq(me.name, me.generation, seq, target.name, target.address)
        for name in self._helpers(target):
            probe.helpers += 1
            self._counters["indirect_probes"] += 1
            self._outbox.write(self._table.records[name], request)

    def fail(self, seq: int) -> tuple[str, int]:
        """End a probe that nobody answered; returns the member's name and generation."""
        probe = self._end(seq)
        self._counters["probes_failed"] += 1
        # Helpers that say nothing at all are a sign that it is we who do not hear.
        self._health.change(probe.helpers - probe.nacks if probe.helpers else 1)
        return probe.target, probe.generation

    def abandon(self) -> None:
        """End all probes without a verdict: we were away while the answers came."""
        for seq in list(self._probes):
            self._end(seq)

    def on_ping(self, ping: Ping, source: Address, now: int) -> None:
        """Answer, if it is we who are meant."""
        me = self._table.me
        if ping.target != me.name:
            self._counters["refused_not_me"] += 1
            return  # Meant for whoever had this address before.
        accused = any(record.name == me.name for record in ping.updates)
        ack = Ack(me.name, me.generation, ping.seq, self._table.digest, self._stamps.read(now))
        sender = self._table.get(ping.sender)
        self._outbox.answer(source, sender, ack, (me,) if accused else ())

    def on_ack(self, ack: Ack, now: int) -> None:
        """Take an answer, to us or to somebody we asked for."""
        relay = self._relays.pop(ack.seq, None)
        if relay is not None and relay.target == ack.sender:
            self._pass_on(relay, ack)
            return
        probe = self._probes.get(ack.seq)
        if probe is None or (ack.sender == probe.target and ack.generation < probe.generation):
            return
        self._end(ack.seq)
        self._health.change(-1)
        if ack.sender == probe.target:
            self._measure(ack, probe, now)
        else:
            self._counters["saved_indirectly"] += 1

    def on_nack(self, nack: Nack) -> None:
        """Take a helper's word that it heard nothing either."""
        probe = self._probes.get(nack.seq)
        if probe is not None and probe.nacks < probe.helpers:
            probe.nacks += 1
            self._counters["nacks"] += 1

    def on_ping_req(self, request: PingReq, source: Address, now: int) -> None:
        """Ping a third member for somebody."""
        if len(self._relays) >= _MOST_RELAYS:
            self._counters["refused_relays"] += 1
            return
        target = self._table.get(request.target)
        probing = self._settings.near if target is None else self._probing(target)
        seq = self._next_seq()
        self._relays[seq] = _Relay(source, request.sender, request.seq, request.target)
        waits = round(self._settings.nack_share * probing.timeout * _NS)
        self._timers.set((Due.NACK, seq), now + waits)
        self._timers.set((Due.RELAY_END, seq), now + round(probing.interval * _NS))
        me = self._table.me
        ping = Ping(me.name, me.generation, seq, request.target, self._table.digest)
        self._outbox.answer(request.address, target, ping)

    def nack(self, seq: int) -> None:
        """Tell an asker that the third has not answered so far."""
        relay = self._relays.get(seq)
        if relay is not None:
            me = self._table.me
            nack = Nack(me.name, me.generation, relay.seq)
            self._outbox.answer(relay.asker, self._table.get(relay.asker_name), nack)

    def end_relay(self, seq: int) -> None:
        """Wait no longer for a third member."""
        self._relays.pop(seq, None)

    def _pass_on(self, relay: _Relay, ack: Ack) -> None:
        me = self._table.me
        passed_on = Ack(me.name, me.generation, relay.seq, self._table.digest, 0)
        asker = self._table.get(relay.asker_name)
        target = self._table.get(ack.sender)
        is_news = target is not None and target.name in {each.name for each in ack.updates}
        self._outbox.answer(relay.asker, asker, passed_on, (target,) if target and is_news else ())

    def _measure(self, ack: Ack, probe: _Probe, now: int) -> None:
        rtt = max(0, now - probe.sent_at - ack.delay)
        known = self.rtts.get(ack.sender, rtt)
        self.rtts[ack.sender] = ((_SMOOTHING - 1) * known + rtt) // _SMOOTHING
        passed = self._stamps.read(now) - probe.stamp
        if abs(passed - (now - probe.sent_at)) > _SET_NS:
            return  # Our clock was set meanwhile, and tells nothing of theirs.
        offset = ack.stamp - (probe.stamp + rtt // 2)
        self._stamps.sample(ack.sender, offset, rtt, now)

    def _helpers(self, target: Record) -> list[str]:
        """Those beside the target know best whether it is there; else those beside us."""

        def can_help(name: str) -> bool:
            return name != target.name and self._table.records[name].status is not Status.SUSPECT

        count = self._settings.indirect
        beside = self._table.beside(target).draw(count, self._random, can_help)
        if len(beside) < count and not self._table.is_near(target):
            beside += self._table.near.draw(count - len(beside), self._random, can_help)
        return beside

    def _patience(self, name: str, probing: ProbeSettings) -> int:
        most = round(probing.timeout * _NS)
        rtt = self.rtts.get(name)
        if rtt is None:
            return most
        return min(most, max(3 * rtt, round(probing.least_timeout * _NS)))

    def _ping(self, target: Record, seq: int) -> None:
        me = self._table.me
        ping = Ping(me.name, me.generation, seq, target.name, self._table.digest)
        self._outbox.write(target, ping)

    def _probing(self, target: Record) -> ProbeSettings:
        return self._settings.near if self._table.is_near(target) else self._settings.far

    def _end(self, seq: int) -> _Probe:
        probe = self._probes.pop(seq)
        del self._running[probe.target]
        self._timers.cancel((Due.ASK_OTHERS, seq))
        self._timers.cancel((Due.VERDICT, seq))
        return probe

    def _next_seq(self) -> int:
        self._seq = (self._seq + 1) & 0xFFFFFFFF
        return self._seq
