"""Open sessions of a node: their number, their unacknowledged bytes, and their end."""

from operator import methodcaller
from typing import Protocol

from hashring import NodeId
from node.config.access import Access
from node.context.node_context import NodeContext
from node.membership.cluster_view import ClusterView
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.sessions.caller import Caller
from node.requests.sessions.connection_places import ConnectionPlaces
from node.requests.sessions.unacknowledged_bytes import UnacknowledgedBytes
from ringfence.peering.slot_queue import SlotQueue
from ringfence.transport.interface import Handler
from ringfence.wire import ErrorCode, Goodbye, Hello, Refused, Role, Welcome

__all__ = ["OpenSession", "OpenSessions"]


class OpenSession(Caller, Handler, Protocol):
    """Interface of one session (client or member connection) for its node."""

    def recheck(self, access: Access) -> bool:
        """Verify the credentials again after a change of keys; return whether the session has
        ended."""


class OpenSessions:
    """All open sessions of one node."""

    is_draining = False
    """Whether hellos are refused because the node leaves."""

    def __init__(
        self,
        node: NodeContext,
        cluster: ClusterView,
        subscriptions: DenialSubscriptions[Caller],
        slots: SlotQueue[Caller],
    ) -> None:
        """`subscriptions` and `slots` are informed when the session of a caller ends."""
        self._node = node
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._slots = slots
        self.by_id: dict[int, OpenSession] = {}
        self.unsent: UnacknowledgedBytes[Caller] = UnacknowledgedBytes(methodcaller("give_up"))
        self._places: ConnectionPlaces[Caller] = ConnectionPlaces(node.settings.places)

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, session: OpenSession, host: str) -> None:
        """Add a session; this may close an older session that has not sent a valid `Hello`."""
        self.by_id[id(session)] = session
        oldest = self._places.arrived(session, host)
        if oldest is not None:
            self._node.counters.refused("stranger_replaced")
            oldest.close(ErrorCode.OVERLOADED, "no hello came before other connections did")

    def welcome(self, session: Caller, hello: Hello) -> Welcome | Refused:
        """Return the answer to a valid `Hello`; a refusal when the node is leaving or full."""
        name = self._node.name
        if self.is_draining:
            return Refused(0, ErrorCode.DRAINING, f"node {name} is leaving; ask another")
        if hello.role is Role.NODE:
            self._places.take_member(session)
            self._cluster.on_member_connected(NodeId(hello.name))
        elif (reason := self._places.take_client(session, hello.name)) is not None:
            return Refused(0, ErrorCode.OVERLOADED, reason)
        return Welcome(name, self._cluster.view.hash, self._node.rules.current.version)

    def on_sent(self, session: Caller, size: int, unsent: int) -> None:
        """Count a sent message of `size` bytes; this may close sessions whose peers do not read.

        `unsent` is the number of bytes that this peer has not acknowledged.
        """
        self.unsent.sent(session, size, unsent)

    def on_closed(self, session: Caller) -> None:
        """Remove a connection that has ended."""
        self.by_id.pop(id(session), None)
        self.unsent.left(session)
        self._places.left(session)
        self._subscriptions.on_client_left(session)
        self._slots.on_caller_gone(session, self._node.clock.now())
        self._node.running.on_work_done()

    def recheck(self, access: Access) -> int:
        """Verify all credentials again after a change of keys; return the number of sessions that
        ended."""
        return sum([session.recheck(access) for session in list(self.by_id.values())])

    def announce_leave(self) -> None:
        """Refuse new sessions, and ask all clients to use other nodes."""
        self.is_draining = True
        for session in list(self.by_id.values()):
            session.send(Goodbye(f"node {self._node.name} is leaving"))

    def close(self) -> None:
        """Close the connections of all sessions."""
        for session in list(self.by_id.values()):
            session.close(ErrorCode.DRAINING, f"node {self._node.name} has left")
