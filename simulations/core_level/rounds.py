"""The rounds of one node at core level: copies to standbys, counts to other data centers.

What a round tells is decided by the code that ships. Here a round is planned only when there may be
something to tell: a thousand nodes have ten thousand rounds a second in which nothing happens.
"""

from collections.abc import Callable
from random import Random

from node.containment import Containment
from node.cross_dc.counts import INTERVAL as WORLD_INTERVAL
from node.cross_dc.counts import CrossDcCounts
from node.shards.ownership import ShardOwnership
from node.shards.replication import INTERVAL, Replication
from ringfence.limiter import Engine
from simulations.core_level.handoff import Waits

__all__ = ["CoreRounds"]

_NS = 1_000_000_000
_DIGEST_EVERY = 10.0


class CoreRounds:
    """Has `Replication` and `CrossDcCounts` tell what has changed."""

    def __init__(
        self,
        waits: Waits,
        uptime: Callable[[], int],
        holdings: ShardOwnership,
        engine: Engine,
        streaming: Replication,
        worldwide: CrossDcCounts | None,
        random: Random,
        containment: Containment,
    ) -> None:
        """`worldwide` is None when there is one data center only."""
        self._waits = waits
        self._uptime = uptime
        self._holdings = holdings
        self._engine = engine
        self._streaming = streaming
        self._worldwide = worldwide
        self._random = random
        self._containment = containment
        self._is_streaming = False
        self._is_telling = False
        self._digest_at = round(_DIGEST_EVERY * _NS)

    def stir(self) -> None:
        """Have rounds run while there is something to tell."""
        if self._holdings.dirty and not self._is_streaming:
            self._is_streaming = True
            step = round(INTERVAL * _NS)  # Rounds go on by themselves: this is the next one.
            self._waits.later((step - self._uptime() % step) / _NS, self._send_copies)
        if self._worldwide is not None and not self._is_telling:
            self._is_telling = True
            self._waits.later(WORLD_INTERVAL, self._tell, self._worldwide)

    def mark_for_new_standbys(self) -> None:
        """Send everything to whoever has become a standby."""
        changed = self._streaming.newly_stood_by()
        if changed:
            self._streaming.mark(self._engine.keys(), changed)
            self.stir()

    def _send_copies(self) -> None:
        self._is_streaming = False
        self._containment.call("streaming", self._streaming.flush)
        self.stir()

    def _tell(self, worldwide: CrossDcCounts) -> None:
        self._containment.call("worldwide", worldwide.flush)
        if self._uptime() >= self._digest_at:
            self._digest_at = self._uptime() + round(_DIGEST_EVERY * _NS)
            self._containment.call("worldwide", worldwide.send_digests)
        pause = WORLD_INTERVAL * (0.9 + 0.2 * self._random.random())
        self._waits.later(pause, self._tell, worldwide)
