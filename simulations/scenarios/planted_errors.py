"""Internal errors that a fault plants in a node, and what becomes of those that nobody planted.

A planted error is raised where the node contains errors: in the handling of a request, datagram or
timer, or in a task. The node must go on. Any other internal error is a bug, and breaks the run.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

from node.containment import Containment

__all__ = ["FaultyContainment", "PlantedError"]

logger = logging.getLogger("ringfence.node")

_Args = TypeVarTuple("_Args")


class PlantedError(Exception):
    """An internal error that a fault has planted."""


class FaultyContainment(Containment):
    """The containment of a node, some of whose calls and tasks fail before they begin."""

    def __init__(
        self, seconds: Callable[[], float], on_bug: Callable[[Exception], None], planted: int = 0
    ) -> None:
        """`on_bug` receives every internal error that was not planted."""
        super().__init__(logger, seconds, self._sort_out)
        self.planted = planted
        """How many of the next calls and tasks fail."""
        self._on_bug = on_bug

    def call(self, place: str, call: Callable[[*_Args], object], *args: *_Args) -> bool:
        """See `Containment`."""
        if self.planted:
            self.planted -= 1
            return super().call(place, _fail)
        return super().call(place, call, *args)

    async def run(
        self, place: str, task: Callable[[*_Args], Awaitable[object]], *args: *_Args
    ) -> bool:
        """See `Containment`."""
        if self.planted:
            self.planted -= 1
            return super().call(place, _fail)
        return await super().run(place, task, *args)

    def _sort_out(self, error: Exception) -> None:
        if not isinstance(error, PlantedError):
            self._on_bug(error)


def _fail() -> None:
    raise PlantedError("planted by a fault")
