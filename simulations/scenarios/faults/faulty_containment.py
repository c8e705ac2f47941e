"""Internal errors that a fault injects into a node, and the report of all other internal errors.

An injected error is raised where the node contains errors: in the handling of a request, datagram
or timer, or in a task. The node must keep running. Any other internal error is a bug and fails the
run.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

from node.context.containment import Containment

__all__ = ["FaultyContainment", "InjectedError"]

logger = logging.getLogger("ringfence.node")

_Args = TypeVarTuple("_Args")


class InjectedError(Exception):
    """Internal error that a fault has injected into a node."""


class FaultyContainment(Containment):
    """Error containment of a node in which a fault makes some calls and tasks fail before they
    begin."""

    def __init__(
        self,
        seconds: Callable[[], float],
        on_bug: Callable[[Exception], None],
        errors_to_raise: int = 0,
    ) -> None:
        """`on_bug` receives every internal error that was not injected."""
        super().__init__(logger, seconds, self._sort_out)
        self.errors_to_raise = errors_to_raise
        """Number of the next calls and tasks that fail."""
        self._on_bug = on_bug

    def call(self, place: str, call: Callable[[*_Args], object], *args: *_Args) -> bool:
        """Call a function as `Containment.call` does, or let an injected error occur instead."""
        if self.errors_to_raise:
            self.errors_to_raise -= 1
            return super().call(place, _fail)
        return super().call(place, call, *args)

    async def run(
        self, place: str, task: Callable[[*_Args], Awaitable[object]], *args: *_Args
    ) -> bool:
        """Run a task as `Containment.run` does, or let an injected error occur instead."""
        if self.errors_to_raise:
            self.errors_to_raise -= 1
            return super().call(place, _fail)
        return await super().run(place, task, *args)

    def _sort_out(self, error: Exception) -> None:
        if not isinstance(error, InjectedError):
            self._on_bug(error)


def _fail() -> None:
    raise InjectedError("raised by a fault of the scenario")
