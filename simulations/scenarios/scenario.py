"""Scenarios, faults and loads as values, which can be generated, reduced, printed and replayed.

Times are seconds of virtual time since the start of the load, when the cluster is ready.
"""

from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct, field

__all__ = [
    "CHARGED",
    "RESERVED",
    "Args",
    "Fault",
    "Holds",
    "Level",
    "Load",
    "Network",
    "Scenario",
]

Level: TypeAlias = Literal["core", "node"]
"""Runtime of a scenario. `core`: nodes on the deterministic scheduler. `node`: nodes and clients
as trio tasks."""

CHARGED = (1, 2, 5, 20)
"""Costs of charges, drawn uniformly."""

RESERVED = ((1, 0), (3, 1), (2, 2), (1, 2), (2, 6))
"""Estimated and real costs of reservations, drawn uniformly."""

_AFTER_CALM_LOAD_S = 5.0
"""Seconds between the calm load and the reading of all counters. Data centers may send each other
their last counts a second late."""

Args: TypeAlias = dict[str, str | float | int]


class Fault(Struct, frozen=True):
    """Fault that begins at `at` and ends at `until`."""

    at: float
    verb: str
    """A verb of `simulations.scenarios.faults.injection`."""
    until: float | None = None
    """End of the fault; None if it is instantaneous or never ends."""
    args: Args = field(default_factory=dict)

    def __str__(self) -> str:
        until = "" if self.until is None else f"-{self.until:g}"
        args = "".join(f" {name}={value}" for name, value in self.args.items())
        return f"{self.at:g}{until} s: {self.verb}{args}"


class Load(Struct, frozen=True):
    """Checks that clients send, with their rate and keys."""

    shape: str = "poisson"
    """A shape of `simulations.scenarios.loads`."""
    per_second: float = 100.0
    """Checks per second over all clients, on average."""
    keys: int = 100
    rule: str = "client"
    """Descriptor key of the rule."""
    cost: int = 1
    """Cost of each check, unless `costs` is given."""
    costs: tuple[int, ...] = ()
    """Costs of the checks, drawn uniformly."""
    also: str = ""
    """Keys of further descriptors of each check, separated by commas; the limiter charges all or
    none."""
    limit: str = ""
    """Text of a limit that the requests contain. `rule` is then the name of this limit, and no rule
    of the file."""
    also_limits: tuple[str, ...] = ()
    """Texts of limits that the requests contain for the first descriptors of `also`. These are then
    names of limits, as `rule` is."""
    overrides: bool = False
    """Whether `limit` overrides the rules for a descriptor; otherwise it is an ad-hoc limit."""
    batch: int = 1
    """Checks that a client sends in one call, each of them with its own key."""
    probes: float = 0.0
    """Share of denied checks that are repeated just before and just after their retry time."""
    peeks: float = 0.0
    """Share of requests that are peeks, which spend nothing."""
    refunds: float = 0.0
    """Share of admitted checks that are refunded."""
    refund_after_s: float = 0.0
    """Longest time from an admitted check to its refund; drawn uniformly."""
    aged_refunds: bool = False
    """Whether the refunds state the time since their check, as those of reservations do."""
    charges: float = 0.0
    """Share of requests that are charges, which count even beyond the limit; costs come from
    `CHARGED`."""
    reservations: float = 0.0
    """Share of requests that are reservations; their estimates and real costs come from
    `RESERVED`."""
    settle_after_s: float = 0.0
    """Longest time from the decision on a reservation to its end; drawn uniformly."""
    cost_after: bool = False
    """Whether a middleware with `cost_after` makes the reservations; not for `limit`."""
    args: Args = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the descriptor keys of the checks, in order."""
        return [self.rule, *(self.also.split(",") if self.also else [])]

    @property
    def limits(self) -> dict[str, str]:
        """Return the texts of the limits that the requests contain, by name."""
        texts = zip(self.names, (self.limit, *self.also_limits), strict=False)
        return {name: text for name, text in texts if text}


class Holds(Struct, frozen=True):
    """Callers that wait for a slot of a concurrency limit and hold it for some time."""

    per_second: float = 4.0
    """Callers per second over all clients, on average."""
    keys: int = 2
    rule: str = "job"
    longest_s: float = 1.5
    """Longest time that a caller holds its slot; the average is half of it."""
    max_wait: float = 8.0


class Network(Struct, frozen=True):
    """Delay and base error rates of the network, without faults."""

    latency: str = "lan"
    """A preset of `simulations.scenarios.latency`."""
    loss: float = 0.0
    """Share of all datagrams that are lost."""
    repeats: float = 0.0
    """Share of all datagrams that are delivered twice."""
    resets: float = 0.0
    """Connections in the whole cluster that break per second; messages in flight are lost."""


class Scenario(Struct, frozen=True):
    """Complete description of a run: the cluster, its load and its faults."""

    name: str
    about: str = ""
    """Purpose of the scenario, in one sentence."""
    level: Level = "node"
    nodes: int = 3
    """Number of nodes in all data centers together."""
    datacenters: int = 1
    zones: int = 1
    """Zones per data center."""
    seconds: float = 30.0
    """Duration of the load."""
    calm: float = 20.0
    """Duration without faults and load after that."""
    calm_load: float = 0.0
    """Duration of the same loads without faults after that, before the final checks."""
    rules: str = ""
    """Text of a rule file."""
    loads: tuple[Load, ...] = (Load(),)
    holds: tuple[Holds, ...] = ()
    network: Network = Network()
    processes: int = 1
    """Members that run on each host. They are in one zone, and the faults of a host affect all of
    them."""
    bounded_refunds: bool = False
    """Whether the tokens of the clients lack the scope `refund`, so that they refund only what they
    were charged."""
    least_parts: int = 1
    """Minimum number of parts in which a shard with counters is transferred."""
    faults: tuple[Fault, ...] = ()
    is_blind: bool = False
    """Whether the invariants ignore the faults; such a run must fail, which tests the
    invariants."""

    @property
    def calm_load_from(self) -> float:
        """Return when the calm load begins, in seconds; infinity if there is none."""
        return self.seconds + self.calm if self.calm_load else inf

    @property
    def read_at(self) -> float:
        """Return when the final reading of all counters begins, in seconds."""
        after = _AFTER_CALM_LOAD_S if self.calm_load else 0.0
        return self.seconds + self.calm + self.calm_load + after
