"""State of the cluster for the dashboard: counters and lists that one node requests from all
members.

Answers are cached for about a second for all viewers. A member that does not answer in time is
listed as missing.
"""

from msgspec import Struct, field

from node.admin.lock import Lock
from node.admin.views import Json, members_view, throttled_view
from node.metrics.denied_keys import joined
from node.node import Node
from ringfence import runtime
from ringfence.wire import MAX_THROTTLED, Throttled

__all__ = ["ClusterSummary", "MemberAnswers"]

_FRESH = 0.9
"""Seconds for which the answers of the members are kept."""
_ANSWER_TIMEOUT = 0.5
_MAX_ASKED = 64
"""Maximum number of members whose counters are requested. In a larger cluster, the first by
name."""
_GONE = ("dead", "left")
_SHOWN = (
    *("checks", "allowed", "over_soft", "denied", "uncharged", "undecided", "forwarded"),
    *("decided_as_standby", "keys", "held_shards", "connections", "rules_hash", "rules_refused"),
    *("reported_allowed", "reported_denied", "reported_undecided"),
)
_MAX_ROWS = 12


class MemberAnswers(Struct):
    """Counters and lists of the members that answered."""

    at: float
    """Time of the answers, in seconds of the event loop."""
    figures: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counters by member."""
    lists: dict[str, Throttled] = field(default_factory=dict)
    """Keys denied most, by member."""
    missing: list[str] = field(default_factory=list)
    """Members that did not answer in time."""
    not_counted: list[str] = field(default_factory=list)
    """Members whose denials are in no list: they are missing, dead, or were not asked."""


class ClusterSummary:
    """State of the whole cluster, collected by one node for its dashboard."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = Lock()
        self._answers: MemberAnswers | None = None

    async def get(self) -> Json:
        """Return all values that the dashboard shows."""
        node, found = self._node, await self.answers()
        rules = joined(found.lists).rules[:_MAX_ROWS]
        return members_view(node) | {
            "at": found.at,
            "state": node.state,
            "figures": found.figures,
            "missing": found.missing,
            "rules_refusal": node.rules.refusal,
            "rules": [
                {"rule": rule, "allowed": results[0], "denied": results[1], "watched": results[2]}
                for rule, results in rules
            ],
            "throttled": throttled_view(node, found.lists, found.not_counted, _MAX_ROWS),
        }

    async def answers(self) -> MemberAnswers:
        """Return the cached answers of all members, or ask the members again when they are too
        old."""
        async with self._lock:
            found = self._answers
            if found is None or runtime.current_time() - found.at > _FRESH:
                found = self._answers = await self._ask_members()
            return found

    async def _ask_members(self) -> MemberAnswers:
        node, found = self._node, MemberAnswers(0.0)

        async def ask_figures(name: str) -> None:
            counters = await node.queries.counters_of(name)
            if counters is not None:
                found.figures[name] = {shown: counters.get(shown, 0) for shown in _SHOWN}

        async def ask_list(name: str) -> None:
            listed = await node.queries.throttled_of(name, MAX_THROTTLED)
            if listed is not None:
                found.lists[name] = listed

        rows = node.queries.members(1).members
        others = [row.name for row in rows if row.state not in _GONE and row.name != node.name]
        asked = [node.name, *others[: _MAX_ASKED - 1]]
        with runtime.move_on_after(_ANSWER_TIMEOUT):
            async with runtime.open_task_group() as tasks:
                for name in asked:
                    tasks.start_soon(ask_figures, name)
                    tasks.start_soon(ask_list, name)
        found.missing = [name for name in asked if name not in found.lists]
        present = [row.name for row in rows if row.state != "left"]
        found.not_counted = [name for name in present if name not in found.lists]
        found.at = runtime.current_time()
        return found
