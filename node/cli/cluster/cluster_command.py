"""Subcommands that query a running cluster: what they ask of it, and how they print the answer."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click
import trio

from node.cli.common import Output
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.connect import open_cluster
from ringfence.client.url import ClusterUrl

__all__ = ["ClusterCommand", "Query"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Query(Generic[_Answer]):
    """Query of a subcommand, independent of how the cluster is opened and where output goes."""

    url: ClusterUrl
    ask: Callable[[Cluster], Awaitable[_Answer]]
    show: Callable[[_Answer, Output], None]
    """Prints an answer. Raises `SystemExit` for a denied or failed request."""
    ask_owners: bool = True
    """Whether the client asks the owner of each key, as in `ClusterSettings`."""


class ClusterCommand(click.Command):
    """Subcommand whose callback returns a `Query`, or None if it has queried no cluster."""

    def query_of(self, words: Sequence[str]) -> Query[Any]:
        """Return the query of a command line, for a cluster that the caller has opened."""
        with self.make_context(self.name, [*words]) as context:
            query = super().invoke(context)
        assert isinstance(query, Query)
        return query

    def invoke(self, ctx: click.Context) -> None:
        """Open the cluster, query it, and print the answer."""
        query = super().invoke(ctx)
        if query is not None:
            query.show(trio.run(_ask, query), Output())


async def _ask(query: Query[_Answer]) -> _Answer:
    async with open_cluster(
        query.url, raise_on_outage=True, ask_owners=query.ask_owners
    ) as cluster:
        return await query.ask(cluster)
