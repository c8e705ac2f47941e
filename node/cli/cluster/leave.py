"""`ringfence leave`: make a member hand over its shards, leave and stop, and wait for it."""

from functools import partial

import click
import trio
from msgspec import Struct

from node.cli.cluster.cluster_command import ClusterCommand, Query
from node.cli.cluster.members import GONE
from node.cli.common import NumberRange, Output, cluster_option, json_option, need_cluster
from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.url import ClusterUrl
from ringfence.errors import ConfigError, PeerUnavailable
from ringfence.wire import MemberRow

__all__ = ["leave"]

_LOOK_AGAIN = 0.1
_UNKNOWN = "unknown"


class _Outcome(Struct, frozen=True):
    """Result of the request that asks a member to leave."""

    name: str
    state: str
    """State in the view of the other members; `left` also when they no longer list it."""
    seconds: float


@click.command(cls=ClusterCommand)
@click.argument("name", required=False)
@cluster_option
@click.option(
    "--timeout",
    default=15.0,
    show_default=True,
    type=NumberRange(0, 600, min_open=True),
    help="Seconds to wait until the others have seen it leave.",
)
@json_option
def leave(name: str | None, cluster: str | None, timeout: float, json_: bool) -> Query[_Outcome]:
    """Make the member NAME hand over its shards, leave and stop; the token needs the scope admin.

    Without NAME it is the member at the given address, which then must be a single address.
    """
    url = need_cluster(cluster)
    return Query(url, partial(_leave, url, name, timeout), partial(_show, timeout, json_))


def _show(timeout: float, json_: bool, outcome: _Outcome, output: Output) -> None:
    has_left = outcome.state == "left"
    if json_:
        output.json(
            {
                "name": outcome.name,
                "left": has_left,
                "state": outcome.state,
                "seconds": round(outcome.seconds, 3),
            }
        )
    elif has_left:
        output.line(f"{outcome.name} has left, {outcome.seconds:.1f} s")
    elif outcome.state == "dead":
        output.error(
            f"ringfence: {outcome.name} ended before it had left; its standbys go on in its place"
        )
    else:
        output.error(
            f"ringfence: {outcome.name} was asked to leave, and {timeout:g} s later is still "
            f"{outcome.state}"
        )
    if not has_left:
        raise SystemExit(1)


async def _leave(url: ClusterUrl, name: str | None, within: float, cluster: Cluster) -> _Outcome:
    known = cluster.members
    row = _called(known, name) if name is not None else await _only_one_at(known, url)
    begun = runtime.current_time()
    if not await cluster.admin.ask_to_leave(row):
        raise PeerUnavailable(
            f"member {row.name!r} at {row.host}:{row.port} could not be asked to leave: it "
            "does not answer"
        )
    others = [each for each in known if each.name != row.name and each.state not in GONE]
    state = row.state
    with runtime.move_on_after(within):
        while True:
            state = await _state_of(cluster, row, others)
            if state in GONE:
                break
            await runtime.sleep(_LOOK_AGAIN)  # Nodes send clients no event for a leave.
    return _Outcome(row.name, state, runtime.current_time() - begun)


def _called(known: tuple[MemberRow, ...], name: str) -> MemberRow:
    for row in known:
        if row.name == name:
            if row.state in GONE:
                raise ConfigError(
                    f"NAME must be a member that runs, got {name!r}, which is {row.state}"
                )
            return row
    names = ", ".join(row.name for row in known)
    raise ConfigError(f"no member is called {name!r}; known are {names}")


async def _only_one_at(known: tuple[MemberRow, ...], url: ClusterUrl) -> MemberRow:
    """Return the member at the given address, which must be a single one."""
    names = ", ".join(row.name for row in known)
    if len(url.seeds) != 1:
        raise ConfigError(
            "NAME must be given, because the address names "
            f"{len(url.seeds)} members; choose from: {names}"
        )
    host, port = url.seeds[0]
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
    hosts = {host, *(row[4][0] for row in found)}
    for row in known:
        if row.host in hosts and row.port == port and row.state not in GONE:
            return row
    raise ConfigError(
        f"no member has the address {host}:{port}; give the name of the member that leaves: {names}"
    )


async def _state_of(cluster: Cluster, row: MemberRow, others: list[MemberRow]) -> str:
    """Return the state of the leaving member, according to the first other member that answers.

    If there is no other member, a leaving member that does not answer has left.
    """
    for teller in others or [row]:
        seen = await cluster.admin.members_seen_by(teller)
        if seen is not None:
            return next((each.state for each in seen if each.name == row.name), "left")
    return _UNKNOWN if others else "left"
