"""`ringfence replay`: what the rules would do to an access log."""

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import trio
from click.core import ParameterSource
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.cli.common import (
    as_json,
    cluster_option,
    console,
    json_option,
    need_cluster,
    printable,
)
from node.replay.logs import Entry, LogReader, read_log, sorted_by_time
from node.replay.offline import replay_offline
from node.replay.online import replay_online
from node.replay.tally import Shape, Tally, need_domain
from ringfence.client.connect import open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import ClusterUrl
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.rules import RuleSet, group_address
from ringfence.rules.load import Defaults, load_path

__all__ = ["replay", "throttled_rows", "throttled_table"]

_SHOWN = 10


@click.command()
@click.argument("log", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--rules", type=click.Path(path_type=Path), help="Rule file or directory.")
@cluster_option
@click.option("--local", is_flag=True, help="Decide in this process, without any node.")
@click.option(
    "--clock",
    type=click.Choice(["real", "log"]),
    default="real",
    show_default=True,
    help="With --local: count by this host's clock, or by the time-stamps of the log.",
)
@click.option(
    "--descriptor",
    "descriptors",
    multiple=True,
    default=("client",),
    show_default=True,
    help="Fields of a line that make a descriptor: client, method, path, status; repeatable.",
)
@click.option(
    "--ipv6-prefix",
    type=click.IntRange(1, 128),
    help="Take IPv6 clients of one network of so many bits for one client; 64 is a subscriber.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    help="Replay at so many times the log's own pace; without pauses when absent.",
)
@click.option(
    "--default-algorithm",
    type=click.Choice([algorithm.value for algorithm in Algorithm]),
    default=Algorithm.SLIDING_WINDOW.value,
    show_default=True,
    help="For rules in --rules that name none.",
)
@click.option("--max-keys", default=10_000_000, show_default=True, type=click.IntRange(1))
@json_option
def replay(
    log: Path,
    rules: Path | None,
    cluster: str | None,
    local: bool,
    clock: str,
    descriptors: tuple[str, ...],
    ipv6_prefix: int | None,
    speed: float | None,
    default_algorithm: str,
    max_keys: int,
    json_: bool,
) -> None:
    """Check every line of LOG in domain `log`: through a cluster, or in this process by --local.

    LOG is an access log (Common or Combined), or a tab-separated trace; gzip and - are fine. With
    --cluster and --rules it is a trial: each check carries its limit and is counted apart from the
    live rules. Without --rules the cluster's own rules apply, and their counters are spent.
    """
    shape = Shape.parse(descriptors)
    loaded = None
    if rules is not None:
        loaded = load_path(rules, defaults=Defaults(algorithm=Algorithm(default_algorithm))).rules
        need_domain(loaded, str(rules))
    if local:
        source = click.get_current_context().get_parameter_source("cluster")
        if source is ParameterSource.COMMANDLINE:
            raise ConfigError("--local decides in this process: it has no use for --cluster")
        if loaded is None:
            raise ConfigError("--local needs --rules FILE")
        if speed is not None:
            raise ConfigError("--speed paces a replay through a cluster; --local has no use for it")
    elif clock == "log":
        raise ConfigError("--clock log works with --local only: a cluster's owners have clocks")
    url = None if local else need_cluster(cluster)
    reader = read_log(log)
    entries = sorted_by_time(reader)  # Lines of one log are logged when answered, not when asked.
    if ipv6_prefix is not None:
        entries = [
            replace(entry, client=group_address(entry.client, ipv6_prefix)) for entry in entries
        ]
    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        disable=json_ or not screen.is_terminal,
    ) as progress:
        bar = progress.add_task("replaying", total=len(entries))

        def on_progress(done: int) -> None:
            progress.update(bar, completed=done)

        if url is None:
            assert loaded is not None
            tally = replay_offline(
                entries,
                shape,
                loaded,
                by_log_clock=clock == "log",
                max_keys=max_keys,
                on_progress=on_progress,
            )
        else:
            tally = trio.run(_through, url, loaded, entries, shape, speed or math.inf, on_progress)
    _show(reader, tally, json_)


async def _through(
    url: ClusterUrl,
    rules: RuleSet | None,
    entries: list[Entry],
    shape: Shape,
    speed: float,
    on_progress: Callable[[int], None],
) -> Tally:
    # A trial must neither spend nor read what the live rules count.
    trial = None if rules is None else rules.as_trial(secrets.token_bytes(8))
    async with open_cluster(url, raise_on_outage=True, rules=trial) as cluster:
        need_domain(cluster.rules, "the cluster")
        return await replay_online(
            entries,
            shape,
            Limiter(cluster),
            speed=speed,
            on_decision=lambda *_: None,
            on_progress=on_progress,
        )


def _show(reader: LogReader, tally: Tally, json_: bool) -> None:
    if json_:
        for problem in reader.problems:
            as_json({"malformed_line": problem.line, "why": problem.why})
        as_json(
            {
                "lines": reader.lines,
                "malformed": reader.malformed,
                "checks": tally.checks,
                "allowed": tally.allowed,
                "denied": tally.denied,
                "errors": tally.errors,
                "no_rule": tally.no_rule,
                "most_throttled": throttled_rows(tally),
            }
        )
        return
    screen = console()
    for problem in reader.problems:
        screen.print(f"line {problem.line}: {problem.why}", style="yellow")
    screen.print(
        f"{reader.lines} lines ({reader.malformed} malformed), {tally.checks} checks: "
        f"{tally.allowed} allowed, {tally.denied} denied, {tally.errors} undecided"
        + (f"; {tally.no_rule} met no rule" if tally.no_rule else "")
    )
    if tally.denied:
        screen.print(throttled_table(tally))


def throttled_rows(tally: Tally) -> list[dict[str, str | int]]:
    """The clients that were denied most often, for a machine."""
    return [
        {"client": client, "denied": denied, "checked": checked}
        for client, denied, checked in tally.most_throttled(_SHOWN)
    ]


def throttled_table(tally: Tally) -> Table:
    """The clients that were denied most often."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("most throttled clients", overflow="fold")
    for heading in ("denied", "of checks"):
        table.add_column(heading, justify="right")
    for client, denied, checked in tally.most_throttled(_SHOWN):
        table.add_row(printable(client), str(denied), str(checked))
    return table
