"""Notices that a node sends to clients without a request: free slots, recalled leases, ended
denials.
"""

from node.context.node_context import RunningNode
from node.metrics.counters import Counters
from node.requests.sessions.caller import Caller
from ringfence.wire import MAX_KEYS, DenialRevoked, LeaseRecall, SlotsFree

__all__ = ["ClientNotices"]


class ClientNotices:
    """Sends notices of one node to its clients, and counts them."""

    def __init__(self, counters: Counters, running: RunningNode) -> None:
        self._counters = counters
        self._running = running

    def call_waiters(self, session: Caller, tickets: list[int]) -> None:
        """Notify a client that slots are reserved for its waiting checks, which are identified by
        tickets."""
        self._counters.add("slots_called", len(tickets))
        for start in range(0, len(tickets), MAX_KEYS):
            session.send(SlotsFree(tickets[start : start + MAX_KEYS]))
        self._running.flush()

    def recall_leases(self, session: Caller, keys: list[bytes]) -> None:
        """Ask a client to return its leases of these keys."""
        self._counters.add("leases_recalled", len(keys))
        session.send(LeaseRecall(keys))
        self._running.flush()

    def revoke_denials(self, session: Caller, keys: list[bytes]) -> None:
        """Notify a client that its denials of these keys have ended; an empty list means all
        keys."""
        self._counters.add("denials_lifted", len(keys) or 1)
        session.send(DenialRevoked(keys))
        self._running.flush()
