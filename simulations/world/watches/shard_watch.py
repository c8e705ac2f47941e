"""Recorder of shard ownership during a run: the states of all shards at all nodes, and the events
that changed them.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from node.shards.ownership.ownership_table import TABLE, Event, State
from node.shards.ownership.shard_states import OnTransition
from simulations.reporting.outcome import OwnershipChange, Span

__all__ = ["ShardWatch"]

_ENDED = "node ended"
"""Text of the event that ends all states of a node."""


class _Transitions(Struct):
    """The same event at many shards of one node; `event` is None when the node ended."""

    at: float
    node: str
    event: Event | None
    shards: "array[int]"
    before: bytearray
    distinct: set[int] | None = None
    """The shards as a set, once single shards were added."""

    def add(self, shard: int, before: bytes) -> bool:
        """Add a shard; return False if it is here already, since its events have an order."""
        if self.distinct is None:
            self.distinct = set(self.shards)
        if shard in self.distinct:
            return False
        self.distinct.add(shard)
        self.shards.append(shard)
        self.before += before
        return True


class ShardWatch:
    """Recorder of the transitions of all shards in one run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the virtual time in seconds."""
        self._clock = clock
        self._record: list[_Transitions] = []

    def observer_of(self, node: str) -> OnTransition:
        """Return the function that records the transitions of one node."""
        record, clock = self._record, self._clock

        def observe(event: Event, shards: Sequence[int], before: bytes) -> None:
            if not shards:
                return
            at = clock()
            if len(shards) == 1 and record:
                last = record[-1]
                is_same = last.event is event and last.node == node and last.at == at
                if is_same and last.add(shards[0], before):
                    return
            record.append(_Transitions(at, node, event, array("H", shards), bytearray(before)))

        return observe

    def ended(self, node: str) -> None:
        """Record the end of a node: it holds no shard from now on."""
        self._record.append(_Transitions(self._clock(), node, None, array("H"), bytearray()))

    def reached(self) -> frozenset[str]:
        """Return the names of the pairs that occurred.

        A pair is a state and an event, such as `OWNED+SEND`, or two successive events of a shard at
        one node, such as `TRANSFER>SEND`.
        """
        met: set[tuple[int, Event]] = set()
        successive: set[tuple[Event, Event]] = set()
        last: dict[str, dict[int, Event]] = {}
        for each in self._record:
            event = each.event
            if event is None:
                last.pop(each.node, None)
                continue
            met.update([(state, event) for state in set(each.before)])
            before = last.setdefault(each.node, {})
            successive.update([(one, event) for one in set(map(before.get, each.shards)) if one])
            before.update(dict.fromkeys(each.shards, event))
        found = [f"{State(state).name}+{event.name}" for state, event in sorted(met)]
        found += [f"{one.name}>{other.name}" for one, other in sorted(successive)]
        return frozenset(found)

    def changes_of(self, shard: int, began: float) -> list[OwnershipChange]:
        """Return the changes of one shard at all nodes; times are relative to `began`."""
        return [*self._changes(shard, began)]

    def spans_of(self, shard: int, began: float, end: float) -> list[Span]:
        """Return the states of one shard at each node over time, without `ABSENT`."""
        spans: list[Span] = []
        now: dict[str, tuple[float, str]] = {}
        for change in self._changes(shard, began):
            since, state = now.pop(change.node, (change.at, ""))
            if state:
                spans.append(Span(since, change.at, change.node, state))
            if change.after not in ("", State.ABSENT.name):
                now[change.node] = change.at, change.after
        spans += [Span(since, end, node, state) for node, (since, state) in now.items()]
        return spans

    def _changes(self, shard: int, began: float) -> Iterator[OwnershipChange]:
        states: dict[str, str] = {}
        for each in self._record:
            if each.event is None:
                if states.pop(each.node, ""):
                    yield OwnershipChange(each.at - began, each.node, _ENDED, "", "")
            elif shard in each.shards:
                before = State(each.before[each.shards.index(shard)])
                after = TABLE[before, each.event].state
                states[each.node] = after.name
                yield OwnershipChange(
                    each.at - began, each.node, each.event.name, before.name, after.name
                )
