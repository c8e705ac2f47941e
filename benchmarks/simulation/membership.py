"""Membership in virtual time: detection time of a crash, idle traffic, and false deaths.

Only the membership core runs. Messages take an injected delay or are lost, and time between two
events costs nothing. Every history follows from its seed, so `--rounds` changes the seeds, not the
measurement error.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random
from statistics import median

from benchmarks.reporting.figure import Figure
from gossip import (
    Address,
    Changed,
    Conflict,
    Effect,
    Exchange,
    Membership,
    Message,
    Record,
    Send,
    Settings,
    Status,
    encode,
    pack_records,
)

__all__ = ["run"]

SIZES = (10, 100, 1000)
NS = 1_000_000_000
AGREED = 0.9999
SEAL_BYTES = 48
PACKET_BYTES = 28
"""Bytes of the UDP and IPv4 headers."""
CRASHES = {10: 20, 100: 10, 1000: 2}
"""Crashes per round, each in a separate cluster, because the time of the first detection varies."""
SETTLE_S = 2.0
IDLE_S = 20.0
STALLED_SHARE = 0.1
STALL_S = (0.5, 30.0)
AWAKE_S = (0.05, 2.0)
STALLS_LAST_S = {10: 300.0, 100: 120.0, 1000: 20.0}


def run(rounds: int) -> Iterator[Figure]:
    """Measure clusters of each size, with Lifeguard and with SWIM only."""
    for size in SIZES:
        for name, settings in (("", Settings.lan()), ("swim.", Settings.lan().without_lifeguard())):
            prefix = f"membership.{name}"
            first, agreed = _crashes(size, settings, rounds)
            yield _figure(f"{prefix}detect_p50_s_{size}", "s", first, median(first))
            yield _figure(f"{prefix}detect_worst_s_{size}", "s", first, max(first))
            yield _figure(f"{prefix}agree_s_{size}", "s", agreed, median(agreed))
            wronged, by_anyone = _stalls(size, settings)
            yield _figure(f"{prefix}healthy_dead_by_healthy_{size}", "members", [wronged], wronged)
            yield _figure(f"{prefix}healthy_dead_by_any_{size}", "members", [by_anyone], by_anyone)
        idle = [_idle(size, seed) for seed in range(1)]
        yield _figure(f"membership.idle_bytes_per_s_{size}", "B/s", idle, median(idle))


def _figure(name: str, unit: str, values: list[float], value: float) -> Figure:
    return Figure(name, value, unit, min(values), max(values), len(values))


def _crashes(size: int, settings: Settings, rounds: int) -> tuple[list[float], list[float]]:
    """Return two times in seconds for each crash: until its first detection, and from there to
    agreement."""
    first, agreed = [], []
    for seed in range(max(1, rounds * CRASHES[size] // 5)):
        world = World(size, settings, seed)
        world.run_for(SETTLE_S + world.random.random())
        victim = world.hosts[world.random.randrange(size)]
        victim.is_up = False
        crashed_at = world.now
        while world.share_holding(victim.name, Status.DEAD) < AGREED:
            world.run_for(0.05)
        first.append((world.first_death_at - crashed_at) / NS)
        agreed.append((world.now - world.first_death_at) / NS)
    return first, agreed


def _idle(size: int, seed: int) -> float:
    """Return the bytes that a member sends per second, including packet headers and periodic
    exchanges."""
    world = World(size, Settings.lan(), seed)
    world.run_for(SETTLE_S)
    before = world.sent_bytes
    world.run_for(IDLE_S)
    datagrams = (world.sent_bytes - before) / IDLE_S / size
    # Regular exchanges have a period longer than this window: each member sends and answers one.
    lists = 2 * len(pack_records(world.hosts[0].core.snapshot()))
    return datagrams + lists / (60.0 * max(1.0, size / 8))


def _stalls(size: int, settings: Settings) -> tuple[int, int]:
    """Count healthy members that are declared dead while a tenth of the members stalls.

    Returns the number of declarations by healthy members, and by any member.
    """
    world = World(size, settings, seed=7)
    world.run_for(SETTLE_S)
    stalled = world.random.sample(world.hosts, round(size * STALLED_SHARE))
    for host in stalled:
        world.plan_stall(host, first=True)
    world.run_for(STALLS_LAST_S[size])
    names = {host.name for host in stalled}
    by_any = [verdict for verdict in world.verdicts if verdict[1] not in names]
    by_healthy = [verdict for verdict in by_any if verdict[0] not in names]
    return len({subject for _, subject in by_healthy}), len({subject for _, subject in by_any})


class PlainClock:
    """Cluster clock that equals the host's clock."""

    def read(self, now: int) -> int:
        return now

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        pass


class Host:
    """Member and its state in the simulated world."""

    def __init__(self, core: Membership) -> None:
        self.core = core
        self.name = core.me.name
        self.is_up = True
        self.stalled_until = 0
        self.waiting: deque[tuple[Message, Address]] = deque()
        self.tick_at = -1


Arrival = tuple[Message, Address] | list[Record] | None
"""A datagram and its source, a member list of another host, or None for the host's timer."""


class World:
    """Simulated world: all members and one heap of events, which follow from one seed."""

    def __init__(
        self, size: int, settings: Settings, seed: int, *, delay_s: float = 0.0005, loss: float = 0
    ) -> None:
        self.random = Random(seed)
        self.now = 0
        self.sent_bytes = 0
        self.first_death_at = 0
        self.verdicts: list[tuple[str, str]] = []
        """Pairs of members: who declared whom dead by its own suspicion."""
        self._delay = delay_s
        self._loss = loss
        self._events: list[tuple[int, int, Host, Arrival]] = []
        self._stalls: list[tuple[int, int, Host]] = []
        self._number = 0
        records = [_record(number) for number in range(size)]
        self.hosts = [
            Host(Membership(record, settings, Random(self.random.getrandbits(64)), 0, PlainClock()))
            for record in records
        ]
        self._at = {host.core.me.address: host for host in self.hosts}
        for host in self.hosts:
            self._perform(host, host.core.merge(records, 0))

    def run_for(self, seconds: float) -> None:
        """Advance the virtual time by some seconds."""
        end = self.now + round(seconds * NS)
        while self._events and self._events[0][0] <= end:
            self.now, _, host, arrival = heappop(self._events)
            self._stall_until_now()
            self._deliver(host, arrival)
        self.now = end

    def share_holding(self, name: str, status: Status) -> float:
        """Return the share of running members that see one member in the given state."""
        views = [host.core.records for host in self.hosts if host.is_up]
        return sum(view[name].status is status for view in views) / len(views)

    def plan_stall(self, host: Host, *, first: bool = False) -> None:
        """Schedule random stalls of one host."""
        pause = 0.0 if first else self.random.uniform(*AWAKE_S)
        self._number += 1
        heappush(self._stalls, (self.now + round(pause * NS), self._number, host))

    def _stall_until_now(self) -> None:
        while self._stalls and self._stalls[0][0] <= self.now:
            begins, _, host = heappop(self._stalls)
            host.stalled_until = begins + round(self.random.uniform(*STALL_S) * NS)
            self._push(host.stalled_until, host, None)

    def _deliver(self, host: Host, arrival: Arrival) -> None:
        if not host.is_up:
            return
        if self.now < host.stalled_until:
            if isinstance(arrival, tuple):
                host.waiting.append(arrival)
            return
        if host.stalled_until:
            # Timers run before queued datagrams: the harder case for a failure detector.
            host.stalled_until = 0
            self._perform(host, host.core.tick(self.now))
            while host.waiting:
                self._perform(host, host.core.receive(*host.waiting.popleft(), self.now))
            self.plan_stall(host)
        if arrival is None:
            if self.now >= host.tick_at:
                host.tick_at = -1
            self._perform(host, host.core.tick(self.now))
        elif isinstance(arrival, list):
            self._perform(host, host.core.merge(arrival, self.now))
        else:
            self._perform(host, host.core.receive(*arrival, self.now))

    def _perform(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(host, to, message)
                case Exchange(address):
                    self._exchange(host, address)
                case Changed(before, after):
                    self._note(host, before, after)
                case Conflict():
                    raise AssertionError("names are unique here")
        due = max(self.now, host.core.next_deadline())
        if host.tick_at < 0 or due < host.tick_at:
            host.tick_at = due
            self._push(due, host, None)

    def _send(self, host: Host, to: Address, message: Message) -> None:
        self.sent_bytes += len(encode(message)) + SEAL_BYTES + PACKET_BYTES
        if self._loss and self.random.random() < self._loss:
            return
        self._push(self._arrival(), self._at[to], (message, host.core.me.address))

    def _exchange(self, host: Host, address: Address) -> None:
        other = self._at[address]
        if other.is_up and self.now >= other.stalled_until:
            mine, theirs = host.core.snapshot(), other.core.snapshot()
            self.sent_bytes += len(pack_records(mine)) + len(pack_records(theirs))
            self._push(self._arrival(), other, mine)
            self._push(self._arrival(), host, theirs)

    def _note(self, host: Host, before: Record | None, after: Record) -> None:
        if after.status is Status.DEAD and after.accuser == host.name:
            if not self.verdicts:
                self.first_death_at = self.now
            self.verdicts.append((host.name, after.name))

    def _arrival(self) -> int:
        return self.now + round(self._delay * (0.5 + self.random.random()) * NS)

    def _push(self, at: int, host: Host, arrival: Arrival) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, host, arrival))


def _record(number: int) -> Record:
    return Record(
        name=f"node-{number:04}",
        host=f"10.0.{number // 250}.{number % 250 + 1}",
        port=7600,
        datacenter="dc1",
        zone=f"zone-{number % 3}",
        weight=1.0,
        generation=1_760_000_000_000,
        incarnation=0,
        status=Status.ALIVE,
        version="0.1.0",
    )
