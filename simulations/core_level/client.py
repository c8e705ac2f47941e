"""A client of the core level: it knows the ring and asks the owner, then the standby.

The routing client that ships waits by anyio; this one is as patient, asks the same members in the
same order, and fetches the view when an answer tells of another one.
"""

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING

from hashring import NodeId, View
from ringfence.limiter import Code
from ringfence.peering.failure_policy import FailurePolicy
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.router import Routes
from ringfence.peering.slot_queue import ASK_AGAIN_NS
from ringfence.wire import Batch, Op, Results
from simulations.core_level.deciding import CoreRouter
from simulations.core_level.event_loop import Future, TaskSet
from simulations.core_level.link import CoreLink, Server
from simulations.core_level.slots import Wakes
from simulations.node_level.virtual_time import HostClock

if TYPE_CHECKING:
    from simulations.core_level.world import CoreWorld

__all__ = ["CoreClient"]

_NS = 1_000_000_000
_REFRESH_S = 0.1
"""Seconds between two looks at the members."""
_LOOK_S = 5.0
"""Seconds after which it looks although nobody said that it is behind."""


class CoreClient:
    """An application's limiter, beside the nodes of one data center."""

    def __init__(self, world: "CoreWorld", name: str, datacenter: str, random: Random) -> None:
        self.name = name
        self.datacenter = datacenter
        self.network = world.network
        self.tasks = TaskSet()
        self._world = world
        self._random = random
        self._view = View.of(())
        self._links: dict[str, CoreLink] = {}
        self._is_behind = True
        self._wakes = Wakes(self.soon)
        clock = HostClock(lambda: world.agenda.seconds)
        fallback = FailurePolicy(world.rules.by_id, clock, 1_000_000).decide
        self._router = CoreRouter(self, fallback, self._link, (False, True))

    @property
    def seconds(self) -> float:
        """Seconds of virtual time."""
        return self._world.agenda.seconds

    def due(self, call: Callable[[], object]) -> None:
        """Call now: clients do not stand still."""
        call()

    def later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call after so many seconds."""
        self._world.agenda.at(self._world.agenda.now + round(seconds * _NS), call, *args)

    def soon(self, call: Callable[[], None]) -> None:
        """Call in a moment."""
        self._world.agenda.at(self._world.agenda.now, call)

    def begin(self, view: View) -> None:
        """Start from a view, and keep it fresh."""
        self._set_view(view)
        self._refresh(0.0)

    def check(self, batch: Batch, done: Callable[[Results], None]) -> None:
        """Have one check decided."""

        async def ask() -> None:
            done(await self._router.decide(batch, hops=0))

        self.tasks.start(ask())

    def hold(
        self, key: bytes, max_wait: float, seconds: float, done: Callable[[float, float], None]
    ) -> None:
        """Wait for a slot, hold it for `seconds` and release it.

        `done` gets when the slot was taken, infinity for never, and when its release began.
        """

        async def hold() -> None:
            lease = await self._take_slot(key, self.seconds + max_wait)
            told = self.seconds if lease else inf
            if lease:
                over: Future[None] = Future(self.soon)
                self.later(seconds, over.resolve, None)
                await over
            until = self.seconds
            if lease:
                await self._router.decide(Batch(Op.REFUND, [key], [1], leases=[lease]), hops=0)
            done(told, until)

        self.tasks.start(hold())

    async def _take_slot(self, key: bytes, give_up: float) -> int:
        """Ask under a ticket until a slot is free, as `Limiter.acquire` does; 0 for none."""
        ticket = self._random.getrandbits(63) + 1
        while True:
            woken = self._wakes.open(ticket)
            asked = Batch(Op.CHECK, [key], [1], leases=[ticket])
            verdicts = await self._router.decide(asked, hops=0)
            left = give_up - self.seconds
            if verdicts.outcomes.codes[0] != Code.DENIED:
                self._wakes.close(ticket)
                return verdicts.outcomes.leases[0]
            if left <= 0:
                self._wakes.close(ticket)
                gone = Batch(Op.CHECK, [key], [0], leases=[ticket])
                await self._router.decide(gone, hops=0)
                return 0
            pause_s = ASK_AGAIN_NS / _NS * (0.75 + self._random.random() / 2)
            self.later(min(left, pause_s), woken.resolve, None)
            if not woken.is_there:
                await woken

    def slots_free(self, tickets: Sequence[int]) -> None:
        """Wake waiters that slots are kept for."""
        self._wakes.wake(tickets)

    def server(self, name: str) -> Server | None:
        """The node at a member's address, if one runs."""
        return self._world.node_at(name)

    def heard(self, name: str, view: int) -> None:
        """Notice that we are behind."""
        self._is_behind = self._is_behind or view != self._view.hash

    def reachable(self, name: str, is_so: bool) -> None:
        """A member that is lost may be none any more."""
        self._is_behind = True
        self._wakes.wake_all()

    def _refresh(self, looked_at: float) -> None:
        if not self._is_behind and self.seconds - looked_at < _LOOK_S:
            self.later(_REFRESH_S, self._refresh, looked_at)
            return
        self._is_behind = False
        near = [member.name for member in self._view.ring(self.datacenter).members]
        within_reach = [name for name in near if not self._link(NodeId(name)).is_lost]
        name = self._random.choice(within_reach or self._world.in_datacenter(self.datacenter))

        def on_reply(reply: object) -> None:
            if isinstance(reply, View):
                if reply != self._view and reply.ring(self.datacenter).members:
                    self._set_view(reply)
            else:
                self._is_behind = True
            self.later(_REFRESH_S, self._refresh, self.seconds)

        self._link(NodeId(name)).look(on_reply)

    def _set_view(self, view: View) -> None:
        self._view = view
        self._router.routes = Routes(view.ring(self.datacenter), {})
        self._wakes.wake_all()

    def _link(self, name: NodeId) -> CoreLink:
        link = self._links.get(name)
        if link is None:
            settings = LinkSettings()
            link = self._links[name] = CoreLink(self, name, settings, lambda: self._view.hash)
        return link
