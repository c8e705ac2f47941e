"""Simulated cluster of membership cores in virtual time, and builders of records and members."""

from collections import Counter
from heapq import heappop, heappush
from random import Random

import pytest

from gossip import Changed, Conflict, Exchange, Membership, Record, Send, Settings, Status, encode

NS = 1_000_000_000


class HostClock:
    """Cluster clock that follows the host's clock, and records the samples of probes."""

    def __init__(self):
        self.samples = []
        self.ahead = 0

    def read(self, now):
        return now + self.ahead

    def sample(self, name, offset_ns, rtt_ns, now):
        self.samples.append((name, offset_ns, rtt_ns))


class World:
    """Cluster with one heap of events and one seed. Tests can cut links and suspend members."""

    def __init__(self, seed=1, *, settings=None, delay_s=0.001):
        self.random = Random(seed)
        self.settings = settings or Settings.lan()
        self.delay_s = delay_s
        self.now = 0
        self.cores = {}
        self.asleep = {}
        self.cut = lambda source, target: False
        self.loss = 0.0
        self.changes = []
        self.conflicts = []
        self.datagrams = Counter()
        self.largest = 0
        self._processes = {}
        self._at = {}
        self._events = []
        self._number = 0
        self._ticks = {}

    def start(self, name, *, seeds=(), address=None, generation=None, datacenter="dc1", weight=1.0):
        """Start or restart a member, which enters the ring at once."""
        host, port = address or (f"10.0.0.{len(self._at) + 1}", 7600)
        if address is None and name in self.cores:
            host, port = self.cores[name].me.address
        me = Record(
            name,
            host,
            port,
            datacenter,
            "",
            weight,
            self.now // 1_000_000 + 1 if generation is None else generation,
            0,
            Status.JOINING,
        )
        core = Membership(
            me, self.settings, Random(self.random.getrandbits(64)), self.now, HostClock()
        )
        self.cores[name] = core
        self._processes[name] = self._processes.get(name, 0) + 1
        self._at[me.address] = name
        self.asleep.pop(name, None)
        self._ticks.pop(name, None)
        addresses = [self.cores[seed].me.address for seed in seeds]
        self.do(name, core.join(addresses, self.now))
        self.do(name, core.become_alive(self.now))
        return core

    def grow(self, count, *, prefix="n", seed="n0", datacenter="dc1"):
        """Start members one after another with the same seed, and let them find each other."""
        for number in range(count):
            name = f"{prefix}{number}"
            seeds = (seed,) if name != seed else ()
            self.start(name, seeds=seeds, datacenter=datacenter)
            self.run(0.05)
        self.run(3)

    def kill(self, name):
        """Crash a member."""
        self._processes[name] += 1
        self.cores.pop(name)

    def sleep(self, name, seconds):
        """Suspend a member for some seconds, in which its datagrams wait."""
        self.asleep[name] = (self.now + round(seconds * NS), [])
        self._push(self.asleep[name][0], name, self._wake, name)

    def run(self, seconds):
        """Perform the events of the next seconds."""
        end = self.now + round(seconds * NS)
        while self._events and self._events[0][0] <= end:
            self.now, _, name, process, act, arguments = heappop(self._events)
            if self._processes.get(name) == process and name in self.cores:
                act(*arguments)
        self.now = end

    def run_until(self, condition, within):
        """Perform events until the condition holds; return the seconds until then."""
        began = self.now
        while not condition():
            assert self.now - began < within * NS, f"not within {within} s"
            self.run(0.05)
        return (self.now - began) / NS

    def do(self, name, effects):
        """Perform the effects that a member returned."""
        core = self.cores[name]
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.datagrams[name] += 1
                    self.largest = max(self.largest, len(encode(message)))
                    self._carry(name, to, self._receive, message, core.me.address)
                case Exchange(to):
                    self._carry(name, to, self._exchange, name, core.snapshot())
                case Changed():
                    self.changes.append((self.now / NS, name, effect))
                case Conflict():
                    self.conflicts.append((name, effect))
        due = core.next_deadline()
        if due < self._ticks.get(name, due + 1):
            self._ticks[name] = due
            self._push(max(due, self.now), name, self._tick, name)

    def views(self, name):
        """Return the status of a member in the list of each running member."""
        return {
            viewer: core.records[name].status if name in core.records else None
            for viewer, core in self.cores.items()
        }

    def agree(self):
        """Return whether all running members route checks to exactly the running members."""
        alive = sorted(self.cores)
        return (
            all([record.name for record in core.routed()] == alive for core in self.cores.values())
            and len({c.digest for c in self.cores.values()}) == 1
        )

    def deaths(self):
        """Return the name of a member for each time that a member declared it dead."""
        return [
            change.after.name
            for _, _, change in self.changes
            if change.after.status is Status.DEAD and change.before is not None
        ]

    def _carry(self, source, to, act, *arguments):
        target = self._at.get(to)
        if target is None or target not in self.cores or self.cut(source, target):
            return
        if act == self._receive and self.random.random() < self.loss:
            return
        delay = round(self.delay_s * (0.5 + self.random.random()) * NS)
        self._push(self.now + delay, target, act, target, *arguments)

    def _receive(self, name, message, source):
        if name in self.asleep:
            self.asleep[name][1].append((message, source))
        else:
            self.do(name, self.cores[name].receive(message, source, self.now))

    def _exchange(self, name, asker, records):
        if name in self.asleep or asker not in self.cores or self.cut(name, asker):
            return
        mine = self.cores[name].snapshot()
        self.do(name, self.cores[name].merge(records, self.now))
        self._push(self.now + round(self.delay_s * NS), asker, self._merge, asker, mine)

    def _merge(self, name, records):
        if name not in self.asleep:
            self.do(name, self.cores[name].merge(records, self.now))

    def _tick(self, name):
        self._ticks.pop(name, None)
        if name not in self.asleep:
            self.do(name, self.cores[name].tick(self.now))

    def _wake(self, name):
        if name in self.asleep and self.asleep[name][0] <= self.now:
            _, waiting = self.asleep.pop(name)
            self.do(name, self.cores[name].tick(self.now))
            for message, source in waiting:
                self.do(name, self.cores[name].receive(message, source, self.now))

    def _push(self, at, name, act, *arguments):
        self._number += 1
        heappush(self._events, (at, self._number, name, self._processes[name], act, arguments))


@pytest.fixture(scope="session")
def world():
    """Return the class of clusters: `world(seed)` builds one."""
    return World


@pytest.fixture(scope="session")
def record():
    """Return a function that builds a record: `record("a", status=Status.SUSPECT)`."""

    def build(name="a", **changes):
        fields = {
            "host": f"host-{name}",
            "port": 7600,
            "datacenter": "dc1",
            "zone": "",
            "weight": 1.0,
            "generation": 1,
            "incarnation": 0,
            "status": Status.ALIVE,
        }
        return Record(name, **(fields | changes))

    return build


@pytest.fixture(scope="session")
def core(record):
    """Return a function that builds a member at time 0: `core("a", settings=...)`."""

    def build(name="a", *, settings=None, seed=1, **changes):
        me = record(name, **changes)
        return Membership(me, settings or Settings.lan(), Random(seed), 0, HostClock())

    return build
