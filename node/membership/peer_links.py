"""Links to the other members, created when they are first needed.

Decides when a link is replaced: a member with a new address or a new process gets a new link.
Gossip decides which nodes are members.

A node connects in advance to the members whose standby it is. If it connected only when a caller
cannot reach such an owner, a lost packet of the handshake would look like an unreachable owner.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from gossip import Membership, Record, Status
from hashring import Member, NodeId
from ringfence.errors import AccessDenied, RingfenceError, UntrustedPeer
from ringfence.peering.link import Link, LinkListener, LinkSettings, Prove
from ringfence.peering.link.calls import call
from ringfence.transport.interface import Address, Transport
from ringfence.wire import Hello, Ping, Pong

__all__ = ["PeerLinks", "member_of"]

_BULK_TIMEOUT = 2.0
"""Time-out of a transfer of shards; the link itself detects a dead member sooner."""
_EARLY_INTERVAL_S = 0.1
"""Pause before each connection in advance, in seconds. A handshake takes some milliseconds of
processor time, and a node may be the standby of 100 members."""
_MAX_SEEDS = 32
"""Most links to addresses without a known member."""
_MEMBERS_KEPT = 8192
_GONE = (Status.DEAD, Status.LEFT)


class _Endpoint(Struct, frozen=True):
    """Values of a running node that its links need."""

    transport: Transport
    listener: LinkListener
    view: Callable[[], int]


class PeerLinks:
    """All links of one node to other nodes; there are none before `start`."""

    _endpoint: _Endpoint | None = None

    def __init__(
        self,
        membership: Membership,
        hello: Hello,
        prove: Prove,
        settings: LinkSettings,
        random: Random,
    ) -> None:
        """`prove` returns this node's credential for one connection."""
        self._membership = membership
        self._hello = hello
        self._prove = prove
        self._settings = settings
        self._bulk_settings = replace(settings, answer_timeout=_BULK_TIMEOUT)
        self._random = random
        self._links: dict[NodeId, tuple[Record, Link]] = {}
        self._bulk: dict[NodeId, tuple[Record, Link]] = {}
        self._by_address: dict[Address, Link] = {}
        self._records: Mapping[str, Record] = {}
        self._to_open: deque[NodeId] = deque()
        """Members to which this node will connect in advance."""
        self._is_opening = False
        """Whether a timer for the next of these members is set."""

    def start(self, transport: Transport, listener: LinkListener, view: Callable[[], int]) -> None:
        """Set what links need to connect; `view` returns the hash of this node's view of the
        members."""
        self._endpoint = _Endpoint(transport, listener, view)

    def update(self, records: Mapping[str, Record]) -> None:
        """Apply a change of members; close the links to members that have left or died."""
        self._records = {**records}
        for links in (self._links, self._bulk):
            for name, (known, link) in list(links.items()):
                record = self._records.get(name)
                if record is None or record.status is Status.DEAD:
                    del links[name]
                    link.close()
                elif record.status is Status.LEFT or _is_elsewhere(record, known):
                    del links[name]
                    link.retire()  # The old link still answers open requests.
        joining = [each for each in self._records.values() if each.status is Status.JOINING]
        for record in joining:
            newcomer = self.link(NodeId(record.name))
            if newcomer is not None:
                newcomer.open()  # Checks for the shards that it receives will use this link.

    def connect_early(self, names: Iterable[NodeId]) -> None:
        """Connect to members before they are needed, one after the other.

        A later call replaces the members that still wait.
        """
        self._to_open = deque(names)
        if not self._is_opening:
            self._plan_opening()

    def _plan_opening(self) -> None:
        self._is_opening = bool(self._to_open)
        if self._is_opening:
            assert self._endpoint is not None
            transport = self._endpoint.transport
            transport.call_at(transport.now() + _EARLY_INTERVAL_S, self._open_next)

    def _open_next(self) -> None:
        while self._to_open:
            link = self.link(self._to_open.popleft())
            if link is not None and link.open():
                break
        self._plan_opening()

    def link(self, name: NodeId) -> Link | None:
        """Return the link to a member; None when the name is not a reachable member."""
        return self._find(self._links, name, self._settings)

    def bulk(self, name: NodeId) -> Link | None:
        """Return the second link to a member, used for shard transfers so that checks never wait
        behind them."""
        return self._find(self._bulk, name, self._bulk_settings)

    def _find(
        self, links: dict[NodeId, tuple[Record, Link]], name: NodeId, settings: LinkSettings
    ) -> Link | None:
        known = links.get(name)
        if known is not None:
            return known[1]
        record = self._records.get(name)
        if record is None or record.status in _GONE or record.name == self._hello.name:
            return None
        link = self._make((record.host, record.port), settings, record.name)
        links[name] = record, link
        return link

    def retry(self, name: NodeId) -> None:
        """Connect again at once to a member whose links were lost, because it is alive."""
        for links in (self._links, self._bulk):
            if name in links:
                links[name][1].retry()

    def is_suspect(self, name: NodeId) -> bool:
        """Return whether membership suspects a member or has declared it dead."""
        record = self._membership.records.get(name)
        return record is None or record.status in (Status.SUSPECT, Status.DEAD, Status.LEFT)

    async def connect_joining(self, name: NodeId) -> None:
        """Connect to a joining member before it receives shards of this node."""
        record = self._membership.records.get(name)
        link = self.link(name)
        is_joining = record is not None and record.status is Status.JOINING
        if is_joining and link is not None and not link.is_ready:
            await call(link, Ping, Pong)

    def at(self, address: Address) -> Link:
        """Return the link to an address, which need not belong to a known member."""
        for record, link in self._links.values():
            if (record.host, record.port) == address:
                return link
        known = self._by_address.get(address)
        if known is None:
            known = self._by_address[address] = self._make(address, self._settings)
            while len(self._by_address) > _MAX_SEEDS:
                self._by_address.pop(next(iter(self._by_address))).retire()
        return known

    def has_link_to(self, address: Address, *, other_than: Link) -> bool:
        """Return whether a link to this address, other than the link `other_than`, is ready."""
        links = [link for known in (self._links, self._bulk) for _, link in known.values()]
        return any(
            link.address == address and link.is_ready and link is not other_than
            for link in [*links, *self._by_address.values()]
        )

    @property
    def refusal(self) -> RingfenceError | None:
        """Error with which the node at an address rejected this node's keys, or this node its
        certificate; None without one."""
        refusals = [link.refusal for link in self._by_address.values()]
        return next((e for e in refusals if isinstance(e, AccessDenied | UntrustedPeer)), None)

    def close(self) -> None:
        """Close the links to all members."""
        self._to_open.clear()
        for _, link in [*self._links.values(), *self._bulk.values()]:
            link.close()
        for link in self._by_address.values():
            link.close()

    def _make(self, address: Address, settings: LinkSettings, name: str = "") -> Link:
        endpoint = self._endpoint
        assert endpoint is not None
        hello = replace(self._hello, session=self._random.getrandbits(64))
        return Link(
            endpoint.transport,
            address,
            hello,
            settings,
            endpoint.listener,
            self._random,
            endpoint.view,
            prove=self._prove,
            node=name,
        )


def _is_elsewhere(record: Record, known: Record) -> bool:
    return (record.host, record.port, record.generation) != (
        known.host,
        known.port,
        known.generation,
    )


def member_of(record: Record) -> Member:
    """Convert a membership record into a member of the ring."""
    return _member(record.name, record.datacenter, record.zone, record.weight)


@lru_cache(_MEMBERS_KEPT)
def _member(name: str, datacenter: str, zone: str, weight: float) -> Member:
    return Member(NodeId(name), datacenter, zone, weight)
