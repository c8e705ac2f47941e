"""Kinds of faults, and their effect on a simulated world.

A fault is written in a scenario or generated from a seed (`generate`). It is a plain value that
begins and ends at instants of virtual time.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from simulations.scenarios.scenario import Args, Fault

__all__ = ["VERBS", "FaultyWorld", "Verb", "apply", "held_up_s"]


class NamedHosts(Protocol):
    """Interface of a world that lists the names of its hosts."""

    def names(self) -> list[str]:
        """Return the names of all hosts."""

    def in_datacenter(self, datacenter: str) -> list[str]:
        """Return the hosts of a data center."""

    def in_zone(self, zone: str) -> list[str]:
        """Return the hosts of a zone, in all data centers."""


class FaultyLinks(Protocol):
    """Interface of links to which faults are applied; arguments are the host names on both
    sides."""

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Drop all messages between two groups of hosts, in both directions or in one."""

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Undo `cut`, so that messages arrive again."""

    def set_loss(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that are lost."""

    def set_repeats(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that arrive twice."""

    def set_slow(self, extra: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Add a fixed delay, in seconds, to all messages between two groups of hosts."""

    def set_bursts(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that are lost in bursts."""

    def set_corrupt(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Set the share of datagrams between two groups of hosts that are corrupted."""

    def set_replay(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Repeat old datagrams between two groups of hosts; `share` is their number per new
        datagram."""

    def set_spikes(self, mean: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Add a random delay, `mean` seconds on average, to all messages between two groups of
        hosts."""

    def set_clog(self, is_on: bool, some: Sequence[str], others: Sequence[str]) -> None:
        """Hold all messages between two groups of hosts, or deliver the held messages together."""

    def reset(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Close all connections between two groups of hosts."""


class FaultyWorld(Protocol):
    """Interface of a simulated cluster to which faults are applied."""

    @property
    def hosts(self) -> NamedHosts:
        """Return the hosts of the simulated cluster."""

    @property
    def links(self) -> FaultyLinks:
        """Return the links of the simulated cluster."""

    async def start(self, name: str) -> None:
        """Start a node on a host."""

    def crash(self, name: str) -> None:
        """End a node immediately, as a power failure would."""

    async def leave(self, name: str) -> None:
        """Make a node transfer its shards and leave the cluster."""

    def pause(self, name: str, is_paused: bool) -> None:
        """Suspend or resume all processes of a host."""

    def set_busy(self, name: str, seconds: float) -> None:
        """Set the processing time of each message on a host."""

    def move(self, name: str) -> None:
        """Make a host use another port when it starts its next node."""

    def lose_seeds(self, name: str, is_lost: bool) -> None:
        """Give a host wrong or correct seed addresses for the next start of a node."""

    def lower_limits(self, name: str, part: float) -> None:
        """Multiply every limit of one node by a factor below 1; 1 restores the limits."""

    def change_rules(self, part: float) -> None:
        """Multiply every limit of the rule file by a factor, on all nodes; 1 restores the file."""

    def inject_errors(self, name: str, count: int) -> None:
        """Raise an internal error in the next calls and tasks of a node."""

    def step_clock(self, name: str, seconds: float) -> None:
        """Change the clock of a host by a number of seconds."""

    def drift_clock(self, name: str, ppm: float) -> None:
        """Make the clock of a host drift, in parts per million."""


_TRANSFER_DELAYS = 20
"""Network delays in the longest transfer of a shard: connection, requests and parts."""
_LONGEST_SPIKE_S = 5.0

Act = Callable[[FaultyWorld, Args], Awaitable[None]]


class Verb(Struct, frozen=True):
    """Kind of fault: how it begins, and how it ends."""

    begin: Act
    end: Act | None
    """Function that ends the fault; None for an instantaneous fault."""
    about: str


async def _crash(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.crash(name)


async def _restart(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        if args.get("moves"):
            world.move(name)
        world.lose_seeds(name, bool(args.get("seedless")))
        await world.start(name)


async def _leave(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        await world.leave(name)


async def _pause(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.pause(name, True)


async def _resume(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.pause(name, False)


async def _cut(world: FaultyWorld, args: Args) -> None:
    world.links.cut(*_sides(world, args), one_way=bool(args.get("one_way", 0)))


async def _heal(world: FaultyWorld, args: Args) -> None:
    world.links.heal(*_sides(world, args))


async def _drop(world: FaultyWorld, args: Args) -> None:
    world.links.set_loss(float(args["share"]), *_sides(world, args))


async def _stop_loss(world: FaultyWorld, args: Args) -> None:
    world.links.set_loss(0.0, *_sides(world, args))


async def _repeat(world: FaultyWorld, args: Args) -> None:
    world.links.set_repeats(float(args["share"]), *_sides(world, args))


async def _stop_repeats(world: FaultyWorld, args: Args) -> None:
    world.links.set_repeats(0.0, *_sides(world, args))


async def _add_delay(world: FaultyWorld, args: Args) -> None:
    world.links.set_slow(float(args["extra_ms"]) / 1000, *_sides(world, args))


async def _stop_delay(world: FaultyWorld, args: Args) -> None:
    world.links.set_slow(0.0, *_sides(world, args))


async def _burst(world: FaultyWorld, args: Args) -> None:
    world.links.set_bursts(float(args["share"]), *_sides(world, args))


async def _stop_bursts(world: FaultyWorld, args: Args) -> None:
    world.links.set_bursts(0.0, *_sides(world, args))


async def _corrupt(world: FaultyWorld, args: Args) -> None:
    world.links.set_corrupt(float(args["share"]), *_sides(world, args))


async def _stop_corruption(world: FaultyWorld, args: Args) -> None:
    world.links.set_corrupt(0.0, *_sides(world, args))


async def _replay(world: FaultyWorld, args: Args) -> None:
    world.links.set_replay(float(args["share"]), *_sides(world, args))


async def _stop_replay(world: FaultyWorld, args: Args) -> None:
    world.links.set_replay(0.0, *_sides(world, args))


async def _spike(world: FaultyWorld, args: Args) -> None:
    world.links.set_spikes(float(args["mean_ms"]) / 1000, *_sides(world, args))


async def _stop_spikes(world: FaultyWorld, args: Args) -> None:
    world.links.set_spikes(0.0, *_sides(world, args))


async def _clog(world: FaultyWorld, args: Args) -> None:
    world.links.set_clog(True, *_sides(world, args))


async def _unclog(world: FaultyWorld, args: Args) -> None:
    world.links.set_clog(False, *_sides(world, args))


async def _reset(world: FaultyWorld, args: Args) -> None:
    world.links.reset(*_sides(world, args))


async def _make_busy(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.set_busy(name, float(args["cost_ms"]) / 1000)


async def _stop_busy(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.set_busy(name, 0.0)


async def _lower_limits(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.lower_limits(name, float(args["part"]))


async def _restore_limits(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.lower_limits(name, 1.0)


async def _change_rules(world: FaultyWorld, args: Args) -> None:
    world.change_rules(float(args["part"]))


async def _restore_rules(world: FaultyWorld, args: Args) -> None:
    world.change_rules(1.0)


async def _inject_errors(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.inject_errors(name, int(args["count"]))


async def _stop_errors(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.inject_errors(name, 0)


async def _step(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.step_clock(name, float(args["by_s"]))


async def _drift(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.drift_clock(name, float(args["ppm"]))


async def _stop_drift(world: FaultyWorld, args: Args) -> None:
    for name in _target_hosts(world, args):
        world.drift_clock(name, 0.0)


VERBS = {
    "crash": Verb(_crash, _restart, "a node crashes, and restarts at the end"),
    "leave": Verb(
        _leave, _restart, "a node transfers its shards and leaves, and restarts at the end"
    ),
    "pause": Verb(_pause, _resume, "a host is suspended, and resumes at the end"),
    "stall": Verb(_pause, _resume, "a process is suspended for up to 5 s"),
    "cut": Verb(_cut, _heal, "no message passes between two sides, or only in one direction"),
    "loss": Verb(_drop, _stop_loss, "datagrams are lost"),
    "repeats": Verb(_repeat, _stop_repeats, "datagrams are delivered twice"),
    "slow": Verb(_add_delay, _stop_delay, "messages between two sides have a fixed extra delay"),
    "bursts": Verb(_burst, _stop_bursts, "datagrams are lost in bursts"),
    "spikes": Verb(
        _spike,
        _stop_spikes,
        "messages between two sides have a random extra delay, up to 5 s",
    ),
    "clog": Verb(
        _clog,
        _unclog,
        "messages between two sides are held, and delivered together at the end",
    ),
    "reset": Verb(_reset, None, "connections close, as after a middlebox loses its state"),
    "corrupt": Verb(_corrupt, _stop_corruption, "datagrams arrive corrupt or truncated"),
    "replay": Verb(_replay, _stop_replay, "old datagrams are replayed, up to a minute late"),
    "busy": Verb(_make_busy, _stop_busy, "a host needs more time for each message"),
    "limits": Verb(_lower_limits, _restore_limits, "one node applies lower limits than the others"),
    "rules": Verb(
        _change_rules,
        _restore_rules,
        "the rule file changes on all nodes: every limit is reduced, and enlarged at the end",
    ),
    "errors": Verb(
        _inject_errors,
        _stop_errors,
        "the next requests, datagrams, timers and tasks of a node raise an error",
    ),
    "clock_step": Verb(_step, None, "a host's clock is stepped"),
    "clock_drift": Verb(_drift, _stop_drift, "a host's clock runs fast or slow"),
}


def held_up_s(fault: Fault, longest_queue_s: float) -> float:
    """Return how long a fault may hold up a message, or a transfer of several messages.

    `longest_queue_s` is the longest time that busy hosts have held up a message in the run.
    """
    args, until = fault.args, fault.at if fault.until is None else fault.until
    if fault.verb in ("clog", "pause", "stall"):
        return until - fault.at
    if fault.verb == "busy":
        return longest_queue_s
    if fault.verb == "slow":
        return float(args["extra_ms"]) / 1000 * _TRANSFER_DELAYS
    if fault.verb == "spikes":
        return min(_LONGEST_SPIKE_S, float(args["mean_ms"]) / 1000 * _TRANSFER_DELAYS)
    return 0.0


async def apply(world: FaultyWorld, fault: Fault, *, is_end: bool) -> None:
    """Apply the beginning or the end of a fault to a world."""
    verb = VERBS[fault.verb]
    act = verb.end if is_end else verb.begin
    if act is not None:
        await act(world, fault.args)


def _target_hosts(world: FaultyWorld, args: Args) -> list[str]:
    """Return the hosts that a fault names by node, zone or data center; all hosts if it names
    none."""
    if "node" in args:
        return [name for name in str(args["node"]).split(",") if name in world.hosts.names()]
    if "zone" in args:
        return world.hosts.in_zone(str(args["zone"]))
    if "datacenter" in args:
        return world.hosts.in_datacenter(str(args["datacenter"]))
    return world.hosts.names()


def _sides(world: FaultyWorld, args: Args) -> tuple[list[str], list[str]]:
    """Return the hosts on both sides of a link fault: its targets, and the hosts in argument `from`
    or all others.

    With `from`, a third group of hosts can reach both sides, so reachability is not transitive.
    """
    some = _target_hosts(world, args)
    if "from" in args:
        return some, _target_hosts(world, {"node": args["from"]})
    others = [name for name in world.hosts.names() if name not in some]
    return some, others or some
