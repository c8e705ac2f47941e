"""What may go wrong: verbs, and what each does to a world.

A fault is written by hand in a scenario, or drawn from a seed (`generate`); either way it is a
plain value, and begins and ends at instants of virtual time.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulations.scenarios.scenario import Args, Fault

__all__ = ["VERBS", "FaultyWorld", "Verb", "apply"]


class FaultyWorld(Protocol):
    """What faults are done to; both levels have one."""

    def names(self) -> list[str]:
        """All hosts."""

    def in_datacenter(self, datacenter: str) -> list[str]:
        """The hosts of a data center."""

    def in_zone(self, zone: str) -> list[str]:
        """The hosts of a zone, in all data centers."""

    async def start(self, name: str) -> None:
        """Start a node."""

    def crash(self, name: str) -> None:
        """End a node as a power failure would."""

    async def leave(self, name: str) -> None:
        """Have a node hand over and leave."""

    def pause(self, name: str, is_paused: bool) -> None:
        """Have a host stand still, or go on."""

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Carry nothing between them."""

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Undo `cut`."""

    def set_loss(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams between them."""

    def set_repeats(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have this share come twice."""

    def set_slow(self, extra: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have everything take longer."""

    def set_bursts(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams between them in bursts."""

    def set_corrupt(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Spoil this share."""

    def set_replay(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have old ones come again, this many for each new one."""

    def set_spikes(self, mean: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have everything between them take longer by chance, seconds in the mean."""

    def set_clog(self, is_on: bool, some: Sequence[str], others: Sequence[str]) -> None:
        """Hold everything between them, or let it go at once."""

    def reset(self, some: Sequence[str], others: Sequence[str]) -> None:
        """End all connections between them."""

    def set_busy(self, name: str, seconds: float) -> None:
        """Have a host work for so long on each message."""

    def move(self, name: str) -> None:
        """Have a node's next life listen elsewhere."""

    def lose_seeds(self, name: str, is_lost: bool) -> None:
        """Have a node's next life find nobody at the addresses that it is given."""

    def lower_limits(self, name: str, part: float) -> None:
        """Have one node alone go by this part of every limit; 1 is as ever."""

    def plant_errors(self, name: str, count: int) -> None:
        """Have the next calls and tasks of a node meet an internal error."""

    def step_clock(self, name: str, seconds: float) -> None:
        """Set a host's clock."""

    def drift_clock(self, name: str, ppm: float) -> None:
        """Have a host's clock run fast or slow."""


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
    world.cut(*_sides(world, args), one_way=bool(args.get("one_way", 0)))


async def _heal(world: FaultyWorld, args: Args) -> None:
    world.heal(*_sides(world, args))


async def _lose(world: FaultyWorld, args: Args) -> None:
    world.set_loss(float(args["share"]), *_sides(world, args))


async def _lose_no_more(world: FaultyWorld, args: Args) -> None:
    world.set_loss(0.0, *_sides(world, args))


async def _repeat(world: FaultyWorld, args: Args) -> None:
    world.set_repeats(float(args["share"]), *_sides(world, args))


async def _repeat_no_more(world: FaultyWorld, args: Args) -> None:
    world.set_repeats(0.0, *_sides(world, args))


async def _slow(world: FaultyWorld, args: Args) -> None:
    world.set_slow(float(args["extra_ms"]) / 1000, *_sides(world, args))


async def _quick(world: FaultyWorld, args: Args) -> None:
    world.set_slow(0.0, *_sides(world, args))


async def _burst(world: FaultyWorld, args: Args) -> None:
    world.set_bursts(float(args["share"]), *_sides(world, args))


async def _burst_no_more(world: FaultyWorld, args: Args) -> None:
    world.set_bursts(0.0, *_sides(world, args))


async def _corrupt(world: FaultyWorld, args: Args) -> None:
    world.set_corrupt(float(args["share"]), *_sides(world, args))


async def _corrupt_no_more(world: FaultyWorld, args: Args) -> None:
    world.set_corrupt(0.0, *_sides(world, args))


async def _replay(world: FaultyWorld, args: Args) -> None:
    world.set_replay(float(args["share"]), *_sides(world, args))


async def _replay_no_more(world: FaultyWorld, args: Args) -> None:
    world.set_replay(0.0, *_sides(world, args))


async def _spike(world: FaultyWorld, args: Args) -> None:
    world.set_spikes(float(args["mean_ms"]) / 1000, *_sides(world, args))


async def _spike_no_more(world: FaultyWorld, args: Args) -> None:
    world.set_spikes(0.0, *_sides(world, args))


async def _clog(world: FaultyWorld, args: Args) -> None:
    world.set_clog(True, *_sides(world, args))


async def _unclog(world: FaultyWorld, args: Args) -> None:
    world.set_clog(False, *_sides(world, args))


async def _reset(world: FaultyWorld, args: Args) -> None:
    world.reset(*_sides(world, args))


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
        return [name for name in str(args["node"]).split(",") if name in world.names()]
    if "zone" in args:
        return world.in_zone(str(args["zone"]))
    if "datacenter" in args:
        return world.in_datacenter(str(args["datacenter"]))
    return world.names()


def _sides(world: FaultyWorld, args: Args) -> tuple[list[str], list[str]]:
    """The two sides of a link fault: those that it is about, and those of `from`, or all others.

    With `from` some see both sides, and who is cut from whom need not be transitive.
    """
    some = _chosen(world, args)
    if "from" in args:
        return some, _chosen(world, {"node": args["from"]})
    others = [name for name in world.names() if name not in some]
    return some, others or some
