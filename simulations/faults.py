"""What may go wrong: verbs, what each does to a world, and how a swarm draws them.

A verb is written by hand in a scenario, or drawn from a seed; either way it is a plain value, and
begins and ends at instants of virtual time.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from simulations.scenario import Args, Fault, Scenario

__all__ = ["VERBS", "FaultyWorld", "Verb", "apply", "check", "drawn"]


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
    "cut": Verb(_cut, _heal, True, "nothing is carried between two sides, or only one way"),
    "loss": Verb(_lose, _lose_no_more, False, "datagrams are lost"),
    "repeats": Verb(_repeat, _repeat_no_more, False, "datagrams come twice"),
    "slow": Verb(_slow, _quick, True, "everything between two sides takes longer"),
    "clock_step": Verb(_step, None, True, "a host's clock is set"),
    "clock_drift": Verb(_drift, _drift_no_more, False, "a host's clock runs fast or slow"),
}


def check(fault: Fault) -> None:
    """Raise `ValueError` that says what is wrong with a fault written by hand."""
    if fault.verb not in VERBS:
        raise ValueError(f"unknown fault {fault.verb!r}; known are {', '.join(VERBS)}")
    if fault.until is not None and fault.until < fault.at:
        raise ValueError(f"fault {fault} ends before it begins")


async def apply(world: FaultyWorld, fault: Fault, *, is_end: bool) -> None:
    """Begin a fault, or end it."""
    verb = VERBS[fault.verb]
    act = verb.end if is_end else verb.begin
    if act is not None:
        await act(world, fault.args)


def drawn(scenario: Scenario, random: Random, seconds: float) -> tuple[Fault, ...]:
    """Draw faults for a swarm: each kind with probability one half, then when, whom and how hard.

    All of them are over before `seconds`.
    """
    names = [f"n{number + 1}" for number in range(scenario.nodes)]
    faults: list[Fault] = []
    for verb in VERBS:
        if random.random() < 0.5:
            for _ in range(random.choice((1, 1, 2))):
                begin = random.uniform(1.0, seconds * 0.6)
                until = min(seconds, begin + random.choice((0.3, 2.0, 8.0, 20.0)))
                args = _drawn_args(verb, names, scenario, random)
                faults.append(Fault(round(begin, 2), verb, round(until, 2), args))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.verb)))


def _drawn_args(verb: str, names: list[str], scenario: Scenario, random: Random) -> Args:
    """Whom a fault of this kind is about, and how hard it is."""
    args: Args = {"node": random.choice(names)}
    match verb:
        case "cut" if scenario.datacenters > 1 and random.random() < 0.5:
            args = {"datacenter": f"dc{random.randint(1, scenario.datacenters)}"}
        case "cut":
            args["one_way"] = int(random.random() < 0.3)
        case "loss":
            args = {"share": round(random.uniform(0.02, 0.3), 3)}
        case "repeats":
            args = {"share": round(random.uniform(0.05, 0.5), 3)}
        case "slow":
            args["extra_ms"] = random.choice((20, 100, 300))
        case "clock_step":
            args["by_s"] = random.choice((-3600, -10, -1, 0.2, 5, 3600))
        case "clock_drift":
            args["ppm"] = random.choice((-500, -100, 100, 500))
    return args


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
    """The two sides of a link fault: those that it is about, and all others."""
    some = _chosen(world, args)
    others = [name for name in world.names() if name not in some]
    return some, others or some
