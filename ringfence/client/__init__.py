"""Client that applications use: the limiter over a cluster, in one process, or blocking."""

from ringfence.client.connect import RulesSource, connect, local
from ringfence.client.decision import Decision, SlotUnavailable, Status
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import Descriptors

__all__ = [
    "Decision",
    "Descriptors",
    "Limiter",
    "RulesSource",
    "SlotUnavailable",
    "Status",
    "connect",
    "local",
]
