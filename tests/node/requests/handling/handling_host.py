"""Handler of requests at a node `a` of three nodes, without a network, for tests."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import cast

import trio

from hashring import Member, NodeId, Ring, shard_of
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from node.metrics.detailed import MetricsSwitch
from node.requests.deduplication import DecidedChecks
from node.requests.handler import RequestHandler
from node.requests.leases.lease_grants import Lender
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.placement import ShardPlacement
from node.requests.request_parts import Part
from node.requests.sessions.caller import Caller
from node.requests.slot_waiters import SlotWaiters
from node.requests.standby_takeover import StandbyTakeover
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.handoff import Handoff
from ringfence.limiter import Code, Engine, EngineRule, Outcomes
from ringfence.peering.link import Link
from ringfence.peering.routing import Router, Routes
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Batch, CheckId, ErrorCode, Op, Refused, Request, Results, Source
from tests.node.cluster import CONTAINMENT, HandClock

A, B, C, FAR = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("u")
DAY = 86_400_000_000_000
NOW = 1_800_000_000 * 1_000_000_000
RING = Ring.of([Member(A), Member(B), Member(C)])
FAR_RING = Ring.of([Member(FAR)])
RULES = load_text("""
domain: api
descriptors:
  - {key: near, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: home, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: split, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: lent, rate_limit: {unit: day, requests_per_unit: 1000, algorithm: fixed_window}}
""").rules
RULE_OF = {rule.id: rule for rule in RULES.rules()}.get
NEAR, HOME, SPLIT, SHADOW, QUOTA, LENT = [rule.id.to_bytes(8, "big") for rule in RULES.rules()]
"""Ids of rules. Another data center decides `HOME`, and has a part of `SPLIT`."""


def key_of(owner: NodeId, rule: bytes = NEAR, number: int = 0) -> bytes:
    """Return a key whose shard a member of the ring owns."""
    keys = (rule + b"%d" % each for each in count())
    owned = (key for key in keys if RING.owner(shard_of(key)) == owner)
    return next(islice(owned, number, None))


def results(batch: Batch, code: Code = Code.ALLOWED, source: Source = Source.OWNER) -> Results:
    """Return equal results for all checks of a batch."""
    zeros = [0] * len(batch)
    codes = [code.value] * len(batch)
    return Results(Outcomes(codes, *[[*zeros] for _ in range(6)]), [source] * len(batch))


@dataclass
class Asked:
    """Batch that another part of the node was asked to decide."""

    keys: list[bytes]
    hops: int
    within: float = 0.0
    owner: NodeId | None = None


@dataclass
class FakeRouter:
    """Other members, which decide at once."""

    routes: Routes | None
    asked: list[Asked] = field(default_factory=list)
    source: Source = Source.OWNER
    groups_denied_by: list[bool] = field(default_factory=list)

    async def decide(
        self, batch: Batch, denies_group: Callable[[int], bool], *, hops: int, within: float
    ) -> Results:
        await trio.lowlevel.checkpoint()
        self.asked.append(Asked(batch.keys, hops, round(within, 6)))
        self.groups_denied_by = [denies_group(row) for row in range(len(batch))]
        return results(batch, source=self.source)


@dataclass
class FakeTakeover:
    """Owners that answer the standby after `answers_after`, or are unreachable."""

    take: Callable[[Sequence[int]], None]
    is_answering: bool = False
    is_unreachable: bool = True
    asked: list[Asked] = field(default_factory=list)
    taken: list[list[int]] = field(default_factory=list)

    async def ask_owner(self, owner: NodeId | None, batch: Batch, hops: int) -> Results | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(Asked(batch.keys, hops, owner=owner))
        return results(batch) if self.is_answering else None

    async def take_over_if_unreachable(self, shards: Sequence[int]) -> bool:
        await trio.lowlevel.checkpoint()
        self.taken.append(list(shards))
        if self.is_unreachable:
            self.take(shards)
        return self.is_unreachable


@dataclass
class FakeHandoff:
    """Transfers that take `seconds`. Of the first ones, `moved_on` shards move on at once."""

    take: Callable[[Sequence[int]], None]
    seconds: float = 0.0
    moved_on: int = 0
    acquired: list[list[int]] = field(default_factory=list)

    async def acquire(self, shards: Iterable[int]) -> None:
        await trio.sleep(self.seconds)
        self.acquired.append(list(shards))
        if len(self.acquired) > self.moved_on:
            self.take(self.acquired[-1])


@dataclass
class FarLink:
    """Link to the other data center, which answers after `seconds`. It refunds all units."""

    nursery: Callable[[], trio.Nursery]
    code: Code = Code.ALLOWED
    seconds: float = 0.0
    reset_after_ns: int = 0
    asked: list[Asked] = field(default_factory=list)
    refunded: list[int] = field(default_factory=list)

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: Callable[[object], None]
    ) -> None:
        self.asked.append(Asked(batch.keys, hops))
        found = results(batch, self.code)
        found.outcomes.reset_after_ns = [self.reset_after_ns] * len(batch)
        if batch.op is Op.REFUND:
            self.refunded += batch.costs
            found.outcomes.slot_ids = [*batch.costs]

        async def answer() -> None:
            await trio.sleep(self.seconds)
            done(found)

        self.nursery().start_soon(answer)


class HandlingHost:
    """Handler of node `a`, and the parts that it uses."""

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        self.clock = HandClock()
        self.clock.time = NOW
        self.decided: list[Batch] = []
        self.freed: list[bytes] = []
        self.counters = Counters()
        self.decided_checks = DecidedChecks()
        self.metrics = MetricsSwitch(RULE_OF)
        self.engine = Engine(max_keys=1000)
        self.engine.set_rules(
            {rule.id: EngineRule(rule.limit) for rule in RULES.rules() if rule.limit}
        )
        self.recalled: list[tuple[Caller, list[bytes]]] = []
        self.lender: Lender[Caller] = Lender(
            *(self.engine, RULE_OF, lambda caller, keys: self.recalled.append((caller, keys))),
            first_lease=1,
        )
        self.ownership = ShardOwnership(
            *(A, self.engine, self.counters, lambda key: DAY),
            *(lambda keys: None, lambda shards: None),
            max_keys=1000,
        )
        self.placement = ShardPlacement(A, self.ownership, self.clock.now)
        self.placement.ring = RING
        self.router = FakeRouter(Routes(RING, {}, {HOME: FAR_RING}))
        self.takeover = FakeTakeover(self.take)
        self.handoff = FakeHandoff(self.take)
        self.far = FarLink(lambda: cast(trio.Nursery, nursery))
        self.handler = RequestHandler(
            self.ownership,
            cast(Handoff, self.handoff),
            cast(Router, self.router),
            *(self.counters, self.clock, RULE_OF, self.decided_checks, CONTAINMENT),
            placement=self.placement,
            takeover=cast(StandbyTakeover, self.takeover),
            slots=SlotWaiters(
                *(
                    self.lender.decide,
                    RULE_OF,
                    lambda caller, tickets: None,
                    self.clock.now,
                    CONTAINMENT,
                ),
            ),
            borrowing=SplitBorrowing(
                lambda name: cast(Link, self.far), self.clock.now, self.counters
            ),
            lease_returns=LeaseReturns(self.lender, self.clock.now),
            metrics=self.metrics,
            on_decided=lambda batch, results: self.decided.append(batch),
            on_freed=self.freed.extend,
        )
        split = {rule.id.to_bytes(8, "big"): rule.limit for rule in RULES.rules() if rule.limit}
        self.handler.set_remote_rules({HOME}, {SPLIT: split[SPLIT]}, {"us": FAR_RING})

    def take(self, shards: Sequence[int]) -> None:
        """Start to hold shards."""
        self.ownership.start(shards)

    def hold(self, *keys: bytes) -> None:
        self.take(self.shards(*keys))

    def shards(self, *keys: bytes) -> list[int]:
        return [shard_of(key) for key in keys]

    def used(self, *keys: bytes) -> list[int]:
        return [self.engine.used(key, self.clock.time) for key in keys]

    def request(
        self,
        *keys: bytes,
        hops: int = 0,
        as_standby: bool = False,
        op: Op = Op.CHECK,
        costs: Sequence[int] = (),
        groups: Sequence[int] = (),
        deadline_ms: int = 1000,
        ids: Sequence[CheckId] = (),
    ) -> Request:
        batch = Batch(op, [*keys], [*costs] or [1] * len(keys), [*groups], ids=[*ids])
        return Request(1, 0, deadline_ms, hops, as_standby, batch)

    def parts(self, request: Request) -> list[Part]:
        """Return the parts of a request of which some checks must wait."""
        parts = self.handler.decide_now(request, request.batch)
        assert isinstance(parts, list)
        return parts

    def refusal(self, *keys: bytes, hops: int = 0, as_standby: bool = False) -> ErrorCode:
        """Return the reason for which a request is refused."""
        request = self.request(*keys, hops=hops, as_standby=as_standby)
        refused = self.handler.decide_now(request, request.batch)
        assert isinstance(refused, Refused)
        assert refused.seq == request.seq
        return ErrorCode(refused.code)

    async def decide(self, request: Request) -> Results | None:
        """Decide all checks of a request, as after a wait."""
        return await self.handler.decide(request, Part(None, request.batch))

    def count(self, name: str) -> int:
        return self.counters.as_dict()[name]
