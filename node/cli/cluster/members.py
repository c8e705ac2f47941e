"""`ringfence members`: members of the cluster with their state, shards and counters.

The list of one node contains the members and round-trip times. Each member that answers adds its
own shards, clock and counters.
"""

from collections import Counter, defaultdict
from functools import partial
from typing import TypeAlias

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from node.cli.cluster.cluster_command import ClusterCommand, Query
from node.cli.common import Output, cluster_option, json_option, need_cluster, printable
from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.url import ClusterUrl
from ringfence.errors import PeerUnavailable, RemoteProtocolError
from ringfence.wire import MemberRow

__all__ = ["GONE", "members", "show_members"]

_Row: TypeAlias = dict[str, object]

GONE = ("dead", "left")
"""States in which a member does not answer."""
_COUNTED = ("keys", "checks", "allowed", "denied", "forwarded", "decided_as_standby", "connections")
_REPORTED = (
    *("address", "zone", "state", "incarnation", "owned_shards", "rtt_ms", "clock_offset_ms"),
    "version",
)
_HEADINGS = {
    "owned_shards": "shards",
    "rtt_ms": "RTT",
    "clock_offset_ms": "clock",
    "decided_as_standby": "as standby",
}
_WORDS = ("name", "address", "zone", "state", "version")
"""Columns that are aligned to the left."""
_FIRST = (
    *("name", "state", "address", "owned_shards", "checks", "denied", "rtt_ms", "clock_offset_ms"),
    *(
        "decided_as_standby",
        "forwarded",
        "version",
        "keys",
        "zone",
        "allowed",
        "incarnation",
        "connections",
    ),
)
"""Columns by importance; a narrow screen shows the first ones."""
_UNBOUNDED = 10_000
"""Screen width that any table fits into."""
_GUIDES = 8
"""Width of the tree's lines."""


class _Peer(msgspec.Struct, frozen=True):
    """Member as listed by a node; unknown fields of newer nodes are ignored."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    state: str
    generation: int
    incarnation: int
    version: str
    owned_shards: int
    rtt_ms: float | None = None
    """Round trip to the member in seconds; None for the node that sent the list."""
    clock_offset_ms: float | None = None
    """Correction of the host's clock; None for all but the node that sent the list."""
    clock_suspect: bool | None = None
    state_for_s: float | None = None
    """Seconds since the member entered its state, as the node that sent the list has seen."""


@click.command(cls=ClusterCommand)
@cluster_option
@json_option
def members(cluster: str | None, json_: bool) -> Query[tuple[str, list[_Row]]]:
    """List the members of the cluster, by data center, with their state and counters."""
    url = need_cluster(cluster)
    return Query(url, partial(_members, url), partial(_show, json_))


def _show(json_: bool, answer: tuple[str, list[_Row]], output: Output) -> None:
    asked, rows = answer
    if json_:
        output.json({"asked": asked, "members": rows})
    else:
        show_members(output.console(), asked, rows)


def show_members(screen: Console, asked: str, rows: list[_Row]) -> None:
    """Print one table for each data center, with as many columns as the screen permits.

    The column of zones is omitted when no member has a zone.
    """
    has_zones = any(row["zone"] for row in rows)
    wanted = ["name", *(each for each in _REPORTED if has_zones or each != "zone"), *_COUNTED]
    columns = _fitting(screen, rows, wanted)
    by_datacenter: defaultdict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        by_datacenter[str(row["datacenter"])].append(row)
    tree = Tree(f"{_count(rows)}, as {printable(asked)} sees them")
    for datacenter, here in sorted(by_datacenter.items()):
        branch = tree.add(Text(f"{printable(datacenter)}: {_count(here)}", "bold"))
        branch.add(_table(here, columns))
    screen.print(tree)
    hidden = [_heading(column) for column in wanted if column not in columns]
    if hidden:
        words = f"not shown for lack of width: {', '.join(hidden)}; --json has everything"
        screen.print(Text(words, "dim"))
    for remark in _remarks(rows):
        screen.print(Text(remark, "bold red"))


def _remarks(rows: list[_Row]) -> list[str]:
    """Return warnings for the operator: rejected rules, evicted counters, and nodes that differ in
    rules or version."""
    hashes: defaultdict[object, list[str]] = defaultdict(list)
    versions: defaultdict[object, list[str]] = defaultdict(list)
    refused: list[str] = []
    evicted: list[str] = []
    for row in rows:
        counters, name = row["counters"], printable(str(row["name"]))
        if row["state"] not in GONE:
            versions[printable(str(row["version"]))].append(name)
        if isinstance(counters, dict) and (count := counters.get("evicted")):
            evicted.append(f"{name} ({count})")
        if isinstance(counters, dict) and "rules_hash" in counters:
            hashes[counters["rules_hash"]].append(name)
            if counters.get("rules_refused"):
                refused.append(name)
    remarks = []
    if refused:
        remarks.append(
            f"rules on disk refused by {', '.join(refused)}, the old rules stay in force; "
            "see `ringfence rules check` and the log there"
        )
    if evicted:
        remarks.append(
            f"counters were evicted by {', '.join(evicted)}, so their limits admit too much; raise "
            "max_keys or max_bytes there"
        )
    if len(hashes) > 1:
        groups = [", ".join(names) for names in hashes.values()]
        remarks.append(f"rules differ between {' and '.join(groups)}; give all nodes equal files")
    if len(versions) > 1:
        groups = [f"{version} at {', '.join(names)}" for version, names in versions.items()]
        remarks.append(f"software versions differ: {'; '.join(groups)}")
    return remarks


def _count(rows: list[_Row]) -> str:
    """Describe the number of members, and of suspect and dead ones."""
    states = Counter(str(row["state"]) for row in rows)
    gone = "".join(f", {states[state]} {state}" for state in GONE if states[state])
    odd = [
        f"{count} {state}"
        for state, count in sorted(states.items())
        if state not in ("alive", *GONE)
    ]
    count = len(rows) - sum(states[state] for state in GONE)
    doubts = f" ({', '.join(odd)})" if odd else ""
    return f"{count} member{'s' if count != 1 else ''}{doubts}{gone}"


def _fitting(screen: Console, rows: list[_Row], wanted: list[str]) -> list[str]:
    """Choose the table columns that fit on the screen, the most important first; the name is always
    shown."""
    options = screen.options.update_width(_UNBOUNDED)

    def fits(columns: list[str]) -> bool:
        width = screen.measure(_table(rows, columns), options=options).maximum
        return width <= screen.width - _GUIDES

    if fits(wanted):
        return wanted
    chosen = ["name"]
    for column in sorted(wanted[1:], key=_FIRST.index):
        wider = [each for each in wanted if each in (*chosen, column)]
        if not fits(wider):
            break
        chosen = wider
    return chosen


def _table(rows: list[_Row], columns: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            _heading(column), justify="left" if column in _WORDS else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*(printable(_cell(row, column)) for column in columns))
    return table


def _heading(column: str) -> str:
    return _HEADINGS.get(column, column.replace("_", " "))


def _cell(row: _Row, column: str) -> str:
    if column in _COUNTED:
        counters = row["counters"]
        return str(counters.get(column, 0)) if isinstance(counters, dict) else "-"
    value = row[column]
    if column == "state":
        return _state(row)
    if value is None or (column == "rtt_ms" and row["state"] in GONE):
        return "-"
    if column == "rtt_ms":
        return f"{value:.2f} ms"
    if column == "clock_offset_ms":
        return f"{value:+.2f} ms{', far off' if row['clock_suspect'] else ''}"
    return str(value)


def _state(row: _Row) -> str:
    state, for_s = str(row["state"]), row.get("state_for_s")
    if state == "dead" and isinstance(for_s, float):
        return f"dead for {_duration(for_s)}"
    is_silent = not row["reachable"] and state not in GONE
    return f"{state}, silent" if is_silent else state


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


async def _members(url: ClusterUrl, cluster: Cluster) -> tuple[str, list[_Row]]:
    """Query the members; return the member whose list was used, and one row for each member."""
    lists: dict[str, dict[str, _Peer]] = {}
    counters: dict[str, dict[str, int] | None] = {}

    async def ask(row: MemberRow) -> None:
        listed = await _peers_of(cluster, row)
        if listed is not None:
            lists[row.name] = listed
            counters[row.name] = await cluster.admin.stats(row)

    known = cluster.members
    async with runtime.open_task_group() as tasks:
        for row in known:
            if row.state not in GONE:
                tasks.start_soon(ask, row)
    refusal = cluster.outage()
    if refusal is not None:
        raise refusal  # The members are reachable, but the token lacks the scope.
    named = [row.name for row in known if (row.host, row.port) == url.seeds[0]]
    asked = next((name for name in (*named, *sorted(lists)) if name in lists), None)
    if asked is None:
        raise PeerUnavailable("no member of the cluster sends its member list")
    return asked, [
        _row_of(peer, lists.get(name, {}).get(name), counters.get(name))
        for name, peer in sorted(lists[asked].items())
    ]


async def _peers_of(cluster: Cluster, row: MemberRow) -> dict[str, _Peer] | None:
    listed = await cluster.admin.peers(row)
    if listed is None:
        return None
    try:
        return {peer.name: peer for peer in msgspec.convert(listed, list[_Peer])}
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(
            f"member {row.name!r} sent a member list that cannot be decoded: {error}"
        ) from error


def _row_of(peer: _Peer, own: _Peer | None, counters: dict[str, int] | None) -> _Row:
    """Return the row of one member: its entry in the list, and its own statistics if it answers."""
    knows = own or peer
    return {
        "name": peer.name,
        "address": f"[{peer.host}]:{peer.port}" if ":" in peer.host else f"{peer.host}:{peer.port}",
        "datacenter": peer.datacenter,
        "zone": peer.zone,
        "weight": peer.weight,
        "state": peer.state,
        "state_for_s": peer.state_for_s,
        "reachable": own is not None,
        "generation": peer.generation,
        "incarnation": peer.incarnation,
        "version": peer.version,
        "owned_shards": knows.owned_shards,
        "rtt_ms": peer.rtt_ms,
        "clock_offset_ms": knows.clock_offset_ms,
        "clock_suspect": knows.clock_suspect,
        "counters": counters,
    }
