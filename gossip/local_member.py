"""What a member says of itself, and what it does about what others say of it.

Nobody else may raise its incarnation, so nobody else can refute an accusation. Also decides when
the member leaves the ring for a while, because it was accused too often.
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
    """The one record of the table that is ours to change."""

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

    def set_forward_only(self, flag: bool, now: int) -> None:
        """Heed the shell's wish; while damped, a member forwards only in any case."""
        self._wants_forward_only = flag
        self._heed_damping(now)

    @property
    def is_damped(self) -> bool:
        """Whether it stays out of the ring, being accused too often."""
        return self._damping.ends_at is not None and not self._is_needed

    def look_around(self, now: int) -> None:
        """Others have left the ring or come back: perhaps it cannot do without us."""
        self._heed_damping(now)

    def end_damping(self, now: int) -> None:
        """Come back to the ring, if nothing else keeps us out."""
        self._damping.end()
        self._heed_damping(now)

    def hear(self, record: Record, now: int) -> None:
        """Take what is said of us, and put it right."""
        me = self._table.me
        is_elsewhere = record.address != me.address and not record.is_gone
        if record.generation == me.generation and is_elsewhere:
            self._outbox.conflict(record, steps_down=me.address < record.address)
            return
        if record.rank <= me.rank:
            if record.generation < me.generation:
                # Somebody has not heard that we were started again.
                self._outbox.spread(me, now)
            return
        if record.generation > me.generation and is_elsewhere and record.accuser == "":
            # Started after us under our name, at another place: the newer one stays, if it lives.
            self._outbox.conflict(record, steps_down=True)
            return
        if record.status >= Status.SUSPECT:
            self._counters["refutations"] += 1
            self._health.change(1)
            accuser = self._table.get(record.accuser)
            # Between data centers it is the path that flaps, and not the member.
            is_near = accuser is not None and self._table.is_near(accuser)
            if record.generation == me.generation and is_near:
                self._note_accusation(record.accuser, now)
        if record.generation > me.generation or record.incarnation >= _MAX_INCARNATION:
            # Our own earlier life, by a clock that was ahead.
            self.say(now, generation=record.generation + 1, incarnation=0)
        else:
            self.say(now, incarnation=record.incarnation + 1)

    def say(
        self,
        now: int,
        *,
        status: Status | None = None,
        forward_only: bool | None = None,
        generation: int | None = None,
        incarnation: int | None = None,
    ) -> None:
        """Change what we say of ourselves: only we do, and each time by a higher incarnation."""
        before = self._table.me
        me = replace(
            before,
            status=before.status if status is None else status,
            forward_only=before.forward_only if forward_only is None else forward_only,
            generation=before.generation if generation is None else generation,
            incarnation=before.incarnation + 1 if incarnation is None else incarnation,
        )
        self._table.put(me)
        self._outbox.spread(me, now)
        self._outbox.changed(before, me)

    def _note_accusation(self, accuser: str, now: int) -> None:
        if self._damping.accused(accuser, now) and self._damping.ends_at is not None:
            self._timers.set((Due.DAMPING, ""), self._damping.ends_at)
            self._heed_damping(now)

    def _heed_damping(self, now: int) -> None:
        """Be in the ring or not, as the shell wishes and as our own calm allows."""
        is_damped = self.is_damped
        flag = self._wants_forward_only or is_damped
        if flag != self._table.me.forward_only and not self.has_left:
            self._counters["damped"] += is_damped
            self.say(now, forward_only=flag)

    @property
    def _is_needed(self) -> bool:
        """Whether without us less than half of the data center would be in the ring."""
        near = [self._table.records[name] for name in self._table.near]
        routed = sum(1 for record in near if record.is_routed)
        return 2 * routed < len(near) + 1

    @property
    def has_left(self) -> bool:
        """Whether we have said goodbye."""
        return self._table.me.status is Status.LEFT
