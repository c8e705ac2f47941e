"""One life of a node at core level.

The code that ships decides here: `gossip.Membership` with the cluster clock, `Engine`,
`ShardOwnership`, `Replication` and `CrossDcCounts` with their rounds on the heap, and by subclasses
`Handoff` and `RequestHandler`. What `node.node` and `node.membership` do around them
is done without trio, sessions and bytes: there is no QUIC, no sealing, no credential,
and nothing of the operator's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

from gossip import Changed, Membership, Message, Record, Status
from gossip import Settings as GossipSettings
from gossip.cluster_clock import ClusterClock
from hashring import NodeId, Ring, View, shard_of
from node.cross_dc.counts import CrossDcCounts
from node.membership.clock import ClusterTime, ProbeStamps
from node.metrics.counters import Counters
from node.requests.deduplication.decided_checks import DecidedChecks
from node.requests.handler import NodeRoutes
from node.shards.ownership import ShardOwnership
from node.shards.replication import Replication
from node.shards.stall_recovery import StallRecovery
from ringfence.limiter import Engine
from ringfence.peering.failure_policy import FailurePolicy
from ringfence.peering.link import Link
from ringfence.peering.router import Router
from ringfence.rules import Rule, RuleSet
from ringfence.wire import Batch, Results
from simulations.core_level.deciding import CoreDeciding, CoreRouter
from simulations.core_level.event_loop import TaskSet
from simulations.core_level.gossiping import CoreGossiping
from simulations.core_level.handoff import CoreHandoff
from simulations.core_level.link import Asked, CoreLink, Respond, Server
from simulations.core_level.peers import CorePeers
from simulations.core_level.rounds import CoreRounds
from simulations.core_level.session import CoreSession
from simulations.core_level.slots import CoreSlots
from simulations.scenarios.planted_errors import FaultyContainment

if TYPE_CHECKING:
    from simulations.core_level.machine import Machine
    from simulations.core_level.world import CoreWorld

__all__ = ["CoreNode"]

_NS = 1_000_000_000
_DAY_NS = 86_400 * _NS
_MAX_KEYS = 1_000_000
_JOIN_PATIENCE = 3.0
_FETCH_PATIENCE = 5.0
_DRAIN_TIMEOUT = 5.0
_LINGER = 1.0


class CoreNode:
    """A member, from its start until it has crashed or left."""

    def __init__(
        self,
        world: "CoreWorld",
        machine: "Machine",
        rules: RuleSet,
        random: Random,
        *,
        is_founder: bool,
    ) -> None:
        """`is_founder`: it is in the ring from the start, and needs not join."""
        self.name = machine.name
        self.network = world.network
        self.tasks = TaskSet()
        self.counters = Counters()
        self.is_alive = True
        self.containment = FaultyContainment(lambda: self.seconds, world.met_bug)
        self._world = world
        self._watch = world.watch
        self._machine = machine
        self._agenda = world.agenda
        self._rules = rules
        self._began = world.agenda.now
        self._cluster_clock = ClusterClock()
        self.clock = ClusterTime(machine.clock, self._cluster_clock)
        now = machine.clock.now()
        self.membership = Membership(
            Record(
                name=machine.name,
                host=machine.name,
                port=machine.address[1],
                datacenter=machine.datacenter,
                zone=machine.zone,
                weight=1.0,
                generation=max(1, now // 1_000_000),
                incarnation=0,
                status=Status.ALIVE if is_founder else Status.JOINING,
            ),
            GossipSettings.lan(),
            random,
            0,
            ProbeStamps(machine.clock, self._cluster_clock),
        )
        self.view = View.of(())
        self.placement = View.of(())
        self.ring = Ring.of(())
        self.engine = Engine(max_keys=_MAX_KEYS, first_lease=max(1, now))
        me = NodeId(self.name)
        decided_checks = DecidedChecks(lambda _session, _seq: ((), 0))
        self.holdings = ShardOwnership(
            me,
            self.engine,
            self.counters,
            self._period_of,
            lambda keys: self.worldwide.came(keys),  # noqa: PLW0108 - it is made later
            lambda shards: self.worldwide.begun(shards),  # noqa: PLW0108 - it is made later
            max_keys=_MAX_KEYS,
            first_gift=max(1, now),
            decided_checks=decided_checks,
            least_parts=world.scenario.least_parts,
        )
        self._peers = CorePeers(self, lambda: self.membership.records, self._view_hash)
        self.gossiping = CoreGossiping(
            self.membership,
            self._uptime,
            self._call_at,
            partial(world.send, self.name),
            self._peers.at,
            self._on_change,
            lambda: self.counters.add("conflicts"),
            self.containment,
        )
        # A `CoreLink` asks and calls as a `Link` does, which is all that these parts do with it.
        link_to = cast("Callable[[NodeId], Link | None]", self._peers.link)
        bulk_to = cast("Callable[[NodeId], Link | None]", self._peers.bulk)
        self.handoff = CoreHandoff(
            me,
            self.holdings,
            self.engine,
            self.counters,
            bulk_to,
            self.clock.now,
            self.containment,
            self,
        )
        self._streaming = Replication(
            me,
            self.holdings,
            self.engine,
            self.counters,
            bulk_to,
            self.clock.now,
            self.containment,
        )
        self.worldwide = CrossDcCounts(
            machine.datacenter,
            self.engine,
            self.holdings,
            self.counters,
            link_to,
            self.clock.now,
            self._uptime,
            random,
            self.containment,
        )
        fallback = FailurePolicy(self._rule_of, self.clock, _MAX_KEYS).decide
        self._router = CoreRouter(self, fallback, self._target_of, (False, False, True))
        self.deciding = CoreDeciding(
            me,
            self.engine,
            self.holdings,
            self.handoff,
            Router(fallback),  # Never asked: see `core_deciding`.
            self.counters,
            self.clock,
            link_to,
            self._rule_of,
            self._admitted,
            self._is_suspect,
            decided_checks,
            self.containment,
        )
        self.slots = CoreSlots(self, self.deciding, world.home_of, world.machines.__contains__)
        self._recovery = StallRecovery(
            self._peer_links,
            self.handoff.reclaim,
            self.later,
            self.deciding.suspend,
            self.deciding.resume,
        )
        self._rounds = CoreRounds(
            self,
            self._uptime,
            self.holdings,
            self.engine,
            self._streaming,
            self.worldwide if len(world.datacenters) > 1 else None,
            random,
            self.containment,
        )
        self.deciding.lead(self, self._router, self.handoff.changed)
        self.worldwide.set_rules(rules)
        self._session = CoreSession(self)
        self._was_suspect = False
        self._has_joined = False
        self._is_leaving = False

    # -- time ----------------------------------------------------------------------------------

    def asked(self, hops: int) -> None:
        """Have the watch know that this node is asked for a check."""
        self._watch.asked(self, hops)

    def notice_stall(self) -> None:
        """Ask what was decided in this node's place, if it stood still until now."""
        self._recovery.notice(self._machine.held_up_ns, self._uptime())

    @property
    def seconds(self) -> float:
        """Seconds of virtual time."""
        return self._agenda.now / 1e9

    def _uptime(self) -> int:
        return self._agenda.now - self._began

    def due(self, call: Callable[[], object]) -> None:
        """Call now, or when the host goes on; never when this life is over."""
        if self.is_alive:
            if self._machine.is_paused:
                self._machine.hold(self.due, call)
            else:
                call()

    def later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call after so many seconds, as `due` does."""
        self._agenda.at(self._agenda.now + round(seconds * _NS), self._on_time, call, args)

    def _on_time(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.is_alive:
            if self._machine.is_paused:
                self._machine.hold(self._on_time, call, args)
            else:
                call(*args)

    def soon(self, call: Callable[[], None]) -> None:
        """Call in a moment."""
        self._agenda.at(self._agenda.now, self.due, call)

    # -- life ----------------------------------------------------------------------------------

    def found(self, records: Sequence[Record]) -> None:
        """Begin as one of many who know each other and count what is theirs."""
        self.gossiping.merge(records)
        self.holdings.begin(self.ring.shards_of(NodeId(self.name)))
        self._has_joined = True
        self._watch_clock()

    def join(self, seeds: Sequence[str]) -> None:
        """Look for the others, fetch what is ours, and take part."""
        if seeds:
            addresses = [(seed, self._machine.address[1]) for seed in seeds]
            self.gossiping.do(lambda core, now: core.join(addresses, now))
            self.later(_JOIN_PATIENCE, self._begin_alone)
        else:
            self.gossiping.do(Membership.become_alive)
        self._watch_clock()

    def _begin_alone(self) -> None:
        if not self._has_joined:
            self.gossiping.do(Membership.become_alive)

    def _is_joined(self) -> None:
        """Somebody else is known: fetch shards before being asked for them, not for ever."""
        self._has_joined = True
        self.handoff.on_fetched = self._on_fetched
        self.later(_FETCH_PATIENCE, self._take_part)
        self.soon(self._on_fetched)

    def _on_fetched(self) -> None:
        if not self.handoff.lacks:
            self._take_part()

    def _take_part(self) -> None:
        self.gossiping.do(Membership.become_alive)

    def leave(self) -> None:
        """Hand everything over, linger, and end."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self.gossiping.do(Membership.leave)
        self.handoff.on_emptied = self._depart
        self.later(_DRAIN_TIMEOUT, self._depart)
        self.handoff.wake()

    def _depart(self) -> None:
        if self.membership.me.status is not Status.LEFT and self._is_leaving:
            self.gossiping.do(Membership.left)
            self.later(_LINGER, self._world.ended, self)

    def end(self) -> None:
        """Be no more, at once."""
        self.is_alive = False
        self.tasks.cancel()

    def _watch_clock(self) -> None:
        """Decide nothing while the own clock is far from the others'."""
        others = [each for each in self.ring.members[:2] if each.name != self.name]
        is_suspect = self._cluster_clock.is_suspect and bool(others)
        if is_suspect != self._was_suspect:
            self._was_suspect = is_suspect
            self.counters.add("clock_suspect" if is_suspect else "clock_trusted")
            self.gossiping.do(lambda core, now: core.set_forward_only(is_suspect, now))
        if is_suspect and not self.holdings.count:
            self._cluster_clock.jump(self._machine.clock.now())
        self.later(1.0, self._watch_clock)

    # -- membership ----------------------------------------------------------------------------

    def take_datagram(self, message: Message, sender: str) -> None:
        """Hear what another member says."""
        self.notice_stall()
        self.gossiping.hear(message, self._machine.address[1], sender)

    def _call_at(self, uptime: int, call: Callable[[int], None], planned: int) -> None:
        self._agenda.at(self._began + uptime, self._on_time, call, (planned,))

    def _on_change(self, changes: Sequence[Changed]) -> None:
        """Follow the members: links, ring, shards."""
        self._watch.changed(self, changes)
        has_left = False
        for change in changes:
            after = change.after
            has_left = has_left or after.status is Status.LEFT
            self.holdings.heard_of(change.before, after)
            if after.is_gone:
                for end in self._peers.drop(after):
                    self.soon(end)
            is_other = after.name != self.name and after.status is not Status.JOINING
            if is_other and not self._has_joined:
                self._is_joined()
        view, placement = self._world.views_of(self.membership, self.view, self.placement)
        if placement is self.placement and view is self.view and not has_left:
            return
        datacenter = self._machine.datacenter
        if placement != self.placement:
            old = self.ring if self.ring.members else view.ring(datacenter)
            self.placement, self.ring = placement, placement.ring(datacenter)
            self.deciding.ring = self.ring
            self.handoff.follow(old, self.ring, view.ring(datacenter))
            self._streaming.follow(old, self.ring)
            self.soon(self._rounds.mark_for_new_standbys)
        self.view = view
        self.worldwide.set_view(view, placement, self.membership.datacenters_left)
        self._router.routes = NodeRoutes(
            view.ring(datacenter),
            {},
            me=NodeId(self.name),
            is_here=self.deciding.is_here,
            holder_of=self.deciding.holder_of,
        )
        self._rounds.stir()

    def slots_free(self, tickets: Sequence[int]) -> None:
        """Pass on that another member keeps slots for waiters."""
        self.slots.slots_free(tickets)

    def states(self) -> dict[str, str]:
        """How it sees all members."""
        return {n: r.status.name.lower() for n, r in self.membership.records.items()}

    def counts(self, key: bytes) -> bool:
        """Whether it decides a key."""
        return bool(self.holdings.held[shard_of(key)])

    def _view_hash(self) -> int:
        return self.view.hash

    def server(self, name: str) -> Server | None:
        """The node at a member's address, if one runs."""
        return self._world.node_at(name)

    def heard(self, name: str, view: int) -> None:
        """Gossip brings other views."""

    def reachable(self, name: str, is_so: bool) -> None:
        """Have a member that was lost probed at once."""
        if not is_so:
            self.gossiping.do(lambda core, now: core.report_unreachable(name, now))

    def _is_suspect(self, name: NodeId) -> bool:
        record = self.membership.records.get(name)
        return record is None or record.status in (Status.SUSPECT, Status.DEAD, Status.LEFT)

    def _peer_links(self) -> list[tuple[NodeId, CoreLink]]:
        names = [member.name for member in self.view.ring(self._machine.datacenter).members]
        links = [(name, self._peers.link(name)) for name in names if name != self.name]
        return [(name, link) for name, link in links if link is not None]

    def _target_of(self, name: NodeId) -> CoreLink | CoreDeciding | None:
        return self.deciding if name == self.name else self._peers.link(name)

    # -- answering -----------------------------------------------------------------------------

    def serve(self, sender: str, message: Asked, respond: Respond) -> None:
        """Answer what a client or a peer asks."""
        self._session.serve(sender, message, respond)
        self._rounds.stir()

    def _rule_of(self, rule_id: int) -> Rule | None:
        return self._rules.by_id(rule_id)

    def _period_of(self, key: bytes) -> int:
        rule = self._rules.by_id(int.from_bytes(key[:8], "big"))
        return _DAY_NS if rule is None or rule.limit is None else rule.limit.period_ns

    def _admitted(self, batch: Batch, verdicts: Results) -> None:
        self.worldwide.admitted(batch, verdicts)
        self._rounds.stir()
