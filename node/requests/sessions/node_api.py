"""Interfaces of the parts of a node that its sessions (client and member connections) call."""

from collections.abc import Callable

from msgspec import Struct

from node.context.containment import Containment
from node.membership.peer_requests import PeerRequests
from node.metrics.counters import Counters
from node.metrics.node_queries import NodeQueries
from node.requests.client_caches import ClientCaches
from node.requests.request_dispatcher import RequestDispatcher
from node.requests.rules_in_force import RulesInForce
from node.requests.sessions.access_control import AccessControl
from node.requests.sessions.open_sessions import OpenSessions

__all__ = ["NodeApi"]


class NodeApi(Struct, frozen=True):
    """Parts of a node that its sessions (client and member connections) use."""

    containment: Containment
    counters: Counters
    rules: RulesInForce
    access: AccessControl
    sessions: OpenSessions
    dispatcher: RequestDispatcher
    caches: ClientCaches
    queries: NodeQueries
    peer_requests: PeerRequests
    ask_to_leave: Callable[[], None]
    """Starts to leave the cluster, as an operator asked."""
