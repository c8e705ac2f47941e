"""A node: a member of the cluster that decides for its shards and forwards other checks.

Puts the parts together and answers what sessions ask; the parts are `gossip_driver` (who is there),
`ownership`, `handoff` and `replication` (whose counters are where), `handler` (what a check gets)
and `cross_dc` (other data centers). Clock, chance and transport come in from outside: production
passes the host's, a simulation its own.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import compress
from operator import methodcaller
from random import Random
from weakref import WeakSet

from gossip import BadDatagram, Changed, Conflict, Membership, Record, Status
from gossip import Settings as GossipSettings
from gossip.cluster_clock import ClusterClock
from gossip.datagrams.seal import Seal
from hashring import SHARDS, NodeId, Ring, View, shard_of
from node.config.access import Access
from node.config.settings import NodeSettings
from node.containment import Containment
from node.cross_dc.counts import CrossDcCounts
from node.cross_dc.global_keys import GlobalKeys
from node.cross_dc.split_borrowing import SplitBorrowing
from node.membership.clock import ClusterTime, ProbeStamps
from node.membership.gossip_driver import Datagrams, GossipDriver, SealedDatagrams
from node.membership.peer_links import PeerLinks, member_of
from node.metrics.counters import Counters
from node.metrics.detailed import Metrics, MetricsSwitch
from node.metrics.throttled_keys import PERIOD
from node.requests.carried_limits import overrule, oversized
from node.requests.client_reports import Reports, reported_counter
from node.requests.deduplication import DecidedChecks
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.handler import RequestHandler
from node.requests.lease_grants import Lender
from node.requests.placement import NodeRoutes, ShardPlacement
from node.requests.refund_ledger import RefundLedger
from node.requests.request_parts import Part
from node.requests.rules_in_force import RulesInForce
from node.requests.sessions.auth_failure_log import AuthFailureLog
from node.requests.sessions.connection_places import ConnectionPlaces
from node.requests.sessions.node_api import Caller, internal_refusal
from node.requests.sessions.request_scheduler import DIRECT_COST, RequestScheduler
from node.requests.sessions.sent_answers import Sender, SentAnswers
from node.requests.sessions.session import Session
from node.requests.sessions.unacknowledged_bytes import UnacknowledgedBytes
from node.requests.slot_waiters import SlotWaiters
from node.requests.standby_takeover import StandbyTakeover
from node.shards.changed_keys import ChangedKeys
from node.shards.ownership.ownership import ShardOwnership
from node.shards.replication import Replication, as_snapshot
from node.shards.stall_recovery import STALLED_NS, StallRecovery
from node.shards.transfers.handoff import Handoff
from node.shards.transfers.shard_sender import ShardSender
from ringfence import runtime
from ringfence.errors import ConfigError
from ringfence.peering.clock import Clock
from ringfence.peering.engine_choice import first_slot, new_engine
from ringfence.peering.link import Link, LinkSettings
from ringfence.peering.link.calls import call, fetch_counters, fetch_throttled
from ringfence.peering.routing import Router
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.peering.slot_queue import MAX_WAITERS
from ringfence.peering.target import Target
from ringfence.rules import RuleSet
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Address, Connection, Handler, Transport
from ringfence.wire import (
    MAX_KEYS,
    Answer,
    AskTakenOver,
    Batch,
    Copy,
    DenialRevoked,
    Digest,
    Done,
    ErrorCode,
    Exchange,
    Goodbye,
    Hello,
    LeaseGrant,
    LeaseRecall,
    LeaseRequest,
    MemberRow,
    Members,
    Message,
    Op,
    Ping,
    Pong,
    Pull,
    RecoverCounts,
    Refused,
    Report,
    Request,
    Results,
    Role,
    SlotsFree,
    Stats,
    TakenOver,
    Throttled,
    TransferAck,
    TransferOffer,
    Welcome,
    WindowCounts,
    encode,
)
from ringfence.wire import (
    Peers as PeersMessage,
)

__all__ = ["Node"]

logger = logging.getLogger("ringfence.node")

Resolve = Callable[[], Awaitable[Sequence[Address]]]
"""Finds addresses of other members."""

_CARRIED_ROW_COST, _FOREIGN_ROW_COST = 16, 4
"""Estimated microseconds of a row with a carried limit, and of a row of another owner."""
_JOIN_PATIENCE = 3.0
"""Seconds that a node searches for other members before it starts alone."""
_FETCH_PATIENCE = 5.0
"""Seconds that a node fetches its shards before it becomes alive without the rest."""
_RESOLVE_EVERY = 30.0
_LINGER = 1.0
"""Seconds that a node keeps forwarding after it has transferred all shards."""


class Node:
    """One member of the cluster. Build it, then `run` it on a transport that calls `accept`.

    A shard with any counter moves in at least `least_parts` parts: simulations raise that.
    """

    _seal: Seal | None = None
    _began: float | None = None
    _peers: PeerLinks | None = None
    _gossip_driver: GossipDriver | None = None
    _conflict: Conflict | None = None

    def __init__(  # noqa: PLR0915 - a few lines for each part
        self,
        settings: NodeSettings,
        access: Access,
        rules: RuleSet,
        *,
        clock: Clock,
        random: Random,
        gossip: GossipSettings | None = None,
        least_parts: int = 1,
        containment: Containment | None = None,
        datagrams: Datagrams | None = None,
        is_founder: bool = False,
        on_change: Callable[[NodeId, Sequence[Changed]], None] | None = None,
    ) -> None:
        """`containment` handles internal errors; by default the node makes its own.

        `datagrams` replaces the sealed datagrams of gossip. A node that `is_founder` is in the ring
        from the start: give `run` the records of all founders. `on_change` is called when this
        node's records of members change.
        """
        self._datagrams = datagrams
        self._is_founder = is_founder
        self._observe_change = on_change
        self.containment = containment or Containment(logger, runtime.current_time)
        self.counters = Counters()
        self.name = NodeId(settings.name)
        self._settings = settings
        self._access = access
        self.rules_in_force = RulesInForce(rules)
        self._random = random
        self._cluster_clock = ClusterClock()
        self._host_clock = clock
        self._clock = ClusterTime(clock, self._cluster_clock)
        now = clock.now()
        host, port = settings.advertise_at
        self._membership = Membership(
            Record(
                name=settings.name,
                host=host,
                port=port,
                datacenter=settings.datacenter,
                zone=settings.zone,
                weight=settings.weight,
                generation=max(1, now // 1_000_000),
                incarnation=0,
                status=Status.ALIVE if is_founder else Status.JOINING,
                forward_only=False,
                version=_version(),
            ),
            gossip or GossipSettings.lan(),
            random,
            0,
            ProbeStamps(clock, self._cluster_clock),
        )
        self._view = View.of(())
        """Members to which checks are sent."""
        self._placement = View.of(())
        """Members that should have counters: with joining members, without leaving ones."""
        self._view_digest: int | None = None
        """Digest of the records that both were made from."""
        self._ring = Ring.of(())
        """Ring of the members that should have the counters of this data center."""
        # Lease ids must not repeat across restarts: a late release would free another slot.
        self._engine = new_engine(
            max_keys=settings.max_keys,
            max_bytes=settings.max_bytes or None,
            first_lease=first_slot(settings.name, now),
            secret=random.randbytes(16),
            keeps_keys=True,
        )
        self._lost_links: WeakSet[Link] = WeakSet()
        """Links that were reported as lost and are not ready again."""
        self._senders: SentAnswers[Caller] = SentAnswers(clock=self._clock.now)
        self._decided_checks = DecidedChecks(self._senders.find)
        self._denial_subscriptions: DenialSubscriptions[Caller] = DenialSubscriptions(
            self._revoke_denials
        )
        changed = ChangedKeys()
        self._lender: Lender[Caller] = Lender(
            self._engine,
            self.rules_in_force.rule,
            self._recall,
            first_lease=max(1, now),
            on_freed=self._denial_subscriptions.end_denials,
            on_changed=changed.add,
            on_settled=lambda session, key, units: session.spent(key, units),
        )
        global_keys = GlobalKeys(self._engine, self._clock.now, self._uptime)
        self._ownership = ShardOwnership(
            self.name,
            self._engine,
            self.counters,
            self.rules_in_force.period_of,
            global_keys.on_arrived,
            global_keys.lost.start,
            max_keys=settings.max_keys,
            max_bytes=settings.max_bytes or None,
            decided_checks=self._decided_checks,
            changed=changed,
            lender=self._lender,
        )
        sender = ShardSender(
            self._ownership,
            self._engine,
            self.counters,
            first_transfer=max(1, now),
            least_parts=least_parts,
            lender=self._lender,
        )
        self._handoff = Handoff(
            self.name,
            self._ownership,
            sender,
            self._engine,
            self.counters,
            self._bulk_to,
            self._reach,
            self._clock.now,
            self.containment,
        )
        self._replication = Replication(
            self.name,
            self._ownership,
            sender,
            self._engine,
            self.counters,
            self._bulk_to,
            self._clock.now,
            self.containment,
        )
        self._cross_dc = CrossDcCounts(
            settings.datacenter,
            self._engine,
            self._ownership,
            self.counters,
            self._link_to,
            global_keys,
            self._clock.now,
            self._uptime,
            random,
            self.containment,
        )
        self._router = Router(
            FailurePolicy(self.rules_in_force.rule, self._clock, settings.max_keys).decide,
            retries=True,
        )
        now_ns = self._clock.now
        placement = ShardPlacement(self.name, self._ownership, now_ns)
        self._metrics = MetricsSwitch(self.rules_in_force.rule)
        self._handler = RequestHandler(
            *(self._ownership, self._handoff, self._router, self.counters, self._clock),
            *(self.rules_in_force.rule, self._decided_checks, self.containment),
            placement=placement,
            takeover=StandbyTakeover(
                *(placement, self._ownership, self._link_to, now_ns),
                *(self._is_suspect, self._held_up_ns),
            ),
            slots=SlotWaiters(
                *(self._lender.decide, self.rules_in_force.rule, self._call_waiters, now_ns),
                self.containment,
            ),
            borrowing=SplitBorrowing(self._link_to, now_ns, self.counters),
            metrics=self._metrics,
            on_decided=global_keys.on_decided,
            on_freed=self._denial_subscriptions.end_denials,
        )
        self._waiters: OrderedDict[int, Sender[Caller]] = OrderedDict()
        """Senders by ticket, for forwarded checks that wait for a slot at another member."""
        self._recovery = self._new_recovery()
        self._cross_dc.set_rules(rules)
        self._ledgers: dict[str, RefundLedger] = {}
        """By token name, for tokens without the scope `refund`."""
        self._sessions: dict[int, Session] = {}
        self._unsent: UnacknowledgedBytes[Caller] = UnacknowledgedBytes(methodcaller("give_up"))
        self._places: ConnectionPlaces[Caller] = ConnectionPlaces(settings.places)
        self._turns: RequestScheduler[Caller] = RequestScheduler()
        self._transport: Transport | None = None
        self._nursery: runtime.TaskGroup | None = None
        self._idle = runtime.Event()
        self._is_draining = False
        self._has_joined = runtime.Event()
        self.asked_to_leave = runtime.Event()
        """Set when an operator asks this node to leave."""
        self._reports = Reports()
        self.rules_refusal = ""
        """Error in the rule files on disk, which are not in force then; empty without an error."""
        self.certificates_expire: dict[str, float] = {}
        """Expiry of the certificates of the node and its authority, in seconds since 1970."""
        self._changed_at: dict[str, int] = {}
        """Uptime in ns at which each member entered its present state."""
        self._conflicted = runtime.Event()
        self._refusal_log = AuthFailureLog()

    # -- life ----------------------------------------------------------------------------------

    async def run(
        self,
        transport: Transport,
        resolve: Resolve | None = None,
        *,
        founders: Sequence[Record] = (),
        task_status: runtime.TaskStatus[None] = runtime.TASK_STATUS_IGNORED,
    ) -> None:
        """Join the cluster and serve until cancelled; the caller runs the transport.

        `resolve` finds the addresses of other members; None is a cluster of one, until others
        join it. `founders` are the records of all members of a cluster that begins without
        counters: this node then holds its shards at once. Raises `ConfigError` when another node
        has the same name.
        """
        self._transport = transport
        self._began = transport.now()
        hello = Hello(Role.NODE, self.name, b"", 0)
        patience = self._settings.forward_timeout
        links = LinkSettings(answer_timeout=patience, slow_timeout=2 * patience)
        self._peers = PeerLinks(
            transport, hello, self._prove, links, self, self._random, lambda: self._view.hash
        )
        seal = Seal(self._access.cluster_keys, self._settings.cluster, self._random.getrandbits(64))
        self._gossip_driver = GossipDriver(
            self._membership,
            self._datagrams or SealedDatagrams(seal),
            transport,
            self._peers,
            self._uptime,
            self._on_change,
            self._on_conflict,
            self._notice_stall,
            self.containment,
        )
        self._seal = seal
        async with runtime.open_task_group() as nursery:
            self._nursery = nursery
            for part in (self._handoff, self._replication, self._handler, self._cross_dc):
                nursery.start_soon(part.run)
            self._gossip_driver.start()
            if resolve is not None:
                nursery.start_soon(self.containment.supervise, "seeds", self._find_seeds, resolve)
            if founders:
                self._gossip_driver.merge(founders)
                self._ownership.start(self._ring.shards_of(self.name))
            elif resolve is not None:
                with runtime.move_on_after(_JOIN_PATIENCE):
                    await self._has_joined.wait()
                if self._has_joined.is_set():
                    with runtime.move_on_after(_FETCH_PATIENCE):
                        await self._handoff.wait_all_fetched()
                else:
                    logger.warning("no member answered; node %s begins alone", self.name)
            if not self._is_founder:
                self._gossip_driver.become_alive()
            nursery.start_soon(self.containment.supervise, "clock", self._watch_clock)
            nursery.start_soon(self.containment.supervise, "throttled", self._forget_denials)
            task_status.started()
            await self._conflicted.wait()
            assert self._conflict is not None
            raise ConfigError(
                f"another node at {self._conflict.record.host}:{self._conflict.record.port} is "
                f"called {self.name!r}, too; give each node a name of its own"
            )

    async def leave(self) -> None:
        """Transfer all shards, answer the requests in flight, then close; bounded in time."""
        assert self._transport is not None
        if self._gossip_driver is not None:
            self._gossip_driver.leave()
            with runtime.move_on_after(self._settings.drain_timeout):
                if self._ring.members:
                    await self._handoff.wait_all_transferred()
                self._gossip_driver.left()
                if self._ring.members:
                    await runtime.sleep(_LINGER)  # Clients with an older view still ask here.
        await self._drain(self._transport)

    async def _drain(self, transport: Transport) -> None:
        self._is_draining = True
        for session in list(self._sessions.values()):
            session.send(Goodbye(f"node {self.name} is leaving"))
        transport.flush()
        with runtime.move_on_after(self._settings.drain_timeout):
            while self._sessions or self._handler.waiting or self._turns:
                self._idle = runtime.Event()
                await self._idle.wait()
        if self._gossip_driver is not None:
            self._gossip_driver.stop()
        for session in list(self._sessions.values()):
            session.close(ErrorCode.DRAINING, f"node {self.name} has left")
        if self._peers is not None:
            self._peers.close()
        transport.flush()

    def accept(self, connection: Connection) -> Handler:
        """Accept a connection; before `run` it is closed, and its client may reconnect at once."""
        if self._transport is None or self._nursery is None:
            self.refused("starting")
            return _TooEarly(self.name)
        session = Session(self, self._transport, connection)
        self._sessions[id(session)] = session
        oldest = self._places.arrived(session, connection.address[0])
        if oldest is not None:
            self.refused("stranger_replaced")
            oldest.close(ErrorCode.OVERLOADED, "no hello came before other connections did")
        return session

    def change_rules(self, rules: RuleSet) -> None:
        """Put other rules in force at once; counters of unchanged rules are kept.

        Their version rises even when files were put back with an older date, for clients only
        take what is newer.
        """
        if rules != self.rules_in_force.current:
            if self._metrics.active is not None:
                self._metrics.active.set_rules(
                    rules
                )  # What was counted is named by the rules of before.
            self.rules_in_force.change(rules)
            self._cross_dc.set_rules(self.rules_in_force.current)
            self.counters.add("reloads")
            self._route()
            self._denial_subscriptions.end_all_denials()
            self._lender.recall_all()
            self._handler.slots.call_all()

    def change_access(self, access: Access) -> int:
        """Put other keys and tokens in force; return the number of connections that this ended."""
        self._access = access
        ended = sum([session.recheck(access) for session in list(self._sessions.values())])
        if self._seal is not None:  # Else `run` makes one of these.
            self._seal.change_keys(access.cluster_keys)
        return ended

    def _prove(self, connection: Connection) -> bytes:
        """Return this node's credential for one connection to a peer, by the current key."""
        return self._access.proof_of(self.name, connection.binding)

    def _uptime(self) -> int:
        """Return the time since the start in ns, which the timers of membership use."""
        if self._transport is None or self._began is None:
            return 0
        return round((self._transport.now() - self._began) * 1e9)

    async def _find_seeds(self, resolve: Resolve) -> None:
        while True:
            seeds = [seed for seed in await resolve() if seed != self._settings.advertise_at]
            if seeds and self._gossip_driver is not None:
                self._gossip_driver.join(seeds)
            await runtime.sleep(_RESOLVE_EVERY)  # Name servers send no event for changes.

    async def _forget_denials(self) -> None:
        """Start a new period of the denied keys at regular intervals."""
        while True:
            await runtime.sleep(PERIOD)  # A period of the metric, not a wait for an event.
            if self._metrics.active is not None:
                self._metrics.active.throttled.turn()

    async def _watch_clock(self) -> None:
        """Leave the ring while this node's clock is far from the clocks of other members."""
        was_suspect = False
        while True:
            await runtime.sleep(1.0)  # Clocks drift without an event.
            # A node that is alone in its data center stays: it cannot forward.
            others = [each for each in self._ring.members[:2] if each.name != self.name]
            is_suspect = self._cluster_clock.is_suspect and bool(others)
            if is_suspect != was_suspect and self._gossip_driver is not None:
                was_suspect = is_suspect
                self.counters.add("clock_suspect" if is_suspect else "clock_trusted")
                logger.warning(
                    "the clock of node %s is %s the others'; it %s",
                    self.name,
                    "far from" if is_suspect else "again near",
                    "only forwards" if is_suspect else "decides again",
                )
                self._gossip_driver.set_forward_only(is_suspect)
            if is_suspect and not self._ownership.count:
                self._cluster_clock.jump(self._host_clock.now())

    @property
    def membership(self) -> Membership:
        """The records of all members, as this node has them."""
        return self._membership

    @property
    def is_damped(self) -> bool:
        """Whether this node is out of the ring for a time, after too many suspicions."""
        return self._membership.is_damped

    # -- the view ------------------------------------------------------------------------------

    def _on_change(self, changes: Sequence[Changed]) -> None:
        """Follow a change of the members: log, links, ring, shards and routes."""
        assert self._peers is not None
        if self._observe_change is not None:
            self._observe_change(self.name, changes)
        for change in changes:
            _tell(change)
            if change.before is None or change.before.status is not change.after.status:
                self._changed_at[change.after.name] = self._uptime()
            if change.after.name == self.name:
                self._log_damping(change)
            elif change.after.status is not Status.JOINING:
                self._has_joined.set()
            if change.before is not None and change.after.generation > change.before.generation:
                self._replication.on_member_restarted(NodeId(change.after.name))
            self._ownership.on_member_change(change.before, change.after)
        records = self._membership.records
        if len(self._changed_at) > len(records):
            self._changed_at = {n: at for n, at in self._changed_at.items() if n in records}
        self._peers.update(self._membership.records.values())
        digest = self._membership.digest
        view, placement = self._views(digest)
        if placement != self._placement:
            datacenter = self._settings.datacenter
            # A member that has just joined finds the counters by the ring of the other members.
            old = self._ring if self._ring.members else view.ring(datacenter)
            self._placement, self._ring = placement, placement.ring(datacenter)
            self._handler.placement.ring = self._ring
            self._handoff.on_ring_change(old, self._ring, view.ring(datacenter))
            self._replication.on_ring_change(old, self._ring)
        if view != self._view:
            self._view = view
            names = [member.name for member in view.members]
            logger.info("view of %d members: %s", len(names), ", ".join(names[:20]))
        self._cross_dc.set_view(view, placement, self._membership.datacenters_left)
        self._route()
        self._view_digest = digest

    def _views(self, digest: int) -> tuple[View, View]:
        """Return the members that checks are sent to, and those that should have counters."""
        if digest == self._view_digest:  # As after a suspicion: no shard moves.
            return self._view, self._placement
        placed, routed = self._membership.placed(), self._membership.routed()
        placement = View.of(map(member_of, placed), like=self._placement)
        view = placement if placed == routed else View.of(map(member_of, routed), like=self._view)
        return view, placement

    def _log_damping(self, change: Changed) -> None:
        was_in_ring = change.before is not None and not change.before.forward_only
        if was_in_ring and self.is_damped:
            logger.warning(
                "node %s leaves the ring for a while because members suspected it again and again; "
                "it forwards checks meanwhile: look for pauses of its host or process",
                self.name,
            )

    def _route(self) -> None:
        """Update the routes: the owners of keys, and the links to them."""
        elsewhere = self._cross_dc.elsewhere()
        self._handler.set_remote_rules(
            elsewhere.keys(), self._cross_dc.split_rules(), self._cross_dc.other_rings()
        )
        self._router.routes = NodeRoutes(
            self._view.ring(self._settings.datacenter),
            _Targets(self._target, self._view, self._placement),
            elsewhere,
            me=self.name,
            is_here=self._handler.placement.is_here,
            holder_of=self._handler.placement.holder_of,
        )

    def _target(self, name: NodeId) -> Link | RequestHandler | None:
        return self._handler if name == self.name else self._link_to(name)

    def _is_suspect(self, name: NodeId) -> bool:
        """Return whether membership suspects a member or has declared it dead."""
        record = self._membership.records.get(name)
        return record is None or record.status in (Status.SUSPECT, Status.DEAD, Status.LEFT)

    def _peer_links(self) -> list[tuple[NodeId, Link]]:
        """Return the links to the other members of this data center."""
        names = [member.name for member in self._view.ring(self._settings.datacenter).members]
        links = [(name, self._link_to(name)) for name in names if name != self.name]
        return [(name, link) for name, link in links if link is not None]

    def _new_recovery(self) -> StallRecovery:
        return StallRecovery(
            self._peer_links,
            self._handoff.reclaim,
            self._call_later,
            self._handler.suspend,
            self._handler.resume,
        )

    def _call_later(self, seconds: float, call: Callable[[], None]) -> object:
        assert self._transport is not None
        return self._transport.call_at(self._transport.now() + seconds, call)

    def _link_to(self, name: NodeId) -> Link | None:
        return None if self._peers is None else self._peers.link(name)

    async def _reach(self, name: NodeId) -> None:
        """Connect to a joining member before it receives shards of this node."""
        record = self._membership.records.get(name)
        link = self._link_to(name)
        is_joining = record is not None and record.status is Status.JOINING
        if is_joining and link is not None and not link.is_ready:
            await call(link, Ping, Pong)

    def _bulk_to(self, name: NodeId) -> Link | None:
        return None if self._peers is None else self._peers.bulk(name)

    def _on_conflict(self, conflict: Conflict) -> None:
        logger.error(
            "node name conflict: name=%s address=%s:%d",
            conflict.record.name,
            conflict.record.host,
            conflict.record.port,
        )
        if conflict.steps_down:
            self._conflict = conflict
            self._conflicted.set()

    # -- what a session asks -------------------------------------------------------------------

    def admit(self, hello: Hello, address: Address, binding: bytes) -> frozenset[Scope] | None:
        """Return the scopes of the sender of a hello; None to refuse it."""
        scopes = self._access.scopes_of(hello, binding)
        if scopes is None:
            self._refusal_log.log(hello, address, self._clock.now())
        return scopes

    def sender(self, hello: Hello) -> Sender[Caller]:
        """Return the memory of a sender, which survives its connections."""
        return self._senders.of(hello.role, hello.name, hello.session)

    def ledger(self, name: str) -> RefundLedger:
        """Return the recent charges of a token, which bound its refunds."""
        if name not in self._ledgers:
            self._ledgers[name] = RefundLedger(self._clock.now, self.rules_in_force.limit_of)
        return self._ledgers[name]

    def foreign(self, name: str, keys: Sequence[bytes]) -> str | None:
        """Return why a token must not use these keys; None when it may."""
        token = self._access.tokens.get(name)
        if token is None or token.domains is None:
            return None
        domains = token.domains
        for number in dict.fromkeys([int.from_bytes(key[:8], "big") for key in keys]):
            rule = self.rules_in_force.current.by_id(number)
            if rule is None or rule.domain not in domains:
                where = "a limit in no rule" if rule is None else f"the domain {rule.domain!r}"
                return (
                    f"the token {name!r} must use rules of {', '.join(sorted(domains))}, "
                    f"got {where}; add the domain to its domains in tokens.toml"
                )
        return None

    def cut(self, units: int) -> None:
        """Count refunded units that were cut because this token was not charged them."""
        if units:
            self.counters.add("refused_refunds", units)

    def welcome(self, session: Caller, hello: Hello) -> Welcome | Refused:
        """Return the answer to an accepted hello."""
        if self._is_draining:
            return Refused(0, ErrorCode.DRAINING, f"node {self.name} is leaving; ask another")
        if hello.role is Role.NODE:
            self._places.take_member(session)
        elif (reason := self._places.take_client(session, hello.name)) is not None:
            return Refused(0, ErrorCode.OVERLOADED, reason)
        return Welcome(self.name, self._view.hash, self.rules_in_force.current.version)

    def cost_of(self, request: Request) -> int:
        """Estimate the work of a request in microseconds; 0 when it is little for its size.

        A frame without carried limits whose rows are held here takes one call of the engine.
        """
        keys = request.batch.keys
        if request.batch.limits:
            return _CARRIED_ROW_COST * len(keys)
        if len(keys) <= DIRECT_COST // _FOREIGN_ROW_COST:
            return 0
        is_here = self._handler.placement.holds(keys)
        return 0 if is_here else _FOREIGN_ROW_COST * len(keys)

    def wait_turn(
        self, sender: Sender[Caller], steps: Iterator[None], rows: int, size: int = 0
    ) -> bool:
        """Let a request wait for its turn; return False when too many wait."""
        assert self._transport is not None
        if not self._turns.has_room(sender, rows, size):
            self.counters.add("shed", rows)
            self.refused("overloaded")
            return False
        if not self._turns:
            self._transport.call_soon(self._step)
        self._turns.add(sender, steps, rows, size)
        return True

    def _step(self) -> None:
        """Do one step of one request that waits; the next one in a turn of its own."""
        assert self._transport is not None
        self._turns.step()
        if self._turns:
            self._transport.call_soon(self._step)
        else:
            self._idle.set()

    def decide(
        self, request: Request, batch: Batch, waited_ns: int | None = None
    ) -> Results | Refused | list[Part]:
        """Decide the rows that are held here; return parts when some rows must wait."""
        held_up_ns = self._notice_stall() if waited_ns is None else waited_ns
        if batch.limits:
            refusal = oversized(request.seq, batch)
            if refusal is not None:
                self.refused("oversized_limit")
                return refusal
            overruled = overrule(batch, self.rules_in_force.counts_by)
            if overruled:
                self.counters.add("overruled_limits", overruled)
        if held_up_ns > request.deadline_ms * 1_000_000 and batch.op is Op.CHECK:
            # The caller has given up. Frames arrive in order, so the oldest ones are shed first.
            self.counters.add("shed", len(batch))
            reason = (
                f"node {self.name} is overloaded: the check waited {held_up_ns // 1_000_000} ms"
            )
            return Refused(request.seq, ErrorCode.TOO_LATE, reason)
        measures = self._metrics.active
        if measures is not None and measures.is_timed:
            began = measures.stopwatch()
            verdicts = self._handler.decide_now(request, batch)
            if isinstance(verdicts, Results):
                measures.decided_ns.add(measures.stopwatch() - began)
        else:
            verdicts = self._handler.decide_now(request, batch)
        if isinstance(verdicts, Refused):
            if verdicts.code == ErrorCode.OVERLOADED:
                self.counters.add("shed", len(batch))
                self.refused("overloaded")
            else:
                self.refused("not_owner")
        return verdicts

    def _held_up_ns(self) -> int:
        """Return for how long the present datagram waited in the socket, in ns."""
        return 0 if self._transport is None else self._transport.held_up_ns

    def _notice_stall(self) -> int:
        """Begin a recovery if the present datagram waited too long; return its wait in ns."""
        assert self._transport is not None
        held_up_ns = self._transport.held_up_ns
        if held_up_ns >= STALLED_NS and self._recovery.notice(held_up_ns, self._uptime()):
            logger.warning(
                "process was stopped or overloaded: node=%s datagram_waited_ms=%d; "
                "asking the other members which shards they took over",
                self.name,
                held_up_ns // 1_000_000,
            )
            self.counters.add("stalls")
        return held_up_ns

    def was_decided_elsewhere(self, session: int, seq: int) -> bool:
        """Return whether a row of this request was already decided as a repeat."""
        return self._decided_checks.has_any_of(session, seq)

    def asked(
        self, sender: Sender[Caller], request: Request, batch: Batch, rows: list[int] | None
    ) -> None:
        """Remember the keys of direct checks, which are answered now."""
        now, deadline_ns = self._clock.now(), request.deadline_ms * 1_000_000
        session = sender.identity[1]
        self._decided_checks.asked(
            session, request.seq, batch.keys, batch.costs, rows, now, deadline_ns
        )

    def forward(
        self,
        sender: Sender[Caller],
        request: Request,
        part: Part,
        waited_ns: int | None = None,
    ) -> None:
        """Decide a part of a request in a task of its own."""
        assert self._nursery is not None
        if part.batch.op is Op.CHECK and part.batch.leases:
            self._note_waiters(sender, part.batch.leases)
        assert self._transport is not None
        waited_ms = (self._transport.held_up_ns if waited_ns is None else waited_ns) // 1_000_000
        if waited_ms:
            request = replace(request, deadline_ms=max(1, request.deadline_ms - waited_ms))
        self._nursery.start_soon(self._forward, sender, request, part)

    def _note_waiters(self, sender: Sender[Caller], tickets: Sequence[int]) -> None:
        """Remember the sender of tickets, which another member will call when it keeps a slot."""
        for ticket in tickets:
            if ticket:
                self._waiters[ticket] = sender
                self._waiters.move_to_end(ticket)
        while len(self._waiters) > MAX_WAITERS:
            self._waiters.popitem(last=False)

    def on_slots_free(self, tickets: list[int]) -> None:
        """Forward to clients that another member keeps slots for them."""
        free_tickets: dict[Caller, list[int]] = {}
        for ticket in tickets:
            sender = self._waiters.pop(ticket, None)
            if sender is not None and sender.session is not None:
                free_tickets.setdefault(sender.session, []).append(ticket)
        for session, passed_on in free_tickets.items():
            self._call_waiters(session, passed_on)

    async def _forward(self, sender: Sender[Caller], request: Request, part: Part) -> None:
        measures = self._metrics.active
        began = 0 if measures is None else measures.stopwatch()
        decide = self._decide_and_answer
        if not await self.containment.run("forwarding", decide, sender, request, part):
            self.refused("internal")
            self._reply(sender, request.seq, internal_refusal(request.seq))
        if measures is not None:
            measures.forwarded_ns.add(measures.stopwatch() - began)
        self._idle.set()

    async def _decide_and_answer(
        self, sender: Sender[Caller], request: Request, part: Part
    ) -> None:
        verdicts = await self._handler.decide(request, part)
        if verdicts is None:
            reply: Message = Refused(
                request.seq, ErrorCode.NOT_HERE, f"node {self.name} could not have these keys"
            )
        else:
            reply = self.answer(request, verdicts, part.rows)
        if verdicts is not None:
            sender.note(part.batch, verdicts)
        self._reply(sender, request.seq, reply)
        if sender.session is not None and verdicts is not None:
            self._denial_subscriptions.on_denied_elsewhere(sender.session, part.batch, verdicts)
            if self._handler.waits_here(part.batch):
                slots, now = self._handler.slots, self._clock.now()
                slots.on_answered(sender.session, part.batch, verdicts, now)

    def _reply(self, sender: Sender[Caller], seq: int, reply: Message) -> None:
        """Remember the answer to a request, and send it on the sender's present connection."""
        payload = encode(reply)
        sender.remember(seq, payload)
        if sender.session is not None and self._transport is not None:
            sender.session.send_payload(payload)
            self._transport.flush()

    def answer(self, request: Request, verdicts: Results, rows: list[int] | None = None) -> Answer:
        """Return the answer for some rows of a request; None for all."""
        return Answer(
            request.seq,
            self._view.hash,
            self.rules_in_force.current.version,
            verdicts,
            rows,
        )

    def serve_peer(self, session: Caller, name: str, message: Message) -> None:
        """Answer a message of another node."""
        record = self._membership.records.get(name)
        match message:
            case Exchange(seq):
                assert self._gossip_driver is not None
                try:
                    session.send(self._gossip_driver.exchanged(message))
                except BadDatagram as error:
                    self.refused("bad_records")
                    session.send(Refused(seq, ErrorCode.BAD_MESSAGE, str(error)))
            case Pull():
                assert self._nursery is not None
                self._nursery.start_soon(self._answer_pull, session, NodeId(name), message)
            case Copy(seq, counts):
                self._ownership.keep_replica(NodeId(name), as_snapshot(counts), self._clock.now())
                self.counters.add("copies_received")
                session.send(Done(seq))
            case TransferOffer(seq, shards):
                self._handoff.on_offer(NodeId(name), shards)
                session.send(Done(seq))
            case TransferAck(seq, shards, transfer_id):
                self._handoff.on_acknowledged(NodeId(name), shards, transfer_id)
                session.send(Done(seq))
            case AskTakenOver(seq):
                session.send(TakenOver(seq, self._handler.takeover.taken_over_from(NodeId(name))))
            case WindowCounts():
                datacenter = record.datacenter if record else ""
                session.send(self._cross_dc.receive_counts(datacenter, message))
            case Digest():
                datacenter = record.datacenter if record else ""
                session.send(self._cross_dc.receive_digest(datacenter, message))
            case RecoverCounts():
                datacenter = record.datacenter if record else ""
                session.send(self._cross_dc.receive_recovery_request(datacenter, message))
            case _:
                raise AssertionError(message)

    async def _answer_pull(self, session: Caller, name: NodeId, pull: Pull) -> None:
        async def answer() -> None:
            payload = encode(await self._handoff.answer(name, pull))
            # The new owner does not have the subscriptions of clients.
            self._denial_subscriptions.end_all_denials()
            self._handler.slots.call_all()
            session.send_payload(payload)

        if not await self.containment.run("pull", answer):
            self.refused("internal")
            session.send(internal_refusal(pull.seq))
        if self._transport is not None:
            self._transport.flush()

    def members(self, seq: int) -> Members:
        """Return the members."""
        rows = [
            MemberRow(
                record.name,
                record.host,
                record.port,
                record.datacenter,
                record.zone,
                record.weight,
                _state_of(record),
            )
            for _, record in sorted(self._membership.records.items())
        ]
        return Members(seq, self._view.hash, rows)

    def peers(self, seq: int) -> PeersMessage:
        """Return everything that this node has recorded of the members."""
        rows: list[object] = []
        uptime = self._uptime()
        for name, record in sorted(self._membership.records.items()):
            is_me = name == self.name
            rtt_ns = None if is_me else self._membership.rtt_ns(name)
            ring = self._view.ring(record.datacenter)
            rows.append(
                {
                    "name": name,
                    "host": record.host,
                    "port": record.port,
                    "datacenter": record.datacenter,
                    "zone": record.zone,
                    "weight": record.weight,
                    "state": _state_of(record),
                    "state_for_s": (uptime - self._changed_at.get(name, 0)) / 1e9,
                    "generation": record.generation,
                    "incarnation": record.incarnation,
                    "version": record.version,
                    "owned_shards": ring.owned_count(NodeId(name)),
                    "rtt_ms": None if rtt_ns is None else rtt_ns / 1e6,
                    "clock_offset_ms": self._cluster_clock.offset_ns / 1e6 if is_me else None,
                    "clock_suspect": self._cluster_clock.is_suspect if is_me else None,
                }
            )
        return PeersMessage(seq, rows)  # type: ignore[arg-type]

    def listen(self, session: Caller) -> None:
        """Subscribe a client to the denials that end early."""
        self._denial_subscriptions.subscribe(session)

    def denied(self, session: Caller, batch: Batch, verdicts: Results) -> None:
        """Record the denials of a batch, for subscribers."""
        now = self._clock.now()
        self._denial_subscriptions.on_denied(session, batch, verdicts, now)
        if batch.leases:
            self._handler.slots.on_answered(session, batch, verdicts, now)

    def unsettle(self, session: Caller) -> None:
        """Revoke all denials that a client may have cached from this node."""
        if self._denial_subscriptions.is_subscribed(session):
            session.send(DenialRevoked([]))

    def lend(self, session: Caller, borrow: LeaseRequest) -> LeaseGrant:
        """Grant a lease of a key to a client."""
        lent = self._lender.lend(
            session,
            borrow,
            self._clock.now(),
            is_ours=self._handler.placement.may_lend(borrow.key),
        )
        if lent.units:
            self.counters.add("leases")
        self.counters.add("lease_spent", sum(borrow.spent))
        return lent

    def _call_waiters(self, session: Caller, tickets: list[int]) -> None:
        self.counters.add("slots_called", len(tickets))
        for start in range(0, len(tickets), MAX_KEYS):
            session.send(SlotsFree(tickets[start : start + MAX_KEYS]))
        if self._transport is not None:
            self._transport.flush()

    def _recall(self, session: Caller, keys: list[bytes]) -> None:
        self.counters.add("leases_recalled", len(keys))
        session.send(LeaseRecall(keys))
        if self._transport is not None:
            self._transport.flush()

    def _revoke_denials(self, session: Caller, keys: list[bytes]) -> None:
        self.counters.add("denials_lifted", len(keys) or 1)
        session.send(DenialRevoked(keys))
        if self._transport is not None:
            self._transport.flush()

    def reported(self, name: str, report: Report) -> None:
        """Count decisions that a client made itself, once."""
        if not self._reports.is_new(name, report):
            self.counters.add("repeated_reports")
            return
        self.counters.add("reports")
        rows = zip(report.keys, report.codes, report.sources, report.counts, strict=True)
        taken, named = [], 0
        for at, row in enumerate(rows):
            if self.foreign(name, [row[0]]) is not None:
                self.refused("report_domain")
                continue
            taken.append(row)
            named += at < report.named
            self.counters.add(reported_counter(row[1], row[2]), row[3])
        if self._metrics.active is not None:
            self._metrics.active.reported(taken, named)

    def throttled(self, seq: int, count: int) -> Throttled:
        """Return the keys and the rules that this node denied most."""
        measures = self.measure()
        most = measures.throttled.most(count)
        rules = measures.most_denied_rules()
        return Throttled(
            seq,
            measures.throttled.total,
            [each.key for each in most],
            [each.denied for each in most],
            [each.error for each in most],
            [rule for rule, _ in rules],
            [number for _, results in rules for number in results],
        )

    def ask_to_leave(self) -> None:
        """Start to leave the cluster, as an operator asked."""
        logger.info("node %s was asked to leave", self.name)
        self.asked_to_leave.set()

    def held_shards(self) -> list[int]:
        """Return the shards that this node counts."""
        return [*compress(range(SHARDS), self._ownership.held)]

    def used(self, key: bytes) -> int | None:
        """Return the used units of a key, also above its limit; None when it is elsewhere."""
        is_here = self._ownership.held[shard_of(key)]
        return self._engine.used(key, self._clock.now()) if is_here else None

    def rules(self, seq: int) -> bytes:
        """Return the encoded rules."""
        return self.rules_in_force.packed(seq)

    def stats(self, seq: int) -> Stats:
        """Return the counters and the present sizes: keys, shards, members, connections."""
        assert self._transport is not None
        counters = Counter(self.counters.as_dict())
        for cause, count in self._transport.refusals.items():
            counters[f"refused_{cause}"] += count
        for name, count in self._membership.counters.items():
            counters[f"gossip_{name}"] += count
        if self._gossip_driver is not None:
            for cause, count in self._gossip_driver.refused.items():
                counters[f"gossip_refused_{cause}"] += count
        for place, count in self.containment.by_place.items():
            counters[f"internal_errors_{place}"] += count
        counters.update(self._cross_dc.stats())
        return Stats(
            seq,
            dict(counters)
            | {
                "connections": len(self._sessions),
                "unsent_bytes": self._unsent.total,
                "slot_waiters": len(self._handler.slots),
                "slot_waiters_refused": self._handler.slots.refused,
                "copied_keys": len(self._ownership.replicas),
                "evicted": self._engine.evicted,
                "gossip_health": self._membership.health,
                "keys": len(self._engine),
                "held_shards": self._ownership.count,
                "owned_shards": self._handoff.owned_count,
                "rules_version": self.rules_in_force.current.version,
                "rules_hash": self.rules_in_force.hash,
                "rules_refused": int(bool(self.rules_refusal)),
            },
        )

    def refused(self, cause: str) -> None:
        """Count a refusal by its cause."""
        self.counters.add(f"refused_{cause}")

    def sent(self, session: Caller, size: int) -> None:
        """Count a message in flight; sessions that do not read may be closed."""
        self._unsent.sent(session, size)

    def repeated(self) -> None:
        """Count a repeated request that was not decided again."""
        self.counters.add("repeated")

    def left(self, session: Caller) -> None:
        """Forget a connection."""
        self._sessions.pop(id(session), None)
        self._unsent.left(session)
        self._places.left(session)
        self._denial_subscriptions.on_client_left(session)
        self._handler.slots.on_caller_gone(session, self._clock.now())
        self._idle.set()

    # -- admin port ------------------------------------------------------------------------------

    def measure(self) -> Metrics:
        """Turn on the detailed metrics: decisions by rule, times, and denied keys."""
        return self._metrics.turn_on(self.rules_in_force.current)

    @property
    def settings(self) -> NodeSettings:
        """Settings of this node."""
        return self._settings

    @property
    def access(self) -> Access:
        """Keys and tokens in force."""
        return self._access

    @property
    def version(self) -> str:
        """Version of the software."""
        return self._membership.records[self.name].version

    @property
    def is_running(self) -> bool:
        """Whether `run` has started."""
        return self._gossip_driver is not None

    @property
    def state(self) -> str:
        """State of this node; `leaving` from when it was asked to leave."""
        record = self._membership.records[self.name]
        is_going = self.asked_to_leave.is_set() and record.status is not Status.LEFT
        return "leaving" if is_going else _state_of(record)

    @property
    def rule_set(self) -> RuleSet:
        """Rules in force."""
        return self.rules_in_force.current

    @property
    def ring(self) -> Ring:
        """Ring of the members that should have the counters of this data center."""
        return self._ring

    @property
    def cross_dc(self) -> CrossDcCounts:
        """Counts between data centers."""
        return self._cross_dc

    def sizes(self) -> tuple[dict[int, int], int]:
        """Return the number of counters by rule id, and of those without a rule."""
        return self._engine.sizes()

    def holds(self, shard: int) -> bool:
        """Return whether this node counts a shard."""
        return bool(self._ownership.held[shard])

    def rings(self) -> dict[str, Ring]:
        """Return the rings by which checks are sent, by data center."""
        return {name: self._view.ring(name) for name in self._view.datacenters}

    def rtt_ns(self, name: str) -> int | None:
        """Return the round trip to a member; None before the first probe."""
        return self._membership.rtt_ns(name)

    async def ask(self, batch: Batch) -> Results:
        """Decide a batch as if it came from a client: here or at its owners.

        Long enough to ask a standby after an owner that is silent.
        """
        within = 3 * self._settings.forward_timeout
        return await self._router.decide(batch, lambda _: False, hops=1, within=within)

    async def counters_of(self, name: str) -> dict[str, int] | None:
        """Return the counters of a member; None when it does not answer."""
        if name == self.name:
            return self.stats(1).counters
        link = self._link_to(NodeId(name))
        return None if link is None else await fetch_counters(link)

    async def throttled_of(self, name: str, count: int) -> Throttled | None:
        """Return the keys that a member denied most; None when it does not answer."""
        if name == self.name:
            return self.throttled(1, count)
        link = self._link_to(NodeId(name))
        return None if link is None else await fetch_throttled(link, count)

    # -- events of links ---------------------------------------------------------------------------

    def on_versions(self, link: Link, view: int, rules: int) -> None:
        """Ignore the versions: gossip changes the view, and each node has its own rules."""

    def on_reachable(self, link: Link, reachable: bool) -> None:
        """Log the change, and probe a member at once whose link was lost."""
        host, port = link.address
        if reachable:
            # A member has up to three links; only the first one is logged at level info.
            is_known = self._peers is not None and self._peers.reaches(link.address, but=link)
            is_news = link in self._lost_links or not is_known
            self._lost_links.discard(link)
            level = logging.INFO if is_news else logging.DEBUG
            logger.log(level, "peer %s at %s:%d is within reach", link.name, host, port)
        else:
            self._lost_links.add(link)
            logger.warning("peer at %s:%d is lost: %s", host, port, link.refusal)
            if link.name and self._gossip_driver is not None:
                with suppress(KeyError):
                    self._gossip_driver.report_unreachable(link.name)


class _Targets(Mapping[NodeId, Target]):
    """Links to the members of two views, each made when it is first needed."""

    def __init__(self, find: Callable[[NodeId], Target | None], *views: View) -> None:
        self._find = find
        self._names = dict.fromkeys(member.name for view in views for member in view.members)
        self._found: dict[NodeId, Target] = {}

    def __getitem__(self, name: NodeId) -> Target:
        found = self._found.get(name)
        if found is None:
            found = self._find(name) if name in self._names else None
            if found is None:
                raise KeyError(name)
            self._found[name] = found
        return found

    def __iter__(self) -> Iterator[NodeId]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _TooEarly:
    """Handler of a connection that came before `run`."""

    def __init__(self, name: NodeId) -> None:
        self._name = name

    def on_open(self, connection: Connection) -> None:
        connection.close(ErrorCode.OVERLOADED, f"node {self._name} is starting; try again")

    def on_message(self, payload: bytes) -> None:
        """Ignore the message: the connection is being closed."""

    def on_close(self, code: int, reason: str) -> None:
        """Do nothing: there is no state."""


def _state_of(record: Record) -> str:
    is_forwarding = record.forward_only and record.status in (Status.ALIVE, Status.SUSPECT)
    return "forwarding" if is_forwarding else record.status.name.lower()


def _tell(change: Changed) -> None:
    """Log the change of a member's state."""
    before, after = change.before, change.after
    was = "unknown" if before is None else _state_of(before)
    now = _state_of(after)
    if was != now:
        level = logging.WARNING if after.status in (Status.SUSPECT, Status.DEAD) else logging.INFO
        logger.log(
            level, "member %s at %s:%d is %s, was %s", after.name, after.host, after.port, now, was
        )


def _version() -> str:
    try:
        return version("ringfence")
    except PackageNotFoundError:
        return ""
