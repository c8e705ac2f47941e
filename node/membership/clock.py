"""Clock of a node: the clock of its host, adjusted to the cluster's clock.

`gossip.cluster_clock` computes the adjustment.
"""

from gossip.cluster_clock import ClusterClock
from ringfence import runtime
from ringfence.peering.clock import Clock

__all__ = ["ClusterTime", "ProbeStamps"]


class ProbeStamps:
    """Interface by which gossip probes read the cluster's clock and record measured clock
    offsets."""

    def __init__(self, clock: "ClusterTime") -> None:
        self._clock = clock

    def read(self, now: int) -> int:
        """Return the cluster's time in ns."""
        return self._clock.now()

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Record the clock offset of a member that a probe has measured."""
        self._clock.sample(name, offset_ns, rtt_ns)


class ClusterTime:
    """Clock of the cluster, by which the owners of shards count units and end windows."""

    def __init__(self, host: Clock, cluster: ClusterClock) -> None:
        self.host = host
        self.cluster = cluster
        self.became_suspect = runtime.Signal()
        """Set when this clock becomes suspect, because it is far from the members' clocks."""

    def sample(self, name: str, offset_ns: int, rtt_ns: int) -> None:
        """Record the measured offset of a member's clock from this clock."""
        was_suspect = self.cluster.is_suspect
        self.cluster.sample(name, offset_ns, rtt_ns, self.host.now())
        if self.cluster.is_suspect and not was_suspect:
            self.became_suspect.set()

    def now(self) -> int:
        """Return nanoseconds since the Unix epoch; it never decreases."""
        return self.cluster.read(self.host.now())

    def jump(self) -> None:
        """Set the clock to the time of the other members immediately."""
        self.cluster.jump(self.host.now())
