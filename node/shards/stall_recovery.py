"""Recovery of a node after a stall: it asks the other members what they decided in its place.

A process may be stopped by garbage collection, a throttled container or SIGSTOP. When it resumes,
its socket contains checks that arrived during the stall. Meanwhile callers have asked the standby,
which took the shards over after a period of silence. Before the node decides such an old check, it
asks the other members in which of its shards they have decided checks. It fetches these shards with
the outcomes of their checks, and repeats these outcomes instead of counting again.

An overloaded node also receives old datagrams, although it was not stopped. It asks at most once a
second, so that it decides most of the time. A standby that takes over from such a node offers the
shards back in its next round, and the merge counts each check once.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from hashring import NodeId
from node.context.node_context import NodeContext
from ringfence.wire import AskTakenOver, Message, TakenOver

__all__ = ["STALLED_NS", "StallRecovery", "StallWatch"]

logger = logging.getLogger("ringfence.node")

STALLED_NS = 70_000_000
"""Wait of a datagram in the socket from which on a recovery is needed. It is less than the silence
after which a standby takes over: while all datagrams are younger, no standby has."""
_WITHIN_S = 0.5
"""Longest time that checks wait for the other members' answers, within their own deadlines."""
_LAG_NS = 1_000_000_000
"""Time between recoveries of a node that lags, but was not stopped."""
_MAX_ROUNDS = 3
"""Recoveries that may follow each other without an end. A node that is stopped again and again, as
by a CPU quota, then decides without the other members' answers."""
_LOGGED_AGAIN_NS = 10_000_000_000
"""Time after a logged stall in which further ones are only counted."""
_ASK_AGAIN_S = 0.02
"""Pause before a member whose connection ended is asked again."""


class _Link(Protocol):
    def call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[object], None],
        timeout: float | None = None,
    ) -> None: ...


class StallRecovery:
    """Suspends decisions after a stall until the other members have answered."""

    def __init__(
        self,
        links: Callable[[], Iterable[tuple[NodeId, _Link]]],
        reclaim: Callable[[NodeId, list[int], Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], object],
        suspend: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        """`links` lists the members that can be asked; `reclaim` fetches shards from a member and
        calls back at the end."""
        self._links = links
        self._reclaim = reclaim
        self._call_later = call_later
        self._suspend = suspend
        self._resume = resume
        self._began_ns = -1
        self._read_at = -STALLED_NS
        """When a datagram that had waited for long was last read."""
        self._stopped_until = 0
        """When this node last read a datagram after it had been stopped."""
        self._open = 0
        """Answers and transfers that have not arrived."""
        self._round = 0
        """Number of the present recovery; answers of an earlier one are ignored."""
        self._rounds_open = 0
        """Recoveries since decisions were last possible."""

    def notice(self, held_up_ns: int, now: int) -> bool:
        """Start a recovery if a datagram read at `now` waited too long; return whether one is
        needed.

        A datagram that arrived before the last recovery started needs no further recovery.
        """
        if held_up_ns < STALLED_NS:
            return False
        # When datagrams were read all the time, the node was not stopped: it is only slow.
        if now - self._read_at >= STALLED_NS:
            self._stopped_until = now
        self._read_at = now
        if now - held_up_ns <= self._began_ns or self._rounds_open >= _MAX_ROUNDS:
            return False
        if self._stopped_until <= self._began_ns and now - self._began_ns < _LAG_NS:
            return False
        self._began_ns = now
        # Includes lost links: their members are asked after a reconnect.
        links = list(self._links())
        if not links:
            return False
        self._round += 1
        self._open = len(links)
        self._rounds_open += 1
        if self._rounds_open == 1:
            self._suspend()
        self._call_later(_WITHIN_S, self._end_callback(self._round))
        for name, link in links:
            self._ask(name, link, self._round)
        return True

    def _ask(self, name: NodeId, link: _Link, number: int) -> None:
        def take(reply: object) -> None:
            if isinstance(reply, TakenOver):
                self._reclaim(name, reply.shards, lambda: self._on_reclaimed(number))
            else:
                self._call_later(_ASK_AGAIN_S, lambda: self._ask(name, link, number))

        if number == self._round and self._rounds_open:
            link.call(AskTakenOver, take)

    def _end_callback(self, number: int) -> Callable[[], None]:
        return lambda: self._end(number)

    def _on_reclaimed(self, number: int) -> None:
        if number == self._round:
            self._open -= 1
            if not self._open:
                self._end(number)

    def _end(self, number: int) -> None:
        if number == self._round and self._rounds_open:
            self._rounds_open = 0
            self._resume()


class StallWatch:
    """Starts a recovery when a datagram of one node waited too long."""

    def __init__(self, node: NodeContext, recovery: StallRecovery) -> None:
        self._node = node
        self._running = node.running
        self._recovery = recovery
        self._logged_at = -_LOGGED_AGAIN_NS

    def notice(self) -> int:
        """Start a recovery if the datagram that is being processed waited too long; return its wait
        in ns."""
        transport = self._running.transport
        assert transport is not None
        held_up_ns = transport.held_up_ns
        if held_up_ns < STALLED_NS:
            return held_up_ns
        now = self._running.uptime()
        if self._recovery.notice(held_up_ns, now):
            self._node.counters.add("stalls")
            is_new = now - self._logged_at >= _LOGGED_AGAIN_NS
            self._logged_at = now if is_new else self._logged_at
            logger.log(
                logging.WARNING if is_new else logging.DEBUG,
                "process was stopped or overloaded: node=%s datagram_waited_ms=%d; "
                "asking the other members in which shards they have decided checks",
                *(self._node.name, held_up_ns // 1_000_000),
            )
        return held_up_ns
