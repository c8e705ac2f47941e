"""What the live page shows: the members' figures and lists, gathered by the node that is asked.

Gathered at most once a second, however many look, and never waited for long: a member that does
not answer is shown without figures.
"""

from dataclasses import dataclass, field

import trio

from node.admin.views import Json, members_view, throttled_view
from node.metrics.denied_keys import joined
from node.node import Node
from ringfence.wire import MAX_THROTTLED, Throttled

__all__ = ["Gathered", "Summary"]

_FRESH = 0.9
"""Seconds for which what was gathered is shown again."""
_PATIENCE = 0.5
_MOST_ASKED = 64
"""Members whose figures are fetched; of a larger cluster the first by name."""
_GONE = ("dead", "left")
_SHOWN = (
    *("checks", "allowed", "over_soft", "denied", "uncharged", "undecided", "forwarded"),
    *("stood_in", "keys", "held_shards", "connections", "rules_hash", "rules_refused"),
    *("reported_allowed", "reported_denied", "reported_undecided"),
)
_MOST_ROWS = 12


@dataclass(slots=True)
class Gathered:
    """What the members answered."""

    at: float
    """When, in seconds of the event loop."""
    figures: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counters by member."""
    lists: dict[str, Throttled] = field(default_factory=dict)
    """Keys denied most, by member."""
    missing: list[str] = field(default_factory=list)
    """Members that should answer and did not."""


class Summary:
    """The state of the cluster, for people, as one node gathers it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._line = trio.Lock()
        self._gathered: Gathered | None = None

    async def get(self) -> Json:
        """Describe all that the page shows."""
        node, found = self._node, await self.gathered()
        rules = joined(found.lists).rules[:_MOST_ROWS]
        return members_view(node) | {
            "at": found.at,
            "state": node.state,
            "figures": found.figures,
            "missing": found.missing,
            "rules_refusal": node.rules_refusal,
            "rules": [
                {"rule": rule, "allowed": results[0], "denied": results[1], "watched": results[2]}
                for rule, results in rules
            ],
            "throttled": throttled_view(node, found.lists, found.missing, _MOST_ROWS),
        }

    async def gathered(self) -> Gathered:
        """Gather, unless that was just done."""
        async with self._line:
            found = self._gathered
            if found is None or trio.current_time() - found.at > _FRESH:
                found = self._gathered = await self._gather()
            return found

    async def _gather(self) -> Gathered:
        node, found = self._node, Gathered(0.0)

        async def ask_figures(name: str) -> None:
            counters = await node.counters_of(name)
            if counters is not None:
                found.figures[name] = {shown: counters.get(shown, 0) for shown in _SHOWN}

        async def ask_list(name: str) -> None:
            listed = await node.throttled_of(name, MAX_THROTTLED)
            if listed is not None:
                found.lists[name] = listed

        rows = node.members(1).members
        others = [row.name for row in rows if row.state not in _GONE and row.name != node.name]
        asked = [node.name, *others[: _MOST_ASKED - 1]]
        with trio.move_on_after(_PATIENCE):
            async with trio.open_nursery() as nursery:
                for name in asked:
                    nursery.start_soon(ask_figures, name)
                    nursery.start_soon(ask_list, name)
        found.missing = [name for name in asked if name not in found.lists]
        found.at = trio.current_time()
        return found
