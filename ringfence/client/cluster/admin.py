"""Admin requests to single nodes: read counters and denied keys, or ask a node to leave."""

from collections.abc import Callable, Sequence

from ringfence import runtime
from ringfence.client.cluster.links import Links
from ringfence.peering.link.calls import (
    ask_to_leave,
    call,
    fetch_counters,
    fetch_peers,
    fetch_throttled,
)
from ringfence.wire import AskMembers, MemberRow, Members, Plain, Throttled

__all__ = ["ClusterAdmin"]


class ClusterAdmin:
    """Sender of admin requests to single nodes. A result is None when the node does not answer."""

    def __init__(self, links: Links, members: Callable[[], Sequence[MemberRow]]) -> None:
        self._links = links
        self._members = members

    async def stats(self, row: MemberRow) -> dict[str, int] | None:
        """Fetch the counters of one node."""
        return await fetch_counters(self._links.link_of(row))

    async def all_stats(self) -> list[tuple[MemberRow, dict[str, int] | None]]:
        """Fetch the counters of all nodes concurrently."""
        found: dict[str, dict[str, int] | None] = {}
        members = self._members()

        async def ask(row: MemberRow) -> None:
            found[row.name] = await self.stats(row)

        async with runtime.open_task_group() as tasks:
            for row in members:
                tasks.start_soon(ask, row)
        return [(row, found[row.name]) for row in members if row.name in found]

    async def peers(self, row: MemberRow) -> list[dict[str, Plain]] | None:
        """Fetch the information that one node has about all members."""
        return await fetch_peers(self._links.link_of(row))

    async def throttled(self, row: MemberRow, count: int) -> Throttled | None:
        """Fetch the keys that a node denied most often."""
        return await fetch_throttled(self._links.link_of(row), count)

    async def ask_to_leave(self, row: MemberRow) -> bool:
        """Ask a node to transfer its keys to other nodes, leave and stop; return whether it
        accepted.

        Raises `AccessDenied` when the client's token lacks the scope for this request.
        """
        return await ask_to_leave(self._links.link_of(row))

    async def members_seen_by(self, row: MemberRow) -> tuple[MemberRow, ...] | None:
        """Fetch the members of the cluster as one node sees them now."""
        reply = await call(self._links.link_of(row), AskMembers, Members)
        return None if reply is None else tuple(reply.members)
