"""Record of the local member: refutation of suspicions, name conflicts, and flap damping.

Only the member itself may raise its incarnation, so only it can refute an accusation.
"""

from collections import Counter
from dataclasses import replace

from gossip.dissemination.outbox import Outbox
from gossip.failure_detection.flap_damping import FlapDamping
from gossip.failure_detection.prober import LocalHealth
from gossip.members.member_table import MemberTable
from gossip.members.record import Record, Status
from gossip.settings import Settings
from gossip.timers import Due, Timers

__all__ = ["LocalMember"]

_MAX_INCARNATION = (1 << 32) - 1


class LocalMember:
    """Membership record of this node; only this class changes it."""

    def __init__(
        self,
        table: MemberTable,
        outbox: Outbox,
        timers: Timers,
        health: LocalHealth,
        settings: Settings,
        counters: Counter[str],
    ) -> None:
        self._table = table
        self._outbox = outbox
        self._timers = timers
        self._health = health
        self._counters = counters
        self._damping = FlapDamping(settings)
        self._wants_forward_only = False
        self.has_left = table.me.status is Status.LEFT
        """Whether this node has left the cluster voluntarily."""

    def set_forward_only(self, flag: bool, now: int) -> None:
        """Set whether the node only forwards checks and holds no counters."""
        self._wants_forward_only = flag
        self._apply_damping(now)

    @property
    def is_damped(self) -> bool:
        """Whether flap damping keeps this member out of the ring."""
        return self._damping.ends_at is not None and not self._is_needed

    def on_ring_change(self, now: int) -> None:
        """End flap damping (a pause from the ring) early when too few other members are in the
        ring."""
        self._apply_damping(now)

    def end_damping(self, now: int) -> None:
        """Return to the ring after flap damping, unless the node is set to only forward checks."""
        self._damping.end()
        self._apply_damping(now)

    def on_record(self, record: Record, now: int) -> None:
        """Process a record about this node from another member; refute it when it is wrong."""
        me = self._table.me
        is_elsewhere = record.address != me.address and not record.is_gone
        if record.generation == me.generation and is_elsewhere:
            self._outbox.conflict(record, steps_down=me.address < record.address)
            return
        if record.rank <= me.rank:
            if record.generation < me.generation:
                # The sender does not know about the restart of this member.
                self._outbox.disseminate(me, now)
            return
        if record.generation > me.generation and is_elsewhere and record.accuser == "":
            # Another node with this name booted later. The later node stays in the cluster.
            self._outbox.conflict(record, steps_down=True)
            return
        if record.status >= Status.SUSPECT:
            self._counters["refutations"] += 1
            self._health.change(1)
            accuser = self._table.get(record.accuser)
            # Suspicions between data centers indicate an unstable path, not an unstable member.
            is_in_local_dc = accuser is not None and self._table.is_in_local_dc(accuser)
            if record.generation == me.generation and is_in_local_dc:
                self._on_accusation(record.accuser, now)
        if record.generation > me.generation or record.incarnation >= _MAX_INCARNATION:
            # An earlier process of this member had a clock that was ahead.
            self.update(now, generation=record.generation + 1, incarnation=0)
        else:
            self.update(now, incarnation=record.incarnation + 1)

    def update(
        self,
        now: int,
        *,
        status: Status | None = None,
        forward_only: bool | None = None,
        generation: int | None = None,
        incarnation: int | None = None,
    ) -> None:
        """Change this node's record and raise its incarnation, unless an incarnation is given."""
        before = self._table.me
        me = replace(
            before,
            status=before.status if status is None else status,
            forward_only=before.forward_only if forward_only is None else forward_only,
            generation=before.generation if generation is None else generation,
            incarnation=before.incarnation + 1 if incarnation is None else incarnation,
        )
        self._table.put(me)
        self.has_left = me.status is Status.LEFT
        self._outbox.disseminate(me, now)
        self._outbox.changed(before, me)

    def _on_accusation(self, accuser: str, now: int) -> None:
        if self._damping.on_accusation(accuser, now) and self._damping.ends_at is not None:
            self._timers.set((Due.DAMPING, ""), self._damping.ends_at)
            self._apply_damping(now)

    def _apply_damping(self, now: int) -> None:
        """Enter or leave the ring, as the forward-only setting and the flap damping require."""
        is_damped = self.is_damped
        flag = self._wants_forward_only or is_damped
        if flag != self._table.me.forward_only and not self.has_left:
            self._counters["damped"] += is_damped
            self.update(now, forward_only=flag)

    @property
    def _is_needed(self) -> bool:
        """Whether less than half of the local data center's members would be in the ring without
        this node."""
        local_dc = [self._table.records[name] for name in self._table.local_dc]
        routed = sum(1 for record in local_dc if record.is_routed)
        return 2 * routed < len(local_dc) + 1
