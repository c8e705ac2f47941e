"""Small histories of members that exchange one shard, for tests that no unit is lost or doubled.

A history is a list of steps. A step that is not possible at its time has no effect. At the end, one
member fetches the shard from all others, and its counter must have every admitted unit once.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from hashring import shard_of
from ringfence.wire import Pulled
from tests.node.shards.ownership.ownership_host import KEY, Host

SHARD = shard_of(KEY)
NAMES = "abc"
KINDS = ("spend", "copy", "cover", "fetch", "fetch_unacknowledged", "ask", "arrive", "acknowledge")
_ROUNDS = 8
_STEP_NS = 10_000_000
_LATER_NS = 3_000_000_000
"""Time after which a member sends a transfer to another receiver than before."""


class Step(NamedTuple):
    """One step: its kind, the member that does it, and the other member, as indexes of names."""

    kind: str
    one: int
    other: int

    def __repr__(self) -> str:
        return f"{self.kind}({NAMES[self.one]}, {NAMES[self.other]})"


STEPS = [
    Step(kind, one, other)
    for kind, one, other in product(KINDS, range(len(NAMES)), range(len(NAMES)))
    if (kind == "spend") == (one == other)
]


@dataclass
class History:
    """Members of a cluster after some steps. The first member has started the shard."""

    hosts: list[Host] = field(default_factory=lambda: [Host(name) for name in NAMES])
    admitted: int = 0
    under_way: dict[tuple[int, int], Pulled] = field(default_factory=dict)
    """Answers that have not arrived yet, by receiver and sender."""
    accepted: dict[tuple[int, int], int] = field(default_factory=dict)
    """Transfers whose acknowledgement has not arrived, by sender and receiver."""

    def __post_init__(self) -> None:
        self.hosts[0].start()

    def run(self, steps: list[Step]) -> int:
        """Perform the steps and gather the shard at the first member; return its units."""
        for step in steps:
            self.perform(step)
        return self.gather()

    def perform(self, step: Step) -> None:
        """Perform one step, if it is possible."""
        for host in self.hosts:
            host.now += _STEP_NS
        one, other = self.hosts[step.one], self.hosts[step.other]
        match step.kind:
            case "spend" if one.holds:
                self.admitted += 1
                one.spend(1, check_id=(1, self.admitted, 0))
            case "copy" if one.holds and one.may_copy_to(other):
                one.copy_to(other)
            case "cover" if not one.holds:
                one.cover(other.name)
            case "fetch":
                self._arrive(step.one, step.other, one.ask(other), is_acknowledged=True)
            case "fetch_unacknowledged":
                self._arrive(step.one, step.other, one.ask(other), is_acknowledged=False)
            case "ask":
                self.under_way[step.one, step.other] = one.ask(other)
            case "arrive" if (step.one, step.other) in self.under_way:
                reply = self.under_way.pop((step.one, step.other))
                self._arrive(step.one, step.other, reply, is_acknowledged=True)
            case "acknowledge" if (step.one, step.other) in self.accepted:
                number = self.accepted.pop((step.one, step.other))
                one.ownership.acknowledge(other.name, [SHARD], number, one.now)

    def _arrive(self, one: int, other: int, reply: Pulled, *, is_acknowledged: bool) -> None:
        receiver, sender = self.hosts[one], self.hosts[other]
        if receiver.receive(sender.name, reply):
            self.accepted[other, one] = reply.groups[0].transfer_id
            if is_acknowledged:
                self.perform(Step("acknowledge", other, one))

    def gather(self) -> int:
        """Fetch the shard to the first member until no other one has counters of it."""
        last = self.hosts[0]
        for host in self.hosts:
            host.now += _LATER_NS
        for _ in range(_ROUNDS):
            for number in (1, 2):
                self._arrive(0, number, last.ask(self.hosts[number]), is_acknowledged=True)
            if not last.holds:
                last.cover(self.hosts[1].name)
        return last.used


def steps_of(text: str) -> list[Step]:
    """Return the steps that a text lists, such as `spend a, copy a b`."""
    steps = []
    for words in [each.split() for each in text.split(",")]:
        one, other = NAMES.index(words[1]), NAMES.index(words[-1])
        steps.append(Step(words[0], one, other))
    return steps
