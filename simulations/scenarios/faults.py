"""What may go wrong: verbs, and what each does to a world.

A fault is written by hand in a scenario, or drawn from a seed (`generate`); either way it is a
plain value, and begins and ends at instants of virtual time.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulations.scenarios.scenario import Args, Fault

__all__ = ["VERBS", "FaultyWorld", "Verb", "apply"]


class NamedHosts(Protocol):
    """Names of the hosts of a world."""

    def names(self) -> list[str]:
        """Return all hosts."""

    def in_datacenter(self, datacenter: str) -> list[str]:
        """Return the hosts of a data center."""

    def in_zone(self, zone: str) -> list[str]:
        """Return the hosts of a zone, in all data centers."""


class FaultyLinks(Protocol):
    """Links of a world, by the names of the hosts on both sides."""

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Carry nothing between them."""

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        """End a `cut`."""

    def set_loss(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams."""

    def set_repeats(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Deliver this share of the datagrams twice."""

    def set_slow(self, extra: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Delay everything by so many seconds."""

    def set_bursts(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams in bursts."""

    def set_corrupt(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Corrupt this share of the datagrams."""

    def set_replay(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Replay old datagrams, this many for each new one."""

    def set_spikes(self, mean: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Delay everything by chance, by `mean` seconds on average."""

    def set_clog(self, is_on: bool, some: Sequence[str], others: Sequence[str]) -> None:
        """Hold everything, or deliver it at once."""

    def reset(self, some: Sequence[str], others: Sequence[str]) -> None:
        """End all connections."""


class FaultyWorld(Protocol):
    """World that faults are applied to."""

    @property
    def hosts(self) -> NamedHosts:
        """Its hosts."""

    @property
    def links(self) -> FaultyLinks:
        """Its links."""

    async def start(self, name: str) -> None:
        """Start a node."""

    def crash(self, name: str) -> None:
        """End a node as a power failure would."""

    async def leave(self, name: str) -> None:
        """Let a node transfer its shards and leave."""

    def pause(self, name: str, is_paused: bool) -> None:
        """Suspend a host, or resume it."""

    def set_busy(self, name: str, seconds: float) -> None:
        """Let a host work for so long on each message."""

    def move(self, name: str) -> None:
        """Give the next node of a host another port."""

    def lose_seeds(self, name: str, is_lost: bool) -> None:
        """Give the next node of a host wrong addresses of other members, or right ones."""

    def lower_limits(self, name: str, part: float) -> None:
        """Let one node alone apply this part of every limit; 1 is the whole limit."""

    def plant_errors(self, name: str, count: int) -> None:
        """Let the next calls and tasks of a node meet an internal error."""

    def step_clock(self, name: str, seconds: float) -> None:
        """Step a host's clock."""

    def drift_clock(self, name: str, ppm: float) -> None:
        """Let a host's clock run fast or slow."""


Act = Callable[[FaultyWorld, Args], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of fault."""

    begin: Act
    end: Act | None
    """What ends it; None for what is over at once."""
    is_unclean: bool
    """Whether hits may be lost, or counted by two at once, by its nature."""
    about: str


async def _crash(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.crash(name)


async def _restart(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        if args.get("moves"):
            world.move(name)
        world.lose_seeds(name, bool(args.get("seedless")))
        await world.start(name)


async def _leave(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        await world.leave(name)


async def _pause(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.pause(name, True)


async def _resume(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.pause(name, False)


async def _cut(world: FaultyWorld, args: Args) -> None:
    world.links.cut(*_sides(world, args), one_way=bool(args.get("one_way", 0)))


async def _heal(world: FaultyWorld, args: Args) -> None:
    world.links.heal(*_sides(world, args))


async def _lose(world: FaultyWorld, args: Args) -> None:
    world.links.set_loss(float(args["share"]), *_sides(world, args))


async def _lose_no_more(world: FaultyWorld, args: Args) -> None:
    world.links.set_loss(0.0, *_sides(world, args))


async def _repeat(world: FaultyWorld, args: Args) -> None:
    world.links.set_repeats(float(args["share"]), *_sides(world, args))


async def _repeat_no_more(world: FaultyWorld, args: Args) -> None:
    world.links.set_repeats(0.0, *_sides(world, args))


async def _slow(world: FaultyWorld, args: Args) -> None:
    world.links.set_slow(float(args["extra_ms"]) / 1000, *_sides(world, args))


async def _quick(world: FaultyWorld, args: Args) -> None:
    world.links.set_slow(0.0, *_sides(world, args))


async def _burst(world: FaultyWorld, args: Args) -> None:
    world.links.set_bursts(float(args["share"]), *_sides(world, args))


async def _burst_no_more(world: FaultyWorld, args: Args) -> None:
    world.links.set_bursts(0.0, *_sides(world, args))


async def _corrupt(world: FaultyWorld, args: Args) -> None:
    world.links.set_corrupt(float(args["share"]), *_sides(world, args))


async def _corrupt_no_more(world: FaultyWorld, args: Args) -> None:
    world.links.set_corrupt(0.0, *_sides(world, args))


async def _replay(world: FaultyWorld, args: Args) -> None:
    world.links.set_replay(float(args["share"]), *_sides(world, args))


async def _replay_no_more(world: FaultyWorld, args: Args) -> None:
    world.links.set_replay(0.0, *_sides(world, args))


async def _spike(world: FaultyWorld, args: Args) -> None:
    world.links.set_spikes(float(args["mean_ms"]) / 1000, *_sides(world, args))


async def _spike_no_more(world: FaultyWorld, args: Args) -> None:
    world.links.set_spikes(0.0, *_sides(world, args))


async def _clog(world: FaultyWorld, args: Args) -> None:
    world.links.set_clog(True, *_sides(world, args))


async def _unclog(world: FaultyWorld, args: Args) -> None:
    world.links.set_clog(False, *_sides(world, args))


async def _reset(world: FaultyWorld, args: Args) -> None:
    world.links.reset(*_sides(world, args))


async def _work(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.set_busy(name, float(args["cost_ms"]) / 1000)


async def _work_no_more(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.set_busy(name, 0.0)


async def _lower(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.lower_limits(name, float(args["part"]))


async def _lower_no_more(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.lower_limits(name, 1.0)


async def _fail(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.plant_errors(name, int(args["count"]))


async def _fail_no_more(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.plant_errors(name, 0)


async def _step(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.step_clock(name, float(args["by_s"]))


async def _drift(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.drift_clock(name, float(args["ppm"]))


async def _drift_no_more(world: FaultyWorld, args: Args) -> None:
    for name in _chosen(world, args):
        world.drift_clock(name, 0.0)


VERBS = {
    "crash": Verb(_crash, _restart, True, "a node ends without a word; it is started again"),
    "leave": Verb(_leave, _restart, False, "a node hands over and leaves; it is started again"),
    "pause": Verb(_pause, _resume, True, "a host stands still, and goes on"),
    "stall": Verb(_pause, _resume, True, "a process is stopped for up to 5 s, and goes on"),
    "cut": Verb(_cut, _heal, True, "nothing is carried between two sides, or only one way"),
    "loss": Verb(_lose, _lose_no_more, False, "datagrams are lost"),
    "repeats": Verb(_repeat, _repeat_no_more, False, "datagrams come twice"),
    "slow": Verb(_slow, _quick, True, "everything between two sides takes longer"),
    "bursts": Verb(_burst, _burst_no_more, False, "datagrams are lost in bursts"),
    "spikes": Verb(_spike, _spike_no_more, True, "some of all takes much longer, up to 5 s"),
    "clog": Verb(_clog, _unclog, True, "everything between two sides waits, and comes at once"),
    "reset": Verb(_reset, None, True, "connections end, as when a middlebox forgets them"),
    "corrupt": Verb(_corrupt, _corrupt_no_more, False, "datagrams come spoilt or cut short"),
    "replay": Verb(
        _replay, _replay_no_more, False, "old datagrams come again, up to a minute late"
    ),
    "busy": Verb(_work, _work_no_more, True, "a host works for long on each message"),
    "limits": Verb(_lower, _lower_no_more, True, "one node alone goes by lower limits"),
    "errors": Verb(
        _fail, _fail_no_more, True, "a node's next requests, datagrams, timers and tasks raise"
    ),
    "clock_step": Verb(_step, None, True, "a host's clock is set"),
    "clock_drift": Verb(_drift, _drift_no_more, False, "a host's clock runs fast or slow"),
}


async def apply(world: FaultyWorld, fault: Fault, *, is_end: bool) -> None:
    """Begin a fault, or end it."""
    verb = VERBS[fault.verb]
    act = verb.end if is_end else verb.begin
    if act is not None:
        await act(world, fault.args)


def _chosen(world: FaultyWorld, args: Args) -> list[str]:
    """Those that a fault is about: a node, a zone or a data center."""
    if "node" in args:
        return [name for name in str(args["node"]).split(",") if name in world.hosts.names()]
    if "zone" in args:
        return world.hosts.in_zone(str(args["zone"]))
    if "datacenter" in args:
        return world.hosts.in_datacenter(str(args["datacenter"]))
    return world.hosts.names()


def _sides(world: FaultyWorld, args: Args) -> tuple[list[str], list[str]]:
    """The two sides of a link fault: those that it is about, and those of `from`, or all others.

    With `from` some see both sides, and who is cut from whom need not be transitive.
    """
    some = _chosen(world, args)
    if "from" in args:
        return some, _chosen(world, {"node": args["from"]})
    others = [name for name in world.hosts.names() if name not in some]
    return some, others or some
