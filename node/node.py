"""A node: it decides for the keys it owns, and forwards the rest to the member that does.

Everything that happens to a frame happens in one call on the transport's task, except forwarding,
which waits for a peer in a task of its own. Clock, chance and transport come in from outside:
production passes the host's, a simulation its own.
"""

import logging
from collections import Counter
from collections.abc import Callable
from random import Random

import trio

from hashring import NodeId, View, shard_of
from node.access import Access, Scope
from node.counters import Counters
from node.refusals import RefusalLog
from node.senders import Sender, Senders
from node.session import Session
from node.settings import NodeSettings
from ringfence.client.batch import Batch, Done, Verdicts
from ringfence.client.clock import Clock
from ringfence.client.failure import FailurePolicy
from ringfence.client.link import Link, LinkSettings
from ringfence.client.local import decide_by, engine_rules
from ringfence.client.router import Router, Routes
from ringfence.limiter import Engine
from ringfence.rules import Rule, RuleSet
from ringfence.transport.interface import Address, Connection, Transport
from ringfence.wire import (
    Answer,
    ErrorCode,
    Goodbye,
    Hello,
    MemberRow,
    Members,
    PackedRules,
    Refused,
    Request,
    Role,
    Source,
    Stats,
    Welcome,
    encode,
)

__all__ = ["Node"]

logger = logging.getLogger("ringfence.node")

_MOST_FORWARDED = 50_000
"""Checks being forwarded at once; more are refused."""


class Node:
    """One member of the cluster. Build it, then `run` it on a transport that calls `accept`."""

    def __init__(
        self,
        settings: NodeSettings,
        access: Access,
        rules: RuleSet,
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        self.counters = Counters()
        self.name = NodeId(settings.name)
        self._settings = settings
        self._access = access
        self._rules = rules
        self._packed_rules: PackedRules | None = None
        self._clock = clock
        self._random = random
        # Lease ids must not repeat across restarts, lest a late release frees another's place.
        self._engine = Engine(max_keys=settings.max_keys, first_lease=max(1, clock.now()))
        self._engine.set_rules(engine_rules(rules.rules()))
        view = View.of(member.as_member() for member in settings.members)
        self._view = view.hash
        self._ring = view.ring(settings.me.datacenter)
        self._is_mine = [owner == self.name for owner in self._ring.owner_by_shard]
        self._may_be_mine = [
            is_mine or self._ring.standby(shard) == self.name
            for shard, is_mine in enumerate(self._is_mine)
        ]
        self._router = Router(FailurePolicy(self._rule_of, clock, settings.max_keys).decide)
        self._senders: Senders[Session] = Senders()
        self._sessions: dict[int, Session] = {}
        self._links: list[Link] = []
        self._transport: Transport | None = None
        self._nursery: trio.Nursery | None = None
        self._forwarded_now = 0
        self._idle = trio.Event()
        self._is_draining = False
        self._strangers: set[str] = set()
        self._refusal_log = RefusalLog()

    # -- life ----------------------------------------------------------------------------------

    async def run(
        self,
        transport: Transport,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; the transport runs beside."""
        self._transport = transport
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._router.routes = Routes(self._ring, self._targets(transport))
            task_status.started()
            await trio.sleep_forever()

    async def drain(self) -> None:
        """Send everybody elsewhere, answer what is in flight, then close; bounded in time."""
        self._is_draining = True
        assert self._transport is not None
        for session in list(self._sessions.values()):
            session.send(Goodbye(f"node {self.name} is leaving"))
        self._transport.flush()
        with trio.move_on_after(self._settings.drain_timeout):
            while self._sessions or self._forwarded_now:
                self._idle = trio.Event()
                await self._idle.wait()
        for session in list(self._sessions.values()):
            session.close(ErrorCode.DRAINING, f"node {self.name} has left")
        for link in self._links:
            link.close()
        self._transport.flush()

    def accept(self, connection: Connection) -> Session:
        """Take an incoming connection."""
        assert self._transport is not None
        session = Session(self, self._transport, connection)
        self._sessions[id(session)] = session
        return session

    def change_rules(self, rules: RuleSet) -> None:
        """Put other rules in force at once; counters of rules that stay go on.

        Their version rises even when files were put back with an older date, for clients only
        take what is newer.
        """
        if rules != self._rules:
            newer = max(rules.version, self._rules.version + 1)
            self._rules = RuleSet(rules.contents, version=newer)
            self._packed_rules = None
            self._engine.set_rules(engine_rules(rules.rules()))

    def _targets(self, transport: Transport) -> "dict[NodeId, Link | _Here]":
        hello = Hello(
            Role.NODE,
            self.name,
            self._access.proof_of(self.name),
            self._random.getrandbits(64),
        )
        settings = LinkSettings(answer_timeout=self._settings.forward_timeout)
        targets: dict[NodeId, Link | _Here] = {self.name: _Here(self._decide_here)}
        for member in self._settings.members:
            if member.name != self.name and member.datacenter == self._settings.me.datacenter:
                link = Link(
                    transport, member.at, hello, settings, self, self._random, lambda: self._view
                )
                self._links.append(link)
                targets[NodeId(member.name)] = link
        return targets

    # -- what a session asks -------------------------------------------------------------------

    def admit(self, hello: Hello, address: Address) -> frozenset[Scope] | None:
        """Tell what the sender of a hello may do."""
        scopes = self._access.scopes_of(hello)
        if scopes is None:
            self._refusal_log.tell(hello, address, self._clock.now())
        return scopes

    def sender(self, hello: Hello) -> Sender[Session]:
        """The memory kept for a sender, which survives its connections."""
        return self._senders.of(hello.name, hello.session)

    def welcome(self) -> Welcome | Refused:
        """The answer to a good hello."""
        if self._is_draining:
            return Refused(0, ErrorCode.DRAINING, f"node {self.name} is leaving; ask another")
        return Welcome(self.name, self._view, self._rules.version)

    def decide(self, request: Request, batch: Batch) -> Verdicts | Refused | None:
        """Decide what this node owns, or stands by for; None when some must be forwarded."""
        is_mine = self._may_be_mine if request.stand_in else self._is_mine
        if all([is_mine[shard_of(key)] for key in batch.keys]):
            return self._decide_here(batch, stand_in=request.stand_in)
        if request.hops or request.stand_in:
            self.refused("not_owner")
            return Refused(
                request.seq,
                ErrorCode.NOT_HERE,
                f"node {self.name} does not own all these keys and will not forward them again: "
                "whoever asked sees other members",
            )
        if self._forwarded_now + len(batch) > _MOST_FORWARDED:
            self.refused("overloaded")
            return Refused(request.seq, ErrorCode.OVERLOADED, "too many checks are being forwarded")
        return None

    def forward(self, sender: Sender[Session], request: Request, batch: Batch) -> None:
        """Have the owners decide, in a task of its own."""
        assert self._nursery is not None
        self._forwarded_now += len(batch)
        self._nursery.start_soon(self._forward, sender, request, batch)

    def answer(self, request: Request, verdicts: Verdicts) -> Answer:
        """Make the answer of the verdicts."""
        return Answer(
            request.seq, self._view, self._rules.version, verdicts.outcomes, verdicts.sources
        )

    def members(self, seq: int) -> Members:
        """The members, as the settings list them."""
        rows = [
            MemberRow(
                member.name,
                member.at[0],
                member.at[1],
                member.datacenter,
                member.zone,
                member.weight,
                "alive",
            )
            for member in sorted(self._settings.members, key=lambda member: member.name)
        ]
        return Members(seq, self._view, rows)

    def rules(self, seq: int) -> bytes:
        """The encoded rules; laid out once, since every client asks after a change."""
        if self._packed_rules is None:
            self._packed_rules = PackedRules(self._rules.version, self._rules.to_plain())
        return self._packed_rules.to(seq)

    def stats(self, seq: int) -> Stats:
        """Counters, and what stands now: keys, evictions, owned shards, connections."""
        assert self._transport is not None
        counters = Counter(self.counters.as_dict())
        for cause, count in self._transport.refusals.items():
            counters[f"refused_{cause}"] += count
        return Stats(
            seq,
            dict(counters)
            | {
                "connections": len(self._sessions),
                "evicted": self._engine.evicted,
                "keys": len(self._engine),
                "owned_shards": sum(self._is_mine),
                "rules_version": self._rules.version,
            },
        )

    def refused(self, cause: str) -> None:
        """Count a refusal by its cause."""
        self.counters.add(f"refused_{cause}")

    def repeated(self) -> None:
        """Count a request that came before and was not decided again."""
        self.counters.add("repeated")

    def left(self, session: Session) -> None:
        """Forget a connection."""
        self._sessions.pop(id(session), None)
        self._idle.set()

    # -- deciding and forwarding ---------------------------------------------------------------

    def _decide_here(self, batch: Batch, *, stand_in: bool) -> Verdicts:
        outcomes = decide_by(self._engine, batch, self._clock.now())
        source = Source.STANDBY if stand_in else Source.OWNER
        verdicts = Verdicts(outcomes, [source] * len(batch))
        self.counters.decided(batch.op, verdicts, stand_in=stand_in)
        return verdicts

    async def _forward(self, sender: Sender[Session], request: Request, batch: Batch) -> None:
        foreign = sum(not self._is_mine[shard_of(key)] for key in batch.keys)
        self.counters.add("forwarded", foreign)
        try:
            verdicts = await self._router.decide(
                batch,
                lambda index: self._vetoes(batch, index),
                hops=1,
                within=request.deadline_ms / 1000,
            )
            payload = encode(self.answer(request, verdicts))
        except Exception:  # A bug that one request meets must not end the node.
            logger.exception("a bug in Ringfence; %d checks were not forwarded", len(batch))
            self.refused("internal")
            payload = encode(Refused(request.seq, ErrorCode.INTERNAL, "the node's log tells more"))
        else:
            undecided = sum(source in (Source.POLICY, Source.LOCAL) for source in verdicts.sources)
            self.counters.add("undecided", undecided)
        finally:
            self._forwarded_now -= len(batch)
        sender.remember(request.seq, payload)
        if sender.session is not None and self._transport is not None:
            sender.session.send_payload(payload)
            self._transport.flush()
        self._idle.set()

    def _vetoes(self, batch: Batch, index: int) -> bool:
        rule = self._rule_of(int.from_bytes(batch.keys[index][:8], "big"))
        return rule is None or not (rule.shadow or rule.quota)

    def _rule_of(self, rule_id: int) -> Rule | None:
        return self._rules.by_id(rule_id)

    # -- what links tell -----------------------------------------------------------------------

    def on_versions(self, link: Link, view: int, rules: int) -> None:
        """Members are listed in the settings: a peer that sees others has another list."""
        if view != self._view and link.name not in self._strangers:
            self._strangers.add(link.name)
            logger.error(
                "peer %s lists other members than this node; give all nodes the same list",
                link.name,
            )

    def on_reachable(self, link: Link, reachable: bool) -> None:
        """Tell the operator."""
        host, port = link.address
        if reachable:
            logger.info("peer %s at %s:%d is within reach", link.name, host, port)
        else:
            logger.warning("peer at %s:%d is lost: %s", host, port, link.refusal)


class _Here:
    """This node as a target of its own router."""

    def __init__(self, decide: Callable[..., Verdicts]) -> None:
        self._decide = decide

    def ask(self, batch: Batch, *, hops: int, stand_in: bool, done: Done) -> None:
        """Decide at once."""
        done(self._decide(batch, stand_in=stand_in))
