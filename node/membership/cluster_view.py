"""Members that a node knows, the rings computed from them, and the routes of checks.

Passes each change of the members to the links, the shards, the handler and the router. Searches for
members, and watches for a second node of the same name and for a clock that differs.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from gossip import Changed, Conflict, Membership, Record, Status
from hashring import NodeId, Ring, View
from node.context.node_context import NodeContext
from node.membership.gossip_driver import Datagrams, GossipDriver, name_in_use
from node.membership.peer_links import PeerLinks, member_of
from node.requests.handler import RequestHandler
from node.requests.placement import NodeRoutes
from node.shards.shard_counters import ShardCounters
from ringfence import runtime
from ringfence.errors import ConfigError
from ringfence.peering.link import Link, LinkListener
from ringfence.peering.target import Target
from ringfence.transport.interface import Address, Transport

__all__ = ["ClusterView", "Resolve", "log_change", "state_of"]

logger = logging.getLogger("ringfence.node")

Resolve = Callable[[], Awaitable[Sequence[Address]]]
"""Finds addresses of other members."""

_CLOCK_EVERY = 1.0
"""Seconds between two looks at a suspect clock."""
_RESOLVE_EVERY = 30.0
_MAX_LOGGED = 20
"""Maximum number of members that a log line names."""


class ClusterView:
    """Members as one node sees them, with the rings and routes computed from them."""

    gossip: GossipDriver | None = None
    """None before `start`."""
    _view_digest: int | None = None
    """Digest of the records that view and placement were made from."""
    _conflict: Conflict | None = None

    def __init__(
        self,
        node: NodeContext,
        membership: Membership,
        links: PeerLinks,
        shards: ShardCounters,
        handler: RequestHandler,
        on_change: Callable[[NodeId, Sequence[Changed]], None] | None,
    ) -> None:
        """`on_change` is called when this node's records of members change."""
        self._node = node
        self._membership = membership
        self._links = links
        self._shards = shards
        self._handler = handler
        self._observe_change = on_change
        self.view = View.of(())
        """Members to which checks are sent."""
        self._placement = View.of(())
        """Members that should have counters: with joining members, without leaving ones."""
        self.ring = Ring.of(())
        """Ring of the members that should have the counters of this data center."""
        self.changed_at: dict[str, int] = {}
        """Uptime in ns at which each member entered its present state."""
        self.has_joined = runtime.Event()
        """Set when another member is known."""
        self._conflicted = runtime.Event()

    def start(
        self,
        transport: Transport,
        datagrams: Datagrams,
        listener: LinkListener,
        notice_stall: Callable[[], object],
    ) -> GossipDriver:
        """Create the links and the gossip of this node on a transport, without starting to gossip.

        `listener` receives the events of links. `notice_stall` is called before each datagram of a
        member, so that a stall of this process is detected.
        """
        self._links.start(transport, listener, lambda: self.view.hash)
        self.gossip = GossipDriver(
            self._membership,
            datagrams,
            transport,
            self._links,
            self._node.running.uptime,
            self._on_change,
            self._on_conflict,
            notice_stall,
            self._node.containment,
        )
        return self.gossip

    def rings(self) -> dict[str, Ring]:
        """Return, by data center, the hash rings by which checks are sent to owners."""
        return {name: self.view.ring(name) for name in self.view.datacenters}

    def peer_links(self) -> list[tuple[NodeId, Link]]:
        """Return the links to the other members of this data center."""
        names = [member.name for member in self._local_ring().members]
        links = [(name, self._links.link(name)) for name in names if name != self._node.name]
        return [(name, link) for name, link in links if link is not None]

    @property
    def has_local_peer(self) -> bool:
        """Whether this data center has another member that stays.

        It may only forward checks now: it enters the ring when no other member is left.
        """
        stays = (Status.JOINING, Status.ALIVE, Status.SUSPECT)
        return any(record.status in stays for record in self._local_peers())

    @property
    def is_alone(self) -> bool:
        """Whether no other member of this data center is known; members that have left count as
        known."""
        return not self._local_peers()

    @property
    def is_datacenter_leaving(self) -> bool:
        """Whether all other members of this data center leave, or have left, voluntarily."""
        leaves = (Status.LEAVING, Status.LEFT)
        return all(record.status in leaves for record in self._local_peers())

    def _local_peers(self) -> list[Record]:
        datacenter, me = self._node.settings.datacenter, self._node.name
        records = self._membership.records.values()
        return [each for each in records if each.datacenter == datacenter and each.name != me]

    def report_unreachable(self, name: str) -> None:
        """Probe a member immediately, because the link to it was lost."""
        if self.gossip is not None:
            with suppress(KeyError):
                self.gossip.report_unreachable(name)

    def on_member_connected(self, name: NodeId) -> None:
        """Connect again to a member whose links were lost, because it has connected to this
        node."""
        self._links.retry(name)

    # -- tasks ---------------------------------------------------------------------------------

    async def find_seeds(self, resolve: Resolve) -> None:
        """Look up the seed addresses periodically, and ask the nodes there for the members."""
        while True:
            own = self._node.settings.advertise_at
            seeds = [seed for seed in await resolve() if seed != own]
            await runtime.checkpoint()  # A node that was cancelled has no transport any more.
            if seeds and self.gossip is not None:
                self.gossip.join(seeds)
            await runtime.sleep(_RESOLVE_EVERY)  # Name servers send no event for changes.

    async def watch_clock(self) -> None:
        """Leave the ring while this node's clock is far from the clocks of other members."""
        was_suspect = False
        clock, name = self._node.clock, self._node.name
        while True:
            if clock.cluster.is_suspect or was_suspect:
                await runtime.sleep(_CLOCK_EVERY)  # No event marks the end of a suspicion.
            else:
                await clock.became_suspect.wait()
            # A node that is alone in its data center stays: it cannot forward.
            others = [each for each in self.ring.members[:2] if each.name != name]
            is_suspect = clock.cluster.is_suspect and bool(others)
            if is_suspect != was_suspect and self.gossip is not None:
                was_suspect = is_suspect
                self._node.counters.add("clock_suspect" if is_suspect else "clock_trusted")
                logger.warning(
                    "the clock of node %s is %s the others'; it %s",
                    name,
                    "far from" if is_suspect else "again near",
                    "only forwards" if is_suspect else "decides again",
                )
                self.gossip.set_forward_only(is_suspect)
            if clock.cluster.is_suspect and not self._shards.ownership.count:
                clock.jump()

    async def raise_on_conflict(self) -> NoReturn:
        """Wait until another node uses this node's name and has precedence, then raise
        `ConfigError`."""
        await self._conflicted.wait()
        assert self._conflict is not None
        raise ConfigError(name_in_use(self._conflict.record))

    def _on_conflict(self, conflict: Conflict) -> None:
        record = conflict.record
        logger.error(
            "node name conflict: name=%s address=%s:%d", record.name, record.host, record.port
        )
        if conflict.steps_down:
            self._conflict = conflict
            self._conflicted.set()

    # -- changes -------------------------------------------------------------------------------

    def _on_change(self, changes: Sequence[Changed]) -> None:
        """Apply a change of the members: to the log, links, ring, shards and routes."""
        if self._observe_change is not None:
            self._observe_change(self._node.name, changes)
        uptime = self._node.running.uptime()
        for change in changes:
            self._on_member_change(change, uptime)
        records = self._membership.records
        if len(self.changed_at) > len(records):
            self.changed_at = {n: at for n, at in self.changed_at.items() if n in records}
        self._links.update(records)
        digest = self._membership.digest
        view, placement = self._views(digest)
        if placement != self._placement:
            self._follow(view, placement)
        if view != self.view:
            self.view = view
            names = [member.name for member in view.members]
            logger.info("%s", _described(names))
        self._shards.cross_dc.set_view(view, placement, self._membership.datacenters_left)
        self.route()
        self._view_digest = digest

    def _on_member_change(self, change: Changed, uptime: int) -> None:
        log_change(change)
        before, after = change.before, change.after
        if before is None or before.status is not after.status:
            self.changed_at[after.name] = uptime
        if after.name == self._node.name:
            self._log_damping(change)
        elif after.status is not Status.JOINING:
            self.has_joined.set()
        if before is not None and after.generation > before.generation:
            self._shards.replication.on_member_restarted(NodeId(after.name))
        self._shards.ownership.on_member_change(before, after)

    def _follow(self, view: View, placement: View) -> None:
        """Transfer and replicate the counters according to a changed ring."""
        datacenter = self._node.settings.datacenter
        # A member that has just joined finds the counters by the ring of the other members.
        old = self.ring if self.ring.members else view.ring(datacenter)
        self._placement, self.ring = placement, placement.ring(datacenter)
        self._handler.placement.ring = self.ring
        check_ring = view.ring(datacenter)
        self._shards.handoff.on_ring_change(old, self.ring, check_ring)
        self._shards.replication.on_ring_change(old, self.ring, check_ring)
        self._links.connect_early(self.ring.owners_of_standby(self._node.name))

    def _views(self, digest: int) -> tuple[View, View]:
        """Return two views: the members to which checks are sent, and those that should have
        counters."""
        if digest == self._view_digest:  # As after a suspicion: no shard moves.
            return self.view, self._placement
        placed, routed = self._membership.placed(), self._membership.routed()
        placement = View.of(map(member_of, placed), like=self._placement)
        view = placement if placed == routed else View.of(map(member_of, routed), like=self.view)
        return view, placement

    def _log_damping(self, change: Changed) -> None:
        was_in_ring = change.before is not None and not change.before.forward_only
        if was_in_ring and self._membership.is_damped:
            logger.warning(
                "node %s leaves the ring for a while because members suspected it again and again; "
                "it forwards checks meanwhile: look for pauses of its host or process",
                self._node.name,
            )

    def route(self) -> None:
        """Update the routes: the owners of keys, and the links to them."""
        cross_dc, placement = self._shards.cross_dc, self._handler.placement
        elsewhere = cross_dc.elsewhere()
        self._handler.set_remote_rules(
            elsewhere.keys(), cross_dc.split_rules(), cross_dc.other_rings()
        )
        views = [self.view] if self.view is self._placement else [self.view, self._placement]
        self._handler.router.routes = NodeRoutes(
            self._local_ring(),
            _Targets(self._target, views),
            elsewhere,
            me=self._node.name,
            is_here=placement.is_here,
            holder_of=placement.holder_of,
        )

    def _local_ring(self) -> Ring:
        """Return the hash ring by which checks are sent within this data center."""
        return self.view.ring(self._node.settings.datacenter)

    def _target(self, name: NodeId) -> Link | RequestHandler | None:
        return self._handler if name == self._node.name else self._links.link(name)


class _Targets(Mapping[NodeId, Target]):
    """Links to the members of two views of the cluster; each link is created when it is first
    needed.

    A member outside of both views may still hold shards that this node has sent to it. It is found
    too, but its link is not stored, because its end does not change the views.
    """

    def __init__(self, find: Callable[[NodeId], Target | None], views: Sequence[View]) -> None:
        self._find = find
        self._names = dict.fromkeys(member.name for view in views for member in view.members)
        self._found: dict[NodeId, Target] = {}

    def __getitem__(self, name: NodeId) -> Target:
        found = self._found.get(name)
        if found is None:
            found = self._find(name)
            if found is None:
                raise KeyError(name)
            if name in self._names:
                self._found[name] = found
        return found

    def __iter__(self) -> Iterator[NodeId]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def state_of(record: Record) -> str:
    """Return the state of a member in the form that operators see."""
    is_forwarding = record.forward_only and record.status in (Status.ALIVE, Status.SUSPECT)
    return "forwarding" if is_forwarding else record.status.name.lower()


def _described(names: Sequence[str]) -> str:
    """Describe the members of a view by at most 20 of their names."""
    count = f"view of {len(names)} member{'' if len(names) == 1 else 's'}"
    return f"{count}: {', '.join(names[:_MAX_LOGGED])}" if names else count


def log_change(change: Changed) -> None:
    """Log the change of a member's state."""
    before, after = change.before, change.after
    level = logging.WARNING if after.status in (Status.SUSPECT, Status.DEAD) else logging.INFO
    if not logger.isEnabledFor(level):
        return
    was = "unknown" if before is None else state_of(before)
    now = state_of(after)
    if was != now:
        logger.log(
            level, "member %s at %s:%d is %s, was %s", after.name, after.host, after.port, now, was
        )
