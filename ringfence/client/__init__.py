"""Client that applications use: a limiter over a cluster or in one process, for async or blocking
code.
"""

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
