"""Cluster view of a node whose other parts record what they receive."""

import logging
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from gossip import Membership, Record, Settings, Status, pack_records
from gossip.datagrams.seal import Seal
from hashring import NodeId, Ring
from node.context.containment import Containment
from node.membership.cluster_view import ClusterView
from node.membership.gossip_driver import SealedDatagrams
from node.membership.peer_links import member_of
from ringfence import runtime
from ringfence.wire import Exchange
from tests.node.membership.fake_transport import KEY, ME, FakeClock, FakeLinks, FakeTransport

B, C, FAR = (
    replace(ME, name=name, host=f"host-{name}", datacenter=datacenter)
    for name, datacenter in (("b", "dc1"), ("c", "dc1"), ("far", "dc2"))
)
SUSPECT_B = replace(B, status=Status.SUSPECT, accuser="c")


class Links(FakeLinks):
    """Links by name to all members except those in `missing`."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()
        self.created: list[str] = []
        self.records: dict[str, Record] = {}
        self.early: list[tuple[NodeId, ...]] = []
        """Members to which the node connects in advance, at each change of the ring."""

    def start(self, *_: object) -> None:
        pass

    def update(self, records: dict[str, Record]) -> None:
        self.records = {**records}

    def connect_early(self, names: tuple[NodeId, ...]) -> None:
        self.early.append(names)

    def link(self, node: NodeId) -> Any:
        self.created.append(node)
        return None if node in self.missing else f"link to {node}"


class World:
    """Cluster view of the node `me`; it records what it passes to the other parts of the node."""

    def __init__(self, me: Record = ME) -> None:
        self.transport = FakeTransport()
        self.links = Links()
        self.counted: list[str] = []
        self.held_shards = 5
        self.jumps = 0
        self.restarted: list[str] = []
        self.member_changes: list[tuple[Record | None, Record]] = []
        self.ring_changes: list[tuple[Ring, Ring, Ring]] = []
        """Old ring, new ring, and the ring by which checks are sent."""
        self.cluster = SimpleNamespace(is_suspect=False)
        self.became_suspect = runtime.Signal()
        self.handler = SimpleNamespace(
            placement=SimpleNamespace(ring=None, is_here=None, holder_of=None),
            router=SimpleNamespace(routes=None),
            set_remote_rules=lambda *_: None,
        )
        self.membership = Membership(me, Settings.lan(), Random(1), 0, FakeClock())
        self.view = ClusterView(
            cast(Any, self._context(me)),
            self.membership,
            cast(Any, self.links),
            cast(Any, self._shards()),
            cast(Any, self.handler),
            None,
        )
        datagrams = SealedDatagrams(Seal([KEY], "c", 1))
        self.driver = self.view.start(
            cast(Any, self.transport), datagrams, cast(Any, None), lambda: None
        )

    def _context(self, me: Record) -> object:
        return SimpleNamespace(
            settings=SimpleNamespace(datacenter=me.datacenter, advertise_at=me.address),
            name=NodeId(me.name),
            clock=SimpleNamespace(
                cluster=self.cluster, became_suspect=self.became_suspect, jump=self._jump
            ),
            counters=SimpleNamespace(add=self.counted.append),
            running=SimpleNamespace(uptime=self.transport.uptime),
            containment=Containment(logging.getLogger("test"), lambda: 0.0, self._fail),
        )

    def _shards(self) -> object:
        world = self

        class Ownership:
            def on_member_change(self, before: Record | None, after: Record) -> None:
                world.member_changes.append((before, after))

            @property
            def count(self) -> int:
                return world.held_shards

        return SimpleNamespace(
            ownership=Ownership(),
            replication=SimpleNamespace(
                on_member_restarted=self.restarted.append, on_ring_change=lambda *rings: None
            ),
            handoff=SimpleNamespace(on_ring_change=lambda *rings: self.ring_changes.append(rings)),
            cross_dc=SimpleNamespace(
                set_view=lambda *_: None, elsewhere=dict, split_rules=dict, other_rings=dict
            ),
        )

    def _jump(self) -> None:
        self.jumps += 1

    @staticmethod
    def _fail(error: Exception) -> None:
        raise error

    def receive(self, *records: Record, after: float = 0.0) -> None:
        """Receive records in an exchange, after some seconds."""
        self.transport.seconds += after
        self.driver.exchanged("x", Exchange(1, pack_records(records)))

    @property
    def targets(self) -> Any:
        return self.handler.router.routes.targets

    @property
    def is_forward_only(self) -> bool:
        return self.membership.me.forward_only

    def set_clock(self, *, suspect: bool) -> None:
        self.cluster.is_suspect = suspect
        if suspect:
            self.became_suspect.set()


def ring_of(*records: Record) -> Ring:
    return Ring.of(map(member_of, records))
