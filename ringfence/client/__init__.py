"""What an application imports: the limiter over a cluster, in one process, or blocking."""

from ringfence.client.connect import connect, local
from ringfence.client.decision import Decision, SlotUnavailable, Status
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import Descriptors

__all__ = ["Decision", "Descriptors", "Limiter", "SlotUnavailable", "Status", "connect", "local"]
