"""Backends of the engine: factories of reference tables or compiled tables.

A backend creates tables, and optionally a decider for whole frames.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.reference import Verdict
from ringfence.limiter.table import Table

__all__ = ["Frames", "ReferenceTables", "SlowGroup", "Tables"]


class Frames(Protocol):
    """Interface for fast decisions on frames whose checks carry no limits of their own."""

    def set_tables(self, tables: Sequence[tuple[bytes, Table, bool]]) -> None:
        """Set the tables to use: key prefix, table, and whether its denials deny a whole group."""

    def decide(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        now: int,
        instants: list[int] | None = None,
    ) -> Outcomes | None:
        """Decide a frame as `Engine.decide` does; return None, without any effect, when that is not
        possible.

        `instants` replace `now`, one per check, as in `Engine.decide_each`.
        """


SlowGroup: TypeAlias = Callable[[Sequence[bytes], Sequence[int], int], list[Verdict]]
"""Function that decides one group from its keys, its costs and the time."""


class Tables(Protocol):
    """Interface of a factory that creates the tables of an engine."""

    def table(
        self, limit: Limit, *, max_keys: int, first_slot_id: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        """Create an empty table; with `lists_keys` the table must be able to list its keys."""

    def frames(self, slow_group: SlowGroup) -> Frames | None:
        """Create the fast decider of whole frames; None when the engine itself is as fast."""


class ReferenceTables:
    """Factory of tables in Python, which can always list their keys."""

    def table(
        self, limit: Limit, *, max_keys: int, first_slot_id: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        """Create an empty table that is implemented in Python."""
        return Table(limit, max_keys=max_keys, first_slot_id=first_slot_id, is_shared=is_shared)

    def frames(self, slow_group: SlowGroup) -> None:
        """Return None, because the engine itself is as fast for tables in Python."""
