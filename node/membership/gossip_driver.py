"""Driver of the membership core: encrypted datagrams, exchanges over QUIC, and timers.

Nothing here waits. The transport calls this code for datagrams and timers, in its own task.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gossip import (
    BadDatagram,
    Changed,
    Conflict,
    Effect,
    Exchange,
    Membership,
    Message,
    Record,
    Send,
    Status,
    decode,
    encode,
    pack_records,
    unpack_records,
)
from gossip.datagrams.seal import Rejected, Seal
from node.context.containment import Containment
from node.membership.peer_links import PeerLinks
from ringfence.limiter import NS_PER_SECOND
from ringfence.transport.interface import Address, Timer, Transport
from ringfence.wire import Exchange as ExchangeMessage
from ringfence.wire import Exchanged

__all__ = ["Datagrams", "GossipDriver", "NameInUse", "SealedDatagrams", "name_in_use"]

logger = logging.getLogger("ringfence.node")

_AGAIN_NS = 100_000_000
"""Time until the next tick after a tick with an internal error."""


class Datagrams(Protocol):
    """Encoding of gossip messages as datagrams."""

    def pack(self, message: Message) -> bytes:
        """Encode a message as a datagram."""

    def unpack(self, datagram: bytes) -> Message:
        """Decode a datagram to a message.

        Raises `Rejected` or `BadDatagram` when the datagram was not sent by a member.
        """

    def pack_records(self, records: Sequence[Record]) -> bytes:
        """Encode the membership records of a full exchange."""

    def unpack_records(self, packed: bytes) -> list[Record]:
        """Decode the membership records of a full exchange. Raises `BadDatagram`."""


class NameInUse(Exception):
    """Error for a joining node with the name of a living member."""


class SealedDatagrams:
    """Encrypted datagrams, which only holders of a cluster key can read or create."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def pack(self, message: Message) -> bytes:
        """Encode and encrypt a message."""
        return self._seal.seal(encode(message))

    def unpack(self, datagram: bytes) -> Message:
        """Decrypt and decode a datagram."""
        return decode(self._seal.open(datagram))

    def pack_records(self, records: Sequence[Record]) -> bytes:
        """Encode the membership records of a full exchange; the connection encrypts them."""
        return pack_records(records)

    def unpack_records(self, packed: bytes) -> list[Record]:
        """Decode the membership records of a full exchange."""
        return unpack_records(packed)


class GossipDriver:
    """Runs the membership core of one node: feeds it with input and performs its effects."""

    def __init__(
        self,
        membership: Membership,
        datagrams: Datagrams,
        transport: Transport,
        peers: PeerLinks,
        now: Callable[[], int],
        on_change: Callable[[Sequence[Changed]], None],
        on_conflict: Callable[[Conflict], None],
        notice_stall: Callable[[], object],
        containment: Containment,
    ) -> None:
        """`notice_stall` is called before each datagram of a member, so that a stall of this
        process is detected."""
        self._membership = membership
        self._datagrams = datagrams
        self._transport = transport
        self._peers = peers
        self._now = now
        self._on_change = on_change
        self._on_conflict = on_conflict
        self._notice_stall = notice_stall
        self._containment = containment
        self._timer: Timer | None = None
        self._planned = 0
        self._refused: Counter[str] = Counter()
        self._is_closed = False
        self._is_behind = False
        """Whether `on_change` met an internal error after the last change of members."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of rejected datagrams, by cause."""
        return self._refused

    def start(self) -> None:
        """Start to receive gossip datagrams and to probe members."""
        self._transport.receive_sealed(self._on_datagram)
        self._perform([])

    def stop(self) -> None:
        """Stop receiving and sending gossip."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def join(self, seeds: Sequence[Address]) -> None:
        """Ask the nodes at these addresses for the members, repeatedly until one answers."""
        self._perform(self._membership.join(seeds, self._now()))

    def found(self, founders: Sequence[Record]) -> None:
        """Start a cluster with the given members, which all start with the same membership
        records."""
        self._perform(self._membership.found(founders, self._now()))

    def become_alive(self) -> None:
        """Announce that this node is alive, so that it joins the ring."""
        self._perform(self._membership.become_alive(self._now()))

    def leave(self) -> None:
        """Announce that this node leaves the ring; it still answers requests."""
        self._perform(self._membership.leave(self._now()))

    def left(self) -> None:
        """Announce that this node has transferred all its shards and has left."""
        self._perform(self._membership.left(self._now()))

    def set_forward_only(self, flag: bool) -> None:
        """Leave the ring or return to it; outside the ring, the node only forwards requests to
        other members."""
        self._perform(self._membership.set_forward_only(flag, self._now()))

    def report_unreachable(self, name: str) -> None:
        """Probe a member at once, because the link to it was lost."""
        self._perform(self._membership.report_unreachable(name, self._now()))

    def exchanged(self, sender: str, message: ExchangeMessage) -> Exchanged:
        """Merge the membership records of a peer, and return this node's records as the answer.

        Raises `BadDatagram` for bytes that are not valid records. Raises `NameInUse` if `sender` is
        a joining node and a living member at another address has its name.
        """
        records = self._datagrams.unpack_records(message.packed)
        known = self._membership.records.get(sender)
        own = next((record for record in records if record.name == sender), None)
        if (
            known is not None
            and own is not None
            and own.address != known.address
            and own.status is Status.JOINING
            and known.status is Status.ALIVE
        ):
            # It may have ended a moment ago. Then it will soon be a suspect.
            self.report_unreachable(sender)
            raise NameInUse(name_in_use(known))
        self._perform(self._membership.merge(records, self._now()))
        return Exchanged(message.seq, self._packed())

    def _packed(self) -> bytes:
        return self._datagrams.pack_records(self._membership.snapshot())

    def _on_datagram(self, datagram: bytes, source: Address) -> None:
        self._containment.call("gossip", self._take, datagram, source)

    def _take(self, datagram: bytes, source: Address) -> None:
        try:
            message = self._datagrams.unpack(datagram)
        except (Rejected, BadDatagram) as error:
            self._refused[error.cause] += 1
            return
        self._notice_stall()
        self._perform(self._membership.receive(message, source, self._now()))

    def _tick(self) -> None:
        self._timer = None
        if not self._containment.call("gossip", self._advance) and self._timer is None:
            # Probes must continue even after an internal error.
            self._planned = self._now() + _AGAIN_NS
            again = self._transport.now() + _AGAIN_NS / NS_PER_SECOND
            self._timer = self._transport.call_at(again, self._tick)

    def _advance(self) -> None:
        self._perform(self._membership.tick(self._now()))

    def _perform(self, effects: Sequence[Effect]) -> None:
        if self._is_closed:
            return
        changes: list[Changed] = []
        for effect in effects:
            match effect:
                case Send():
                    self._containment.call("gossip", self._send, effect)
                case Exchange(address):
                    self._exchange(address)
                case Changed():
                    changes.append(effect)
                case Conflict():
                    self._on_conflict(effect)
        if changes or self._is_behind:
            is_done = self._containment.call("gossip", self._on_change, changes)
            self._is_behind = not is_done  # The next call or tick tries again.
        self._plan()

    def _send(self, effect: Send) -> None:
        self._transport.send_sealed(self._datagrams.pack(effect.message), effect.to)

    def _exchange(self, address: Address) -> None:
        link = self._peers.at(address)

        def on_reply(reply: object) -> None:
            if isinstance(reply, Exchanged) and not self._is_closed:
                self._merge(reply, address)

        link.call(lambda seq: ExchangeMessage(seq, self._packed()), on_reply)

    def _merge(self, reply: Exchanged, address: Address) -> None:
        try:
            records = self._datagrams.unpack_records(reply.packed)
        except BadDatagram as error:
            self._refused[error.cause] += 1
            logger.error("member list cannot be decoded: sender=%s:%d error=%s", *address, error)
            return
        self._perform(self._membership.merge(records, self._now()))

    def _plan(self) -> None:
        """Schedule the next `tick` of the membership core, which runs its timers."""
        deadline = self._membership.next_deadline()
        if self._timer is not None:
            if deadline == self._planned:
                return
            self._timer.cancel()
        self._planned = deadline
        seconds = max(0, deadline - self._now()) / NS_PER_SECOND
        self._timer = self._transport.call_at(self._transport.now() + seconds, self._tick)


def name_in_use(member: Record) -> str:
    """Return the error text for a node that has the name of a member at another address."""
    return (
        f"name must be unique in the cluster, got {member.name!r}, which the node at "
        f"{member.host}:{member.port} has; set another name, or stop that node first"
    )
