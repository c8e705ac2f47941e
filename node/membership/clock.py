"""Clock of a node: the clock of its host, adjusted to the cluster's clock.

`gossip.cluster_clock` computes the adjustment.
"""

from gossip.cluster_clock import ClusterClock
from ringfence.peering.clock import Clock

__all__ = ["ClusterTime", "ProbeStamps"]


class ProbeStamps:
    """Interface by which gossip probes read the cluster's clock and record measured clock
    offsets."""

    def __init__(self, host: Clock, cluster: ClusterClock) -> None:
        self._host = host
        self._cluster = cluster

    def read(self, now: int) -> int:
        """Return the cluster's time in ns."""
        return self._cluster.read(self._host.now())

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Record the clock offset of a member that a probe has measured."""
        self._cluster.sample(name, offset_ns, rtt_ns, self._host.now())


class ClusterTime:
    """Clock of the cluster, by which the owners of shards count units and end windows."""

    def __init__(self, host: Clock, cluster: ClusterClock) -> None:
        self.host = host
        self.cluster = cluster

    def now(self) -> int:
        """Return nanoseconds since the Unix epoch; it never decreases."""
        return self.cluster.read(self.host.now())

    def jump(self) -> None:
        """Set the clock to the time of the other members immediately."""
        self.cluster.jump(self.host.now())
