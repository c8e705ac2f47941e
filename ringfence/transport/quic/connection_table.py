"""Connections of one endpoint: by connection id, by reset token, by state, and by deadline.

This module has a separate heap of deadlines: a connection moves its deadline with each packet, and
`Timers` of `ringfence.runtime` would need a new call for each move.
"""

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf

from ringfence.transport.quic.aioquic_connection import AioquicConnection
from ringfence.transport.quic.connection import QuicConnection

__all__ = ["ConnectionTable", "ConnectionTimers"]


class ConnectionTable:
    """All connections of an endpoint, and the indexes by which they are found."""

    def __init__(self, max_draining: int) -> None:
        """`max_draining` limits closed incoming connections; the oldest is removed first."""
        self.all: dict[QuicConnection, None] = {}
        self.by_cid: dict[bytes, QuicConnection] = {}
        self.by_reset_token: dict[bytes, QuicConnection] = {}
        """Outgoing connections by the token with which a restarted peer would reset them."""
        self.half_open: dict[QuicConnection, None] = {}
        """Incoming connections during their handshake, the oldest first."""
        self.established: dict[QuicConnection, None] = {}
        """Incoming connections that are open."""
        self.draining: dict[QuicConnection, None] = {}
        """Closed incoming connections whose peer may still send to their connection ids."""
        self._max_draining = max_draining
        self._to_dispose: list[AioquicConnection] = []
        """QUIC states of removed connections, some of whose methods may still be running."""

    def __len__(self) -> int:
        """Return the number of connections that are open or in their handshake, in both
        directions."""
        return len(self.all) - len(self.draining)

    def add(self, connection: QuicConnection) -> None:
        """Add a connection whose handshake starts."""
        self.all[connection] = None
        if connection.is_incoming:
            self.half_open[connection] = None

    def add_cid(self, cid: bytes, connection: QuicConnection) -> None:
        """Route datagrams for the connection id `cid` to `connection`."""
        self.by_cid[cid] = connection
        connection.cids.add(cid)

    def remove_cid(self, cid: bytes) -> None:
        """Stop routing datagrams for the connection id `cid`."""
        connection = self.by_cid.pop(cid, None)
        if connection is not None:
            connection.cids.discard(cid)

    def set_open(self, connection: QuicConnection) -> None:
        """Record that the handshake of a connection is done."""
        if connection.is_incoming:
            self.half_open.pop(connection, None)
            self.established[connection] = None
        elif connection.quic is not None and connection.quic.peer_reset_token:
            self.by_reset_token[connection.quic.peer_reset_token] = connection

    def set_closed(self, connection: QuicConnection) -> bool:
        """Record that a connection has ended; return whether it was incoming and in its
        handshake."""
        self.established.pop(connection, None)
        was_half_open = connection in self.half_open
        self.half_open.pop(connection, None)
        if connection.is_incoming and connection in self.all:
            self.draining[connection] = None
            if len(self.draining) > self._max_draining:
                self.remove(next(iter(self.draining)))
        return was_half_open

    def remove(self, connection: QuicConnection) -> None:
        """Remove a connection and all of its connection ids."""
        for cid in list(connection.cids):
            self.remove_cid(cid)
        for index in (self.all, self.half_open, self.established, self.draining):
            index.pop(connection, None)
        if connection.quic is not None:
            self.by_reset_token.pop(connection.quic.peer_reset_token, None)
            self._to_dispose.append(connection.quic)
        connection.quic = None

    def dispose_removed(self) -> None:
        """Free the memory of removed connections; call it when none of their methods is running."""
        while self._to_dispose:
            self._to_dispose.pop().dismantle()


class ConnectionTimers:
    """Heap of the deadlines of connections, with at most a few stale entries for each."""

    def __init__(self, connections: dict[QuicConnection, None]) -> None:
        """`connections` are all connections of the endpoint; heap entries of any other
        connection are outdated."""
        self._connections = connections
        self._heap: list[tuple[float, int, QuicConnection]] = []
        self._order = count()
        self._has_new = False
        """Whether a deadline was set since the last call of `new_deadline`."""

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, connection: QuicConnection, deadline: float) -> None:
        """Make `take_due` return `connection` at `deadline`, unless an earlier one is set."""
        if deadline < connection.timer_at:
            connection.timer_at = deadline
            self._has_new = True
            heappush(self._heap, (deadline, next(self._order), connection))
            if len(self._heap) > 64 + 2 * len(self._connections):
                self._remove_stale()

    def new_deadline(self) -> float | None:
        """Return the earliest deadline if any was set since the last call, which few packets do."""
        if not self._has_new:
            return None
        self._has_new = False
        return self.next_deadline()

    def next_deadline(self, soon: float = -inf) -> float | None:
        """Return the earliest deadline of a connection. One after `soon` may have changed since."""
        heap = self._heap
        while heap and heap[0][0] <= soon:
            deadline, _, connection = heap[0]
            if deadline != connection.timer_at:
                heappop(heap)
                continue
            current = connection.next_deadline()
            if current <= deadline:
                break
            connection.timer_at = current
            heapreplace(heap, (current, next(self._order), connection))
        return heap[0][0] if heap else None

    def take_due(self, now: float) -> QuicConnection | None:
        """Remove and return one connection whose deadline has passed; None when there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            deadline, _, connection = heappop(heap)
            if deadline == connection.timer_at:
                connection.timer_at = inf
                return connection
        return None

    def _remove_stale(self) -> None:
        self._heap = [
            entry
            for entry in self._heap
            if entry[0] == entry[2].timer_at and entry[2] in self._connections
        ]
        heapify(self._heap)
