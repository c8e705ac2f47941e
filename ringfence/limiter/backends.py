"""What an engine counts in: tables of the reference, or compiled ones.

The engine asks a `Tables` for its tables, and for something that decides whole frames if there is
any.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.reference import Verdict
from ringfence.limiter.table import Table

__all__ = ["Frames", "ReferenceTables", "SlowGroup", "Tables"]


class Frames(Protocol):
    """Decides frames whose checks carry no limits, faster than one table at a time."""

    def set_tables(self, tables: Sequence[tuple[bytes, Table, bool]]) -> None:
        """Know exactly these: prefix, table, and whether its denials veto."""

    def decide(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        now: int,
        instants: list[int] | None = None,
    ) -> Outcomes | None:
        """Decide as `Engine.decide` does; None, and nothing done, when it cannot.

        `instants` replace `now`, one per check, as in `Engine.decide_each`.
        """


SlowGroup: TypeAlias = Callable[[Sequence[bytes], Sequence[int], int], list[Verdict]]
"""Decides one group, given as keys, costs and now."""


class Tables(Protocol):
    """Makes the tables of an engine: those of the reference, or compiled ones."""

    def table(
        self, limit: Limit, *, max_keys: int, first_lease: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        """Make an empty table; with `lists_keys` it must be able to list its keys."""

    def frames(self, slow_group: SlowGroup) -> Frames | None:
        """Make what decides whole frames; None when nothing does so faster than the engine."""


class ReferenceTables:
    """Tables of the reference: all of them can list their keys."""

    def table(
        self, limit: Limit, *, max_keys: int, first_lease: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        """See `Tables`."""
        return Table(limit, max_keys=max_keys, first_lease=first_lease, is_shared=is_shared)

    def frames(self, slow_group: SlowGroup) -> None:
        """The engine itself decides as fast."""
