"""A node: a member of the cluster that decides for its shards and forwards other checks.

Builds, starts and ends its parts: `shard_counters` (counters and their transfers), `cluster_view`
(members, rings and routes), `handler` (decisions on checks) and `open_sessions` (connections).
Clock, randomness and transport are injected, so that a simulation runs the same code.
"""

import logging
from collections.abc import Callable, Sequence
from random import Random

from gossip import Changed, Membership, Record, Status
from gossip import Settings as GossipSettings
from gossip.cluster_clock import ClusterClock
from gossip.datagrams.seal import Seal
from hashring import NodeId
from node.config.access import Access
from node.config.settings import NodeSettings
from node.context.containment import Containment
from node.context.node_context import NodeContext, RunningNode
from node.cross_dc.split_borrowing import SplitBorrowing
from node.membership.clock import ClusterTime, ProbeStamps
from node.membership.cluster_view import ClusterView, Resolve, state_of
from node.membership.gossip_driver import Datagrams, SealedDatagrams
from node.membership.link_events import LinkEvents
from node.membership.peer_links import PeerLinks
from node.membership.peer_requests import PeerRequests
from node.metrics.counters import Counters
from node.metrics.detailed import MetricsSwitch
from node.metrics.node_queries import NodeQueries
from node.requests.client_caches import ClientCaches
from node.requests.deduplication import DecidedChecks
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.handler import RequestHandler
from node.requests.placement import ShardPlacement
from node.requests.request_dispatcher import RequestDispatcher
from node.requests.rules_in_force import RulesInForce
from node.requests.sessions.access_control import AccessControl
from node.requests.sessions.caller import Caller
from node.requests.sessions.client_notices import ClientNotices
from node.requests.sessions.node_api import NodeApi
from node.requests.sessions.open_sessions import OpenSessions
from node.requests.sessions.sent_answers import SentAnswers
from node.requests.sessions.session import Session
from node.requests.slot_waiters import ForwardedWaiters, SlotWaiters
from node.requests.standby_takeover import StandbyTakeover
from node.shards.ownership.shard_states import OnTransition
from node.shards.shard_counters import ShardCounters, build_shard_counters
from node.shards.stall_recovery import StallRecovery, StallWatch
from ringfence import __version__, runtime
from ringfence.errors import ConfigError, RingfenceError, UntrustedPeer
from ringfence.peering.clock import Clock
from ringfence.peering.link import LinkSettings
from ringfence.peering.link.errors import CredentialRejected
from ringfence.peering.routing import Router
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.rules import RuleSet
from ringfence.transport.interface import Connection, Handler, Transport
from ringfence.wire import Batch, ErrorCode, Hello, Results, Role

__all__ = ["Node"]

logger = logging.getLogger("ringfence.node")

_JOIN_PATIENCE = 3.0
"""Seconds that a node searches for other members before it starts alone."""
_FETCH_PATIENCE = 30.0
"""Seconds that a node fetches its shards before it becomes alive without the rest: enough for
millions of counters."""
_LINGER = 1.0
"""Seconds that a node keeps forwarding after it has transferred all shards."""
_LAST_COUNTS = 2.0
"""Most seconds in which the last node of a data center sends its counts to the others."""


class Node:
    """One member of the cluster. Create it, then `run` it on a transport that calls `accept`.

    A shard with at least one counter is transferred in at least `least_parts` parts; simulations
    use several.
    """

    _seal: Seal | None = None

    def __init__(
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
        on_transition: OnTransition | None = None,
        stopwatch: Callable[[], int] | None = None,
    ) -> None:
        """`containment` handles internal errors; by default the node makes its own.

        `datagrams` replaces the sealed datagrams of gossip. A node that `is_founder` is in the ring
        from the start: give `run` the records of all founders. `on_change` is called when this
        node's records of members change, and `on_transition` before the state of a shard changes.
        `stopwatch` returns the processor time in ns; None is a simulation, which must repeat.
        """
        self.name = NodeId(settings.name)
        self.settings = settings
        self.counters = Counters()
        self.containment = containment or Containment(logger, runtime.current_time)
        self.rules = RulesInForce(rules)
        self.asked_to_leave = runtime.Event()
        """Set when an operator asks this node to leave."""
        self.certificates_expire: dict[str, float] = {}
        """Expiry of the certificates of the node and its authority, in seconds since 1970."""
        self._datagrams, self._is_founder, self._random = datagrams, is_founder, random
        self._running = RunningNode(stopwatch)
        self.clock = ClusterTime(clock, ClusterClock())
        self.membership = _new_membership(
            settings, gossip or GossipSettings.lan(), random, self.clock, is_founder=is_founder
        )
        self._build(access, least_parts, on_change, on_transition)

    def _build(
        self,
        access: Access,
        least_parts: int,
        on_change: Callable[[NodeId, Sequence[Changed]], None] | None,
        on_transition: OnTransition | None,
    ) -> None:
        """Create the parts of the node, each after the parts that it uses."""
        running, membership = self._running, self.membership
        context = NodeContext(
            *(self.settings, self.name, self.clock, self._random, self.rules),
            *(self.containment, self.counters, running),
        )
        notices = ClientNotices(self.counters, running)
        senders: SentAnswers[Caller] = SentAnswers(clock=self.clock.now)
        decided_checks = DecidedChecks(senders.find)
        subscriptions: DenialSubscriptions[Caller] = DenialSubscriptions(notices.revoke_denials)
        self.access = AccessControl(context, access, senders)
        links = PeerLinks(
            *(membership, Hello(Role.NODE, self.name, b"", 0), self.access.prove),
            *(_link_settings(self.settings), self._random),
        )
        shards = build_shard_counters(
            *(context, links, notices, decided_checks, subscriptions),
            first_id=max(1, self.clock.host.now()),
            least_parts=least_parts,
            on_transition=on_transition,
        )
        self.metrics = MetricsSwitch(self.rules.rule)
        handler = _build_handler(
            context, shards, links, notices, decided_checks, subscriptions, self.metrics
        )
        cluster = ClusterView(context, membership, links, shards, handler, on_change)
        recovery = StallRecovery(
            *(cluster.peer_links, shards.handoff.reclaim, running.call_later),
            *(handler.suspend, handler.resume),
        )
        self._stalls = StallWatch(context, recovery)
        self.sessions = OpenSessions(context, cluster, subscriptions, handler.slots)
        waiters = ForwardedWaiters(notices.call_waiters)
        self._link_events = LinkEvents(links, cluster.report_unreachable, waiters.on_slots_free)
        self.dispatcher = RequestDispatcher(
            *(context, cluster, handler, decided_checks, subscriptions, waiters),
            *(self.metrics, self._stalls.notice),
        )
        self.queries = NodeQueries(
            *(context, membership, cluster, links, shards, handler, self.sessions, self.metrics)
        )
        self.links, self.shards, self.handler, self.cluster = links, shards, handler, cluster
        self._subscriptions = subscriptions
        caches = ClientCaches(
            *(context, shards.lender, subscriptions, handler, self.access, self.metrics)
        )
        peer_requests = PeerRequests(context, membership, cluster, shards, handler, subscriptions)
        self._api = NodeApi(
            *(self.containment, self.counters, self.rules, self.access, self.sessions),
            *(self.dispatcher, caches, self.queries, peer_requests, self.ask_to_leave),
        )

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
        has the same name, or when all nodes that answer reject this node.
        """
        shards, cluster, supervise = self.shards, self.cluster, self.containment.supervise
        self._running.start(transport)
        keys = self.access.current.cluster_keys
        self._seal = Seal(keys, self.settings.cluster, self._random.getrandbits(64))
        datagrams = self._datagrams or SealedDatagrams(self._seal)
        gossip = cluster.start(transport, datagrams, self._link_events, self._stalls.notice)
        async with runtime.open_task_group() as nursery:
            self._running.nursery = nursery
            for part in (shards.handoff, shards.replication, self.handler, shards.cross_dc):
                nursery.start_soon(part.run)
            gossip.start()
            if resolve is not None:
                nursery.start_soon(supervise, "seeds", cluster.find_seeds, resolve)
            if founders:
                gossip.found(founders)
                shards.ownership.start(cluster.ring.shards_of(self.name))
            elif resolve is not None:
                await self._join()
            if not self._is_founder:
                gossip.become_alive()
            nursery.start_soon(supervise, "clock", cluster.watch_clock)
            nursery.start_soon(supervise, "throttled", self.metrics.renew_denied_keys)
            task_status.started()
            await cluster.raise_on_conflict()

    async def _join(self) -> None:
        """Wait until other members are known and this node's shards are fetched, or until a
        time-out."""
        with runtime.move_on_after(_JOIN_PATIENCE):
            await self.cluster.has_joined.wait()
        if self.cluster.has_joined.is_set():
            with runtime.move_on_after(_FETCH_PATIENCE):
                await self.shards.handoff.wait_all_fetched()
        elif (refusal := self.links.refusal) is not None:
            raise ConfigError(f"node {self.name!r} cannot join: {refusal}{self._advice(refusal)}")
        else:
            logger.warning("no member of a ring answered; node %s begins alone", self.name)

    def _advice(self, refusal: RingfenceError) -> str:
        """Describe what to change when all nodes that answer reject this node, or this node
        them; empty when the refusal says it."""
        if isinstance(refusal, UntrustedPeer):
            return (
                "; copy ca.pem from a node of this cluster, or remove the setting `keys` if its "
                "nodes have no keys"
            )
        if not isinstance(refusal, CredentialRejected):
            return ""
        access = self.access.current
        keys = "no `keys`" if access.is_open else "`keys`"
        return f"; this node has {keys}, and `cluster` is {access.cluster!r}"

    async def leave(self) -> None:
        """Transfer all shards, answer the requests in flight, then close. Each step has a
        time-out."""
        gossip, cluster = self.cluster.gossip, self.cluster
        assert self._running.transport is not None
        if gossip is not None:
            gossip.leave()
            patience, handoff = self.settings.drain_timeout, self.shards.handoff
            handoff.is_leaving = True
            had_peer = cluster.has_local_peer
            await handoff.wait_all_transferred(patience, lambda: cluster.has_local_peer)
            is_last = not had_peer or cluster.is_datacenter_leaving
            is_empty, keys = self.shards.ownership.is_empty, len(self.shards.engine)
            if keys and not (is_empty or is_last):
                logger.warning(
                    "node %s stops before other members have fetched its counters: keys=%d; "
                    "standbys use their replicas",
                    *(self.name, keys),
                )
            if is_last:
                are_sent = await self.shards.cross_dc.send_all(min(_LAST_COUNTS, patience))
                if cluster.is_datacenter_leaving and not (is_empty or cluster.is_alone):
                    self._log_lost_counters(are_global_sent=are_sent)
            if is_last or is_empty:
                gossip.left()
                if cluster.ring.members:
                    # Clients with an older view still ask here, and no event marks the last one.
                    await runtime.sleep(min(_LINGER, patience))
        await self._drain()

    def _log_lost_counters(self, *, are_global_sent: bool) -> None:
        """Log how many counters are lost, because no member of this data center stays that could
        fetch them."""
        sizes, without_rule = self.shards.engine.sizes()
        has_others = bool(self.shards.global_keys.others)
        rules = [self.rules.rule(identity) for identity in sizes]
        shared = sum(
            count
            for rule, count in zip(rules, sizes.values(), strict=True)
            if has_others and rule is not None and rule.scope == "global"
        )
        lost = sum(sizes.values()) + without_rule - shared
        if shared and not are_global_sent:
            other = "not all counts of global limits were sent to other data centers"
        elif shared:
            other = "other data centers have the counts of global limits"
        else:
            other = "only a node that stays can fetch them"
        if lost or (shared and not are_global_sent):
            logger.warning(
                "node %s stops and no other node of its data center stays, so its counters are "
                "lost: lost_keys=%d global_keys=%d; %s",
                *(self.name, lost, shared, other),
            )

    async def _drain(self) -> None:
        self.sessions.announce_leave()
        self._running.flush()
        with runtime.move_on_after(self.settings.drain_timeout):
            while self.sessions or self.dispatcher.is_busy:
                await self._running.wait_work_done()
        if self.cluster.gossip is not None:
            self.cluster.gossip.stop()
        self.sessions.close()
        self.links.close()
        self._running.flush()

    def accept(self, connection: Connection) -> Handler:
        """Accept a connection; before `run` it is closed, and its client may reconnect at once."""
        if self._running.transport is None or self._running.nursery is None:
            self.counters.refused("starting")
            return _TooEarly(self.name)
        session = Session(self._api, self._running.transport, connection)
        self.sessions.add(session, connection.address[0])
        return session

    def ask_to_leave(self) -> None:
        """Start to leave the cluster, because an operator requested it."""
        logger.info("node %s was asked to leave", self.name)
        self.asked_to_leave.set()

    # -- changes of the configuration ----------------------------------------------------------

    def change_rules(self, rules: RuleSet) -> bool:
        """Replace the rules immediately; return False if they are equal to the current ones.

        Counters of unchanged rules are kept.

        The version of the rules always increases, even if the new files are older, because clients
        only accept newer rules.
        """
        if rules == self.rules.current:
            return False
        if self.metrics.active is not None:
            self.metrics.active.set_rules(rules)  # Earlier counts have the names of the old rules.
        self.rules.change(rules)
        self.shards.cross_dc.set_rules(self.rules.current)
        self.counters.add("reloads")
        self.cluster.route()
        self._subscriptions.end_all_denials()
        self.shards.lender.recall_all()
        self.handler.slots.call_all()
        return True

    def change_access(self, access: Access) -> int:
        """Replace the keys and tokens; return the number of connections that were closed because of
        it."""
        self.access.current = access
        ended = self.sessions.recheck(access)
        if self._seal is not None:  # Else `run` makes one of these.
            self._seal.change_keys(access.cluster_keys)
        return ended

    # -- state ---------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """Version of the Ringfence software."""
        return self.membership.records[self.name].version

    @property
    def is_running(self) -> bool:
        """Whether `run` has started."""
        return self.cluster.gossip is not None

    @property
    def state(self) -> str:
        """State of this node in the cluster; `leaving` as soon as it was asked to leave."""
        record = self.membership.records[self.name]
        is_going = self.asked_to_leave.is_set() and record.status is not Status.LEFT
        return "leaving" if is_going else state_of(record)

    async def ask(self, batch: Batch) -> Results:
        """Decide a batch as if a client had sent it: at this node or at the owners of its keys.

        The time-out is long enough to ask a standby after an owner that is silent.
        """
        within = 3 * self.settings.forward_timeout
        return await self.handler.router.decide(batch, lambda _: False, hops=1, within=within)


class _TooEarly:
    """Handler of a connection that arrives before `run`."""

    def __init__(self, name: NodeId) -> None:
        self._name = name

    def on_open(self, connection: Connection) -> None:
        connection.close(ErrorCode.OVERLOADED, f"node {self._name} is starting; try again")

    def on_message(self, payload: bytes) -> None:
        """Ignore a message on a connection that arrived before `run`, because it is being
        closed."""

    def on_close(self, code: int, reason: str) -> None:
        """Do nothing when a connection that arrived before `run` closes, because there is no
        state."""


def _build_handler(
    node: NodeContext,
    shards: ShardCounters,
    links: PeerLinks,
    notices: ClientNotices,
    decided_checks: DecidedChecks,
    subscriptions: DenialSubscriptions[Caller],
    metrics: MetricsSwitch,
) -> RequestHandler:
    """Create the part that decides requests, with the router to the other members."""
    rule_of, now = node.rules.rule, node.clock.now
    router = Router(FailurePolicy(rule_of, node.clock, node.settings.max_keys), retries=True)
    placement = ShardPlacement(node.name, shards.ownership, now)
    return RequestHandler(
        *(shards.ownership, shards.handoff, router, node.counters, node.clock),
        *(rule_of, decided_checks, node.containment),
        placement=placement,
        takeover=StandbyTakeover(
            *(placement, shards.ownership, links.link, now),
            *(links.is_suspect, node.running.held_up_ns),
        ),
        slots=SlotWaiters(
            *(shards.lender.decide, rule_of, notices.call_waiters, now), node.containment
        ),
        borrowing=SplitBorrowing(links.link, now, node.counters),
        lease_returns=shards.lease_returns,
        metrics=metrics,
        on_decided=shards.global_keys.on_decided,
        on_freed=subscriptions.end_denials,
    )


def _link_settings(settings: NodeSettings) -> LinkSettings:
    patience = settings.forward_timeout
    return LinkSettings(answer_timeout=patience, slow_timeout=2 * patience)


def _new_membership(
    settings: NodeSettings,
    gossip: GossipSettings,
    random: Random,
    clock: ClusterTime,
    *,
    is_founder: bool,
) -> Membership:
    """Create the membership of a node; each process has a higher generation than the previous
    one."""
    host, port = settings.advertise_at
    me = Record(
        name=settings.name,
        host=host,
        port=port,
        datacenter=settings.datacenter,
        zone=settings.zone,
        weight=settings.weight,
        generation=max(1, clock.host.now() // 1_000_000),
        incarnation=0,
        status=Status.ALIVE if is_founder else Status.JOINING,
        forward_only=False,
        version=__version__,
    )
    return Membership(me, gossip, random, 0, ProbeStamps(clock))
