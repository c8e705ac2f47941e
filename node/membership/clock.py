"""The time that a node counts by: its host's clock, moved to where the cluster's stands.

Decides nothing: where the cluster's clock stands is `gossip.cluster_clock`'s to say.
"""

from gossip.cluster_clock import ClusterClock
from ringfence.peering.clock import Clock

__all__ = ["ClusterTime", "ProbeStamps"]


class ProbeStamps:
    """The cluster's clock for probes, which time themselves by another one."""

    def __init__(self, host: Clock, cluster: ClusterClock) -> None:
        self._host = host
        self._cluster = cluster

    def read(self, now: int) -> int:
        """The cluster's time in ns."""
        return self._cluster.read(self._host.now())

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Take what a probe has found out about a member's clock."""
        self._cluster.sample(name, offset_ns, rtt_ns, self._host.now())


class ClusterTime:
    """The time that owners count by."""

    def __init__(self, host: Clock, cluster: ClusterClock) -> None:
        self._host = host
        self._cluster = cluster

    def now(self) -> int:
        """Nanoseconds since the Unix epoch, never less than before."""
        return self._cluster.read(self._host.now())
