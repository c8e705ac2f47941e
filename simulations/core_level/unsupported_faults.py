"""Faults that the core level does not have: its links carry messages, no datagrams or streams."""

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["CORE_VERBS", "NodeLevelFaults"]

CORE_VERBS = (
    *(
        "crash",
        "leave",
        "pause",
        "stall",
        "cut",
        "loss",
        "repeats",
        "slow",
        "clock_step",
        "clock_drift",
        "errors",
    ),
)
"""The verbs of `simulations.scenarios.faults` that it has."""


class NodeLevelFaults:
    """Refuses what only the node level can do, in words."""

    def set_bursts(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """See `FaultyWorld`."""
        _refuse("bursts")

    def set_corrupt(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """See `FaultyWorld`."""
        _refuse("corrupt")

    def set_replay(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """See `FaultyWorld`."""
        _refuse("replay")

    def set_spikes(self, mean: float, some: Sequence[str], others: Sequence[str]) -> None:
        """See `FaultyWorld`."""
        _refuse("spikes")

    def set_clog(self, is_on: bool, some: Sequence[str], others: Sequence[str]) -> None:
        """See `FaultyWorld`."""
        _refuse("clog")

    def reset(self, some: Sequence[str], others: Sequence[str]) -> None:
        """See `FaultyWorld`."""
        _refuse("reset")

    def set_busy(self, name: str, seconds: float) -> None:
        """See `FaultyWorld`."""
        _refuse("busy")

    def move(self, name: str) -> None:
        """See `FaultyWorld`."""
        _refuse("crash with moves")

    def lose_seeds(self, name: str, is_lost: bool) -> None:
        """See `FaultyWorld`."""
        if is_lost:
            _refuse("crash with seedless")

    def lower_limits(self, name: str, part: float) -> None:
        """See `FaultyWorld`."""
        _refuse("limits")


def _refuse(what: str) -> NoReturn:
    raise ValueError(f"fault {what!r} exists at node level only; there are {', '.join(CORE_VERBS)}")
