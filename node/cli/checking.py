"""`ringfence check` and `ringfence members`: ask a running cluster."""

import click
import trio
from rich.table import Table

from node.cli.common import (
    as_json,
    cluster_option,
    console,
    decision_row,
    json_option,
    need_cluster,
    parse_descriptor,
)
from ringfence.client.connect import open_cluster
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.url import ClusterUrl
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, format_limit
from ringfence.wire import MemberRow, Source

__all__ = ["check", "members"]


@click.command()
@click.argument("domain")
@click.argument("entries", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option(
    "--descriptor",
    "-d",
    "others",
    multiple=True,
    metavar="KEY=VALUE,KEY=VALUE",
    help="One more descriptor of the same request; repeatable.",
)
@click.option("--cost", default=1, show_default=True, type=click.IntRange(0))
@click.option("--peek", "verb", flag_value="peek", help="Ask only, spend nothing.")
@click.option("--refund", "verb", flag_value="refund", help="Give the cost back.")
@click.option("--reset", "verb", flag_value="reset", help="Forget the counters.")
@click.option("--limit", metavar="LIMIT", help='An ad-hoc limit such as "100/minute".')
@cluster_option
@json_option
def check(
    domain: str,
    entries: tuple[str, ...],
    others: tuple[str, ...],
    cost: int,
    verb: str | None,
    limit: str | None,
    cluster: str | None,
    json_: bool,
) -> None:
    """Check one request. Asks the first node of the address, which forwards what it does not own.

    KEY=VALUE words form one descriptor, in order. With --limit, DOMAIN and the words are the key.
    """
    if limit is not None and others:
        raise ConfigError("--limit counts by one key: it has no use for --descriptor")
    descriptors = [
        parse_descriptor(entries),
        *(parse_descriptor(tuple(other.split(","))) for other in others),
    ]
    decision = trio.run(
        _check, need_cluster(cluster), domain, descriptors, cost, verb or "check", limit
    )
    _show(decision, json_, cost, _DONE.get(verb or "check", ""))


@click.command()
@cluster_option
@json_option
def members(cluster: str | None, json_: bool) -> None:
    """List the members of the cluster with their counters."""
    rows = trio.run(_members, need_cluster(cluster))
    if json_:
        as_json({"members": [_member_row(row, counters) for row, counters in rows]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "address", "data center", "zone", "state"):
        table.add_column(heading)
    columns = ("owned_shards", "keys", "checks", "allowed", "denied", "forwarded", "stood_in")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for row, counters in rows:
        table.add_row(
            row.name,
            f"{row.host}:{row.port}",
            row.datacenter,
            row.zone,
            row.state if counters is not None else "unreachable",
            *("-" if counters is None else str(counters.get(name, 0)) for name in columns),
        )
    console().print(table)


def _member_row(row: MemberRow, counters: dict[str, int] | None) -> dict[str, object]:
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
        click.echo(f"{done}: {decision.remaining} of {_limit(decision)} left")
    elif decision.source is Source.NO_RULE:
        click.echo("allowed: no rule applies to this request")
    elif decision.allowed:
        mark = " (over the limit, inside its soft margin)" if decision.over_soft else ""
        mark = " (a shadow rule would have denied it)" if decision.over_shadow else mark
        click.echo(f"allowed{mark}: {decision.remaining} of {_limit(decision)} left")
    elif decision.retry_after is None:
        click.echo(
            f"denied for good: cost {cost} is more than {_limit(decision)} ever admits at once"
        )
    else:
        click.echo(f"denied by {_limit(decision)}: retry after {decision.retry_after:.3f} s")
    if not (decision.allowed or done):
        raise SystemExit(1)


def _limit(decision: Decision) -> str:
    rule = decision.rule
    if rule is not None and rule.limit is not None:
        return format_limit(rule.limit)
    return str(decision.limit)
