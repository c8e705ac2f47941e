"""Cost of the hash ring: finding owners, and changing members."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from time import perf_counter_ns
from typing import TypeVar

from benchmarks.reporting.figure import Figure, measure
from hashring import SHARDS, Member, NodeId, Ring, moved, shard_of

__all__ = ["run"]

SIZES = (3, 30, 300)
ZONES = 3
KEYS = 20_000

Question = TypeVar("Question")


def run(rounds: int) -> Iterator[Figure]:
    """Measure look-ups on a ring of 30 members, then building and comparing rings of each size."""
    ring = Ring.of(_members(30))
    keys = [b"log\x00client\x00192.0.2.%d" % number for number in range(KEYS)]
    yield measure("ring.lookup_ns", "ns", lambda: _ns_each(ring.owner, range(SHARDS)), rounds)
    yield measure("ring.shard_of_ns", "ns", lambda: _ns_each(shard_of, keys), rounds)
    for size in SIZES:
        yield from _change_of_members(size, rounds)


def _change_of_members(size: int, rounds: int) -> Iterator[Figure]:
    members = _members(size)
    newcomer = Member(NodeId("newcomer"), zone="zone-0")
    ring, grown = Ring.of(members), Ring.of([*members, newcomer])

    def join() -> None:
        moved(ring, Ring.of([*ring.members, newcomer], like=ring))

    actions: dict[str, Callable[[], object]] = {
        "build": lambda: Ring.of(members),
        "join": join,
        "moved": lambda: moved(ring, grown),
    }
    for verb, action in actions.items():
        yield measure(f"ring.{verb}_ms_{size}", "ms", partial(_ms, action), rounds)


def _members(count: int) -> list[Member]:
    return [
        Member(NodeId(f"node-{number}"), zone=f"zone-{number % ZONES}") for number in range(count)
    ]


def _ns_each(ask: Callable[[Question], object], questions: Collection[Question]) -> float:
    """Call a function in a plain loop; return nanoseconds per call, a few of which belong to the
    loop."""
    start = perf_counter_ns()
    for question in questions:
        ask(question)
    return (perf_counter_ns() - start) / len(questions)


def _ms(action: Callable[[], object]) -> float:
    start = perf_counter_ns()
    action()
    return (perf_counter_ns() - start) / 1e6
