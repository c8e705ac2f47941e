"""What the live page shows: every member's own figures, gathered by the node that is looked at.

Gathered at most once a second, however many look, and never waited for long: a member that does
not answer is shown without figures.
"""

from collections import Counter

import trio

from node.http.views import Json, members_view, throttled_view
from node.node import Node

__all__ = ["Overview"]

_FRESH = 0.9
"""Seconds for which what was gathered is shown again."""
_PATIENCE = 0.5
_MOST_ASKED = 64
"""Members whose figures are fetched; of a larger cluster the first by name."""
_GONE = ("dead", "left")
_SHOWN = (
    *("checks", "allowed", "over_soft", "denied", "uncharged", "undecided", "forwarded"),
    *("stood_in", "keys", "held_shards", "connections"),
)
_MOST_ROWS = 12


class Overview:
    """The state of the cluster, for people, as one node gathers it."""

    def __init__(self, node: Node, period: float) -> None:
        self._node = node
        self._period = period
        self._line = trio.Lock()
        self._at = -1.0
        self._found: Json = {}

    async def get(self) -> Json:
        """Gather, unless that was just done."""
        async with self._line:
            if trio.current_time() - self._at > _FRESH or not self._found:
                self._found = await self._gather()
                self._at = trio.current_time()
            return self._found

    async def _gather(self) -> Json:
        node = self._node
        figures: dict[str, dict[str, int]] = {}

        async def ask(name: str) -> None:
            counters = await node.counters_of(name)
            if counters is not None:
                figures[name] = {shown: counters.get(shown, 0) for shown in _SHOWN}

        rows = node.members(1).members
        asked = [row.name for row in rows if row.state not in _GONE and row.name != node.name]
        with trio.move_on_after(_PATIENCE):
            async with trio.open_nursery() as nursery:
                for name in [node.name, *asked[: _MOST_ASKED - 1]]:
                    nursery.start_soon(ask, name)
        return members_view(node) | {
            "at": trio.current_time(),
            "state": node.state,
            "figures": figures,
            "rules": _most_throttled(node),
            "throttled": throttled_view(node, _MOST_ROWS, self._period),
        }


def _most_throttled(node: Node) -> list[Json]:
    """The rules that this node denied most since it began, with all that it decided by them."""
    by_rule: dict[str, Counter[str]] = {}
    for (rule, result, _), count in node.measure().decisions().items():
        by_rule.setdefault(rule, Counter())[result] += count
    ranked = sorted(by_rule.items(), key=lambda row: (-row[1]["denied"], -row[1].total(), row[0]))
    return [{"rule": rule, **results} for rule, results in ranked[:_MOST_ROWS]]
