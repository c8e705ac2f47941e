"""Membership on the heap: datagrams, exchanges and timers.

The twin of `node.membership.gossip_driver`.

The core that ships decides; here nothing is sealed, and records are handed over as values.
"""

from collections.abc import Callable, Sequence

from gossip import Changed, Conflict, Effect, Exchange, Membership, Message, Record, Send
from node.containment import Containment
from simulations.core_level.link import CoreLink, Told

__all__ = ["CoreGossiping"]

_AGAIN_NS = 100_000_000
"""How long after a tick that met an internal error the next one comes."""


class CoreGossiping:
    """Runs the membership core of one life of a node."""

    def __init__(
        self,
        membership: Membership,
        uptime: Callable[[], int],
        call_at: Callable[[int, Callable[[int], None], int], None],
        send: Callable[[str, Message], None],
        link_at: Callable[[str], CoreLink],
        on_change: Callable[[Sequence[Changed]], None],
        on_conflict: Callable[[], None],
        containment: Containment,
    ) -> None:
        """`call_at` takes an instant in ns of uptime, what to call, and its argument."""
        self._membership = membership
        self._uptime = uptime
        self._call_at = call_at
        self._send = send
        self._link_at = link_at
        self._on_change = on_change
        self._on_conflict = on_conflict
        self._containment = containment
        self._is_behind = False
        """Whether the members changed and `on_change` has met an internal error since."""
        self._planned = -1
        """When the next tick is on the heap; -1 for not at all."""

    def do(self, act: Callable[[Membership, int], list[Effect]]) -> None:
        """Have the core do something, and perform what comes of it."""
        self._perform(act(self._membership, self._uptime()))

    def hear(self, message: Message, port: int, sender: str) -> None:
        """Take a datagram."""
        self._containment.call("gossip", self._hear, message, port, sender)

    def _hear(self, message: Message, port: int, sender: str) -> None:
        self._perform(self._membership.receive(message, (sender, port), self._uptime()))

    def merge(self, records: Sequence[Record]) -> None:
        """Take another member's list."""
        self._perform(self._membership.merge(records, self._uptime()))

    def _tick(self, planned: int) -> None:
        if planned != self._planned:
            return  # Something was due before.
        self._planned = -1
        now = self._uptime()
        if self._membership.next_deadline() > now:
            self._plan()
        elif not self._containment.call("gossip", self._advance) and self._planned < 0:
            self._planned = now + _AGAIN_NS
            self._call_at(self._planned, self._tick, self._planned)

    def _advance(self) -> None:
        self._perform(self._membership.tick(self._uptime()))

    def _perform(self, effects: Sequence[Effect]) -> None:
        changes: list[Changed] = []
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(to[0], message)
                case Exchange(address):
                    self._exchange(address[0])
                case Changed():
                    changes.append(effect)
                case Conflict():
                    self._on_conflict()
        if changes or self._is_behind:
            is_done = self._containment.call("gossip", self._on_change, changes)
            self._is_behind = not is_done  # The next tick, if nothing earlier, tries again.
        self._plan()

    def _plan(self) -> None:
        deadline = self._membership.next_deadline()
        if self._planned < 0 or deadline < self._planned:
            self._planned = deadline
            self._call_at(deadline, self._tick, deadline)

    def _exchange(self, name: str) -> None:
        """Give our list of members, and merge the one that comes back."""

        def on_reply(reply: object) -> None:
            if isinstance(reply, Told):
                self.merge(reply.records)

        self._link_at(name).call(lambda seq: Told(seq, self._membership.snapshot()), on_reply)
