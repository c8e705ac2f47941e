"""What is simulated: a scenario, its faults, its load. Plain values, so that they can be drawn,
shrunk, printed and replayed.

Times are seconds of virtual time since the cluster was ready, which is when the load begins.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["CHARGED", "Args", "Fault", "Holds", "Level", "Load", "Network", "Scenario"]

Level: TypeAlias = Literal["core", "node"]
"""`core`: membership, counts and limiter cores on one event heap. `node`: real nodes and clients
as trio tasks."""

CHARGED = (1, 2, 5, 20)
"""Costs of charges, drawn evenly."""

Args: TypeAlias = dict[str, str | float | int]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, from `at` until `until`."""

    at: float
    verb: str
    """A verb of `simulations.scenarios.faults`."""
    until: float | None = None
    """When it is over; None when it is over at once, or never."""
    args: Args = field(default_factory=dict)

    def __str__(self) -> str:
        until = "" if self.until is None else f"-{self.until:g}"
        args = "".join(f" {name}={value}" for name, value in self.args.items())
        return f"{self.at:g}{until} s: {self.verb}{args}"


@dataclass(frozen=True, slots=True)
class Load:
    """What clients ask for."""

    shape: str = "poisson"
    """A shape of `simulations.scenarios.loads`."""
    per_second: float = 100.0
    """Checks per second over all clients, on average."""
    keys: int = 100
    rule: str = "client"
    """Key of the descriptor, which names the rule."""
    cost: int = 1
    also: str = ""
    """Key of a second descriptor that each check meets, too: both are charged, or neither."""
    refunds: float = 0.0
    """Part of what is admitted that is given back at once."""
    charges: float = 0.0
    """Part of what is asked that is charged whatever is left, at `CHARGED` costs."""
    args: Args = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holds:
    """Callers that hold a slot of a concurrency limit for a while, and wait for it."""

    per_second: float = 4.0
    """Callers per second over all clients, on average."""
    keys: int = 2
    rule: str = "job"
    longest_s: float = 1.5
    """Longest time for which one holds its slot; half of that on average."""
    max_wait: float = 8.0


@dataclass(frozen=True, slots=True)
class Network:
    """How far hosts are apart, when nothing is wrong."""

    latency: str = "lan"
    """A preset of `simulations.scenarios.latency`."""
    loss: float = 0.0
    """Part of all datagrams that is lost."""
    repeats: float = 0.0
    """Part of all datagrams that comes twice."""
    resets: float = 0.0
    """Connections that break per second, over all: both sides lose what was under way."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world, what is asked of it and what goes wrong."""

    name: str
    about: str
    """One sentence: what it shows."""
    level: Level = "node"
    nodes: int = 3
    """In all data centers together."""
    datacenters: int = 1
    zones: int = 1
    """Per data center."""
    seconds: float = 30.0
    """How long the load lasts."""
    calm: float = 20.0
    """How long everything is well afterwards, before the last checks."""
    rules: str = ""
    """A rule file's text."""
    loads: tuple[Load, ...] = (Load(),)
    holds: tuple[Holds, ...] = ()
    network: Network = Network()
    least_parts: int = 1
    """A shard with any counter is transferred in at least so many parts."""
    faults: tuple[Fault, ...] = ()
    is_blind: bool = False
    """Judge as if no fault had been: such a run must fail, or the judge is asleep."""
