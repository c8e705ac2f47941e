"""Factories of counter tables for the engine, in Python or in compiled code.

A factory creates tables, and optionally a fast decider for all checks of a message.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.reference import Verdict
from ringfence.limiter.table import Table

__all__ = ["Frames", "KeyBounds", "LoneDecider", "ReferenceTables", "SlowGroup", "Tables"]


SlowGroup: TypeAlias = Callable[[Sequence[bytes], Sequence[int], int], list[Verdict]]
"""Function that decides one group from its keys, its costs and the time."""

LoneDecider: TypeAlias = Callable[
    [bytes, int, int, int], tuple[int, int, int, int, int, int, int, int]
]
"""Function that decides a single check from its key, its cost and the time. It returns the fields
of the check's `Outcome`, then its last argument, which is the source of the decision."""


class Frames(Protocol):
    """Interface of a fast decider for all checks of a message, when the request carries no
    limits."""

    def set_tables(self, tables: Sequence[tuple[bytes, Table, bool]]) -> None:
        """Set the counter tables: each with its key prefix, and whether its denials deny a whole
        group."""

    def decide(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        now: int,
        instants: list[int] | None = None,
    ) -> Outcomes | None:
        """Decide all checks of a message as `Engine.decide` does; return None when only the
        engine can decide them.

        None means that no check was decided or charged.

        `instants` replace `now`, one per check, as in `Engine.decide_each`.
        """

    @property
    def decide_lone(self) -> LoneDecider:
        """Function that decides a single check as `Engine.decide_lone` does."""

    def restore(
        self,
        keys: Sequence[bytes],
        states: Sequence[Sequence[int]],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
        slow: Callable[[int], None],
    ) -> None:
        """Replace counters as `Engine.restore` does; call `slow` with the place of each row that
        only the engine can restore."""

    def forget(self, keys: Sequence[bytes]) -> list[bytes]:
        """Remove the counters of keys; return the keys that only the engine can remove."""

    def pack(
        self, keys: Sequence[bytes], now: int, with_unused: bool
    ) -> tuple[bytes, int, list[Limit]] | None:
        """Return packed rows with the states of keys, their number and limits, as `Engine.pack`
        does; None when only the engine can pack them."""


class KeyBounds(Protocol):
    """Bounds of the keys of an engine."""

    room: int
    """New keys that certainly fit before they must be counted again."""

    def evict_to_bounds(self, new_keys: int, now: int) -> None:
        """Evict keys when `new_keys` more may exceed the bounds."""


class Tables(Protocol):
    """Interface of a factory that creates the counter tables of an engine."""

    def table(
        self, limit: Limit, *, max_keys: int, first_slot_id: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        """Create an empty table of counters; with `lists_keys` the table must be able to list
        its keys."""

    def frames(self, slow_group: SlowGroup, bounds: KeyBounds) -> Frames | None:
        """Create the fast decider for whole messages of checks; None when the engine itself is
        as fast."""


class ReferenceTables:
    """Factory of counter tables in Python, which can always list their keys."""

    def table(
        self, limit: Limit, *, max_keys: int, first_slot_id: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        """Create an empty table of counters that is implemented in Python."""
        return Table(limit, max_keys=max_keys, first_slot_id=first_slot_id, is_shared=is_shared)

    def frames(self, slow_group: SlowGroup, bounds: KeyBounds) -> None:
        """Return None instead of a fast decider, because the engine is as fast for tables in
        Python."""
