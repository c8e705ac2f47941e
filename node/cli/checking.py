"""`ringfence check` and `ringfence members`: ask a running cluster."""

from typing import TypeAlias

import click
import trio
from rich.console import Console
from rich.table import Table

from node.cli.common import (
    as_json,
    cluster_option,
    console,
    decision_row,
    json_option,
    need_cluster,
    parse_descriptor,
    rule_place,
)
from ringfence.client.connect import open_cluster
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.url import ClusterUrl
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, format_limit
from ringfence.wire import MemberRow, Source

__all__ = ["check", "members", "show_members"]

_Row: TypeAlias = dict[str, object]
_COUNTED = ("owned_shards", "keys", "checks", "allowed", "denied", "forwarded", "stood_in")
_HEADINGS = {"datacenter": "data center", "owned_shards": "shards"}
_UNBOUNDED = 10_000
"""Columns of a screen that any table fits into."""


@click.command()
@click.argument("domain")
@click.argument("entries", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--descriptor",
    "-d",
    "others",
    multiple=True,
    metavar="KEY=VALUE,KEY=VALUE",
    help="One more descriptor of the same request; repeatable.",
)
@click.option("--cost", type=click.IntRange(0), help="Units to spend or give back; 1 when absent.")
@click.option("--peek", is_flag=True, help="Ask only, spend nothing.")
@click.option("--refund", is_flag=True, help="Give the cost back.")
@click.option("--reset", is_flag=True, help="Forget the counters.")
@click.option(
    "--limit",
    metavar="LIMIT",
    help='An ad-hoc limit such as "100/minute"; its key is DOMAIN, then each KEY and its VALUE.',
)
@cluster_option
@json_option
def check(
    domain: str,
    entries: tuple[str, ...],
    others: tuple[str, ...],
    cost: int | None,
    peek: bool,
    refund: bool,
    reset: bool,
    limit: str | None,
    cluster: str | None,
    json_: bool,
) -> None:
    """Check one request. Asks the first node of the address, which forwards what it does not own.

    KEY=VALUE words form one descriptor, in order; they may be left out where -d gives one. With
    --limit no rule is asked: `check api client=x --limit 5/s` counts by the key `api`, `client`,
    `x`, as `limiter.check_limit("5/s", "api", "client", "x")` does.
    """
    verb = _verb_of(peek=peek, refund=refund, reset=reset)
    if cost is not None and verb in ("peek", "reset"):
        raise ConfigError(f"--{verb} spends nothing: it has no use for --cost")
    if limit is not None and others:
        raise ConfigError("--limit counts by one key: it has no use for --descriptor")
    if not (entries or others):
        raise ConfigError("nothing to check: give KEY=VALUE words, as in client=203.0.113.7")
    words = [entries] if entries else []
    words += [tuple(other.split(",")) for other in others]
    descriptors = [parse_descriptor(each) for each in words]
    spent = 1 if cost is None else cost
    decision = trio.run(_check, need_cluster(cluster), domain, descriptors, spent, verb, limit)
    _show(decision, json_, spent, _DONE.get(verb, ""))


def _verb_of(**chosen: bool) -> str:
    """The one verb that was chosen; `check` when none was."""
    verbs = [verb for verb, is_chosen in chosen.items() if is_chosen]
    if len(verbs) > 1:
        options = " and ".join(f"--{verb}" for verb in verbs)
        raise ConfigError(f"{options} do not go together; choose one")
    return verbs[0] if verbs else "check"


@click.command()
@cluster_option
@json_option
def members(cluster: str | None, json_: bool) -> None:
    """List the members of the cluster with their counters."""
    rows = trio.run(_members, need_cluster(cluster))
    if json_:
        as_json({"members": [_member_row(row, counters) for row, counters in rows]})
        return
    show_members(console(), [_member_row(row, counters) for row, counters in rows])


def show_members(screen: Console, rows: list[_Row]) -> None:
    """Print one table where the screen is wide enough for it, else one of names, one of counters.

    Data center and zone are left out where they are the same for all.
    """
    who = ["name", "address", "state"]
    who += [name for name in ("datacenter", "zone") if len({row[name] for row in rows}) > 1]
    whole = _members_table(rows, [*who, *_COUNTED])
    if (
        screen.measure(whole, options=screen.options.update_width(_UNBOUNDED)).maximum
        <= screen.width
    ):
        screen.print(whole)
        return
    screen.print(_members_table(rows, who))
    screen.print()
    screen.print(_members_table(rows, ["name", *_COUNTED]))


def _members_table(rows: list[_Row], columns: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        heading = _HEADINGS.get(column, column.replace("_", " "))
        is_count = column in _COUNTED
        table.add_column(heading, justify="right" if is_count else "left", overflow="fold")
    for row in rows:
        counters = row["counters"]
        counts = counters if isinstance(counters, dict) else dict.fromkeys(_COUNTED, "-")
        table.add_row(
            *(str((counts if name in _COUNTED else row).get(name, 0)) for name in columns)
        )
    return table


def _member_row(row: MemberRow, counters: dict[str, int] | None) -> _Row:
    return {
        "name": row.name,
        "address": f"{row.host}:{row.port}",
        "datacenter": row.datacenter,
        "zone": row.zone,
        "weight": row.weight,
        "state": row.state if counters is not None else "unreachable",
        "counters": counters,
    }


async def _check(
    url: ClusterUrl,
    domain: str,
    descriptors: list[Descriptor],
    cost: int,
    verb: str,
    limit: str | None,
) -> Decision:
    async with open_cluster(url, raise_on_outage=True, route=False) as cluster:
        limiter = Limiter(cluster, raise_on_outage=True)
        if limit is not None:
            key = [domain, *(word for entry in descriptors[0].entries for word in entry)]
            match verb:
                case "refund":
                    return await limiter.refund_limit(limit, *key, cost=cost)
                case "reset":
                    return await limiter.reset_limit(limit, *key)
                case _:
                    cost = 0 if verb == "peek" else cost
                    return await limiter.check_limit(limit, *key, cost=cost)
        if not limiter.rules.knows_domain(domain):
            known = ", ".join(limiter.rules.domains) or "none: the nodes have no rules"
            raise ConfigError(f"no rules for domain {domain!r}; the cluster knows {known}")
        match verb:
            case "refund":
                return await limiter.refund(domain, descriptors, cost)
            case "reset":
                return await limiter.reset(domain, descriptors)
            case _:
                return await limiter.check(domain, descriptors, 0 if verb == "peek" else cost)


async def _members(url: ClusterUrl) -> list[tuple[MemberRow, dict[str, int] | None]]:
    async with open_cluster(url, raise_on_outage=True) as cluster:
        rows = await cluster.all_stats()
        refusal = cluster.outage()
        if refusal is not None:
            raise refusal  # They are within reach, but the token may not look.
        return rows


_DONE = {"refund": "refunded", "reset": "reset"}
"""Verbs that are always done: what is left afterwards denies nobody."""


def _show(decision: Decision, json_: bool, cost: int, done: str) -> None:
    if json_:
        as_json(decision_row(decision))
    elif done and decision.rule is not None:
        click.echo(f"{done}: {_room(decision)}")
    elif decision.source is Source.NO_RULE:
        click.echo(f"allowed: {_why_free(decision)}")
    elif decision.allowed:
        mark = f", in its turn after {decision.delay:.2f} s" if decision.delay else ""
        mark += " (over the limit, inside its soft margin)" if decision.over_soft else ""
        mark += " (a shadow rule would have denied it)" if decision.over_shadow else ""
        click.echo(f"allowed{mark}: {_room(decision)}")
    elif decision.retry_after is None:
        click.echo(
            f"denied for good: cost {cost} is more than {_limit(decision)} ever admits at once"
        )
    else:
        click.echo(f"denied by {_limit(decision)}: retry after {decision.retry_after:.3f} s")
    if not (decision.allowed or done):
        raise SystemExit(1)


def _room(decision: Decision) -> str:
    """What is left, out of what a rested counter has."""
    limit = decision.rule.limit if decision.rule is not None else None
    if limit is None or not limit.is_bucket or decision.remaining is None:
        return f"{decision.remaining} of {_limit(decision)} left"
    if limit.queue:
        return f"room for {decision.remaining} of {limit.bucket_size} in the queue"
    return f"{decision.remaining} of {limit.bucket_size} left in the bucket of {_limit(decision)}"


def _why_free(decision: Decision) -> str:
    """Why nothing was counted."""
    for status in decision.statuses:
        if status.rule is not None:
            return f"the rule {rule_place(status.rule)} is unlimited"
    return "no rule applies to this request"


def _limit(decision: Decision) -> str:
    rule = decision.rule
    if rule is not None and rule.limit is not None:
        return format_limit(rule.limit)
    return str(decision.limit)
