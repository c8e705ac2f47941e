"""Three members that count in memory, and a router to them."""

from itertools import count
from math import inf

import trio

from hashring import Member, NodeId, View, shard_of
from ringfence import runtime
from ringfence.limiter import Algorithm, Code, Engine, EngineRule, Limit
from ringfence.peering.coalescer import new_pending_batch
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.routing import Router, Routes
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.peering.target import SHED
from ringfence.rules import OnFailure, Rule, encode_key
from ringfence.wire import Batch, Op, Results, Source

MINUTE = 60_000_000_000
RING = View.of(Member(NodeId(name)) for name in "abc").ring("dc1")
LONE = View.of([Member(NodeId("a"))]).ring("dc1")
PLAIN, SHADOW, LOCAL, DENY, SLOTS, LOG = range(1, 7)
"""Ids of the rules."""
COUNTED = Limit.of_ns(3, MINUTE, Algorithm.FIXED_WINDOW)
RULES = {
    PLAIN: Rule(PLAIN, "d", (("p", None),), COUNTED),
    SHADOW: Rule(SHADOW, "d", (("s", None),), COUNTED, shadow=True),
    LOCAL: Rule(LOCAL, "d", (("l", None),), COUNTED, on_failure=OnFailure.LOCAL),
    DENY: Rule(DENY, "d", (("x", None),), COUNTED, on_failure=OnFailure.DENY),
    LOG: Rule(LOG, "d", (("g", None),), Limit.of_ns(3, MINUTE, Algorithm.SLIDING_WINDOW_LOG)),
    SLOTS: Rule(SLOTS, "d", (("c", None),), Limit.of_ns(3, MINUTE, Algorithm.CONCURRENCY)),
}
UNKNOWN = 99
NOW = MINUTE // 2
"""Time in the middle of a window, so that no charge is in the previous window."""


class HandClock:
    def now(self):
        return NOW


class CountingMember:
    """Member that counts in memory, and can be lost or slow."""

    def __init__(self):
        self.engine = Engine(max_keys=100_000)
        self.engine.set_rules(
            {number: EngineRule(rule.limit, not rule.shadow) for number, rule in RULES.items()}
        )
        self.is_lost = False
        self.sheds = False
        self.dones = []
        self.on_rows = None
        self.timeout = inf
        """Time-out that follows from its round trips."""
        self.answers_others = False
        self.held_answers = None
        """Answers that wait for `release_answers`; None when it answers at once."""
        self.asked = []
        self.identity = (id(self), 1, 0)

    def identify(self):
        return self.identity

    def answer_timeout(self, margin, longest):
        return min(longest, max(margin, self.timeout))

    def is_alive(self):
        return self.answers_others

    def ask(self, batch, *, hops, as_standby, done):
        self.asked.append((batch, hops, as_standby))
        self.dones.append(done)
        self._decide(batch, as_standby, done)
        return None if self.is_lost else self

    def _decide(self, batch, as_standby, done):
        if self.sheds or self.is_lost:
            done(SHED if self.sheds else None)
            return
        source = Source.STANDBY if as_standby else Source.OWNER
        results = Results(decide_batch(self.engine, batch, NOW), [source] * len(batch))
        if self.held_answers is None:
            done(results)
        else:
            self.held_answers.append(lambda: done(results))

    def release_answers(self):
        held_answers, self.held_answers = self.held_answers, None
        for answer in held_answers:
            answer()

    def left(self, key):
        return self.engine.decide([key], [0], [], [], [], NOW).remaining[0]


class Cluster:
    """Three members and a router to them."""

    member_kind = CountingMember

    def __init__(self, ring=RING, hedge_after=None):
        self.ring = ring
        self.members = {member.name: self.member_kind() for member in ring.members}
        policy = FailurePolicy(RULES.get, HandClock(), 1000)
        self.router = Router(policy, hedge_after=hedge_after)
        self.router.routes = Routes(ring, self.members)

    def owner(self, key):
        return self.members[self.ring.owner(shard_of(key))]

    def standby(self, key):
        return self.members[self.ring.standby(shard_of(key))]

    def left(self, key):
        return self.owner(key).left(key)

    def ids_at_standby(self, key):
        return self.standby(key).asked[0][0].ids

    async def check(self, keys, groups=(), costs=None, **how):
        batch = Batch(Op.CHECK, list(keys), list(costs or [1] * len(keys)), list(groups))
        return await self.router.decide(batch, denies_group(batch), **how)


def denies_group(batch):
    return lambda row: RULES.get(int.from_bytes(batch.keys[row][:8], "big")) is not RULES[SHADOW]


def key_of(owner, rule=PLAIN, skip=0, standby=None):
    """Return a key of `owner`, after skipping `skip` such keys."""
    for number in count():
        key = encode_key(rule, [str(number)])
        shard = shard_of(key)
        if RING.owner(shard) == owner and standby in (None, RING.standby(shard)):
            if not skip:
                return key
            skip -= 1
    raise AssertionError


def codes(results):
    return results.outcomes.codes


class JoinableMember(CountingMember):
    """Member that single checks can join, as they join a link."""

    def join(self, key, cost, within):
        self.pending = pending = new_pending_batch(runtime.current_time(), 1)
        pending.join(key, cost)
        if within is not None:
            trio.lowlevel.spawn_system_task(self._mark_late, pending, within)
        pending.sent = self.ask(pending.batch, hops=0, as_standby=False, done=pending.resolve)
        return pending

    async def _mark_late(self, pending, within):
        await trio.sleep(within)
        pending.mark_late()


class ClientCluster(Cluster):
    """A cluster whose members single checks can join."""

    member_kind = JoinableMember

    async def check_one(self, key, within=None):
        """Return the source and the code of a single check."""
        row = await self.router.ask(key, 1, within)
        return Source(row[7]), Code(row[0])
