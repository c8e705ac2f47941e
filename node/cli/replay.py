"""`ringfence replay`: apply rules to an access log and report the denials."""

import gc
import math
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from pathlib import Path

import click
import trio
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.cli.common import (
    IntegerRange,
    NumberRange,
    as_json,
    cluster_option,
    console,
    json_option,
    need_cluster,
    printable,
    rule_place,
)
from node.cli.log_options import (
    descriptor_option,
    domain_option,
    log_figures,
    require_complete,
    show_problems,
    verify_shape,
)
from node.replay.log_formats import Entry
from node.replay.logs import LogReader, read_log
from node.replay.offline import replay_offline
from node.replay.online import replay_online
from node.replay.ordering import in_order
from node.replay.tally import KEPT_CLIENTS, Shape, Tally
from ringfence.client.connect import open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import ClusterUrl
from ringfence.errors import ConfigError
from ringfence.limiter import NS_PER_SECOND, Algorithm
from ringfence.peering.clock import SystemClock
from ringfence.rules import RuleSet, group_address
from ringfence.rules.limit_strings import format_limit
from ringfence.rules.loading.yaml_files import Defaults, load_path

__all__ = ["replay", "throttled_rows", "throttled_table"]

_SHOWN = 10
_KEPT_CLIENTS = 16_384
_SQUEEZED = 1.5
"""Ratio of log duration to replay duration from which the outcome may differ."""


@click.command()
@click.argument("log", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--rules", type=click.Path(path_type=Path), help="Rule file or directory.")
@cluster_option
@click.option("--local", is_flag=True, help="Decide in this process, without a node.")
@click.option(
    "--clock",
    type=click.Choice(["real", "log"]),
    help="Count by the time-stamps of the log (the default with --local), or by the clock of the "
    "host that decides (the only way through a cluster).",
)
@domain_option
@descriptor_option
@click.option(
    "--ipv6-prefix",
    type=IntegerRange(1, 128),
    help="Treat IPv6 clients with a common prefix of this length as one client; 64 is usual.",
)
@click.option(
    "--speed",
    type=NumberRange(0.001),
    help="Speed relative to the log's time-stamps; without pauses when absent.",
)
@click.option(
    "--default-algorithm",
    type=click.Choice([algorithm.value for algorithm in Algorithm]),
    default=Algorithm.SLIDING_WINDOW.value,
    show_default=True,
    help="Algorithm of rules in --rules without one.",
)
@click.option("--max-keys", default=10_000_000, show_default=True, type=IntegerRange(1))
@json_option
def replay(
    log: Path,
    rules: Path | None,
    cluster: str | None,
    local: bool,
    clock: str | None,
    domain: str,
    descriptors: tuple[str, ...],
    ipv6_prefix: int | None,
    speed: float | None,
    default_algorithm: str,
    max_keys: int,
    json_: bool,
) -> None:
    """Check every line of LOG: through a cluster, or in this process by --local.

    LOG is an access log (Common or Combined, also with a virtual host first), or a tab-separated
    trace; gzip and - are fine. --local counts by the time-stamps of the log. A live log (--local
    --clock real) ends with its figures at Ctrl-C or SIGTERM.

    With --cluster and --rules it is a trial: each check carries its limit and is counted apart from
    the live rules. Without --rules the cluster's own rules apply, and their counters are spent. The
    nodes count by their own clocks, so without --speed 1 a log of a day is one burst to them.
    """
    shape = Shape.parse(descriptors, domain)
    screen = console(stderr=True)
    loaded = None
    if rules is not None:
        loaded = load_path(rules, defaults=Defaults(algorithm=Algorithm(default_algorithm))).rules
        verify_shape(shape, loaded, str(rules), screen)
    if local:
        source = click.get_current_context().get_parameter_source("cluster")
        if source is ParameterSource.COMMANDLINE:
            raise ConfigError("--local must be used without --cluster: it decides in this process")
        if loaded is None:
            raise ConfigError("--local needs --rules FILE")
        if speed is not None:
            raise ConfigError(
                "--speed must be used without --local: it paces a replay through a cluster"
            )
    elif clock == "log":
        raise ConfigError(
            "--clock must be real through a cluster, got log; its nodes count by their own clocks: "
            "add --local to count by the time-stamps of the log"
        )
    if not local and not cluster:
        raise ConfigError(
            "no cluster address: pass --cluster 'ringfence://HOST:PORT?ca=FILE&token_file=FILE', "
            "or --rules FILE --local to decide in this process"
        )
    url = None if local else need_cluster(cluster)
    reader = read_log(log)
    is_live = local and clock == "real"
    # Servers write a line at the end of a request, so lines are not in order.
    # A live stream cannot wait for their order.
    batches = reader.batches() if is_live else in_order(reader.batches())
    if ipv6_prefix is not None:
        batches = _grouped(batches, ipv6_prefix)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[lines]} lines"),
        TimeElapsedColumn(),
        console=screen,
        disable=json_ or not screen.is_terminal,
    ) as progress:
        bar = progress.add_task("replaying", total=reader.size, lines=0)

        def on_progress(done: int) -> None:
            progress.update(bar, completed=reader.position, lines=done)

        if url is None:
            assert loaded is not None
            with _ended_by_signals(reader) if is_live else nullcontext(), _without_cycle_search():
                tally = replay_offline(
                    batches,
                    shape,
                    loaded,
                    clock=SystemClock() if is_live else None,
                    max_keys=max_keys,
                    on_progress=on_progress,
                )
        else:
            entries = _timed(chain.from_iterable(batches), span := _Span())
            begun = time.monotonic()
            pace = speed or math.inf
            tally = trio.run(_through, url, loaded, entries, shape, pace, on_progress, screen)
            span.replayed = time.monotonic() - begun
    _show(reader, tally, screen, json_=json_)
    if url is not None:
        _warn_of_squeezed_time(screen, span)
    require_complete(reader)


@contextmanager
def _ended_by_signals(reader: LogReader) -> Iterator[None]:
    """Let SIGINT and SIGTERM end a live log, which has no other end, so that its figures are
    printed."""
    before = {
        number: signal.signal(number, lambda *_: reader.end())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Disable Python's cyclic garbage collector while the log is read, because it adds a third to
    the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Span:
    """Duration of the log by its time-stamps, and of its replay, in seconds."""

    logged = replayed = 0.0


def _timed(entries: Iterable[Entry], span: _Span) -> Iterator[Entry]:
    """Yield all log entries, and record the time between the first and the last one."""
    first = None
    for entry in entries:
        first = entry.time_ns if first is None else first
        span.logged = (entry.time_ns - first) / NS_PER_SECOND
        yield entry


def _warn_of_squeezed_time(screen: Console, span: _Span) -> None:
    """Warn when the replay is faster than the log, because nodes count by their own clocks."""
    if span.logged > _SQUEEZED * span.replayed:
        logged, replayed = (
            timedelta(seconds=round(seconds)) for seconds in (span.logged, span.replayed)
        )
        screen.print(
            f"note: the nodes counted by their own clocks, and {logged} of log took {replayed}, so "
            "more is denied than by the log's own times; --speed 1 keeps its pace, and --local "
            "--rules FILE counts by its time-stamps",
            style="yellow",
        )


def _grouped(batches: Iterable[list[Entry]], ipv6_prefix: int) -> Iterator[list[Entry]]:
    """Replace each IPv6 client by its network, so that clients of one network count as one."""

    @lru_cache(_KEPT_CLIENTS)
    def group_of(client: str) -> str:
        return group_address(client, ipv6_prefix)

    for batch in batches:
        yield [entry._replace(client=group_of(entry.client)) for entry in batch]


async def _through(
    url: ClusterUrl,
    rules: RuleSet | None,
    entries: Iterable[Entry],
    shape: Shape,
    speed: float,
    on_progress: Callable[[int], None],
    screen: Console,
) -> Tally:
    # A trial must neither read nor change the counters of the live rules.
    trial = None if rules is None else rules.as_trial(secrets.token_bytes(8))
    async with open_cluster(url, raise_on_outage=True, rules=trial) as cluster:
        if trial is None:
            verify_shape(shape, cluster.rules, "the cluster", screen)
        return await replay_online(
            entries,
            shape,
            Limiter(cluster),
            speed=speed,
            on_decision=lambda *_: None,
            on_progress=on_progress,
        )


def _show(reader: LogReader, tally: Tally, errors: Console, *, json_: bool) -> None:
    show_problems(reader, errors, json_=json_)
    if json_:
        as_json(
            {
                **log_figures(reader),
                "checks": tally.checks,
                "allowed": tally.allowed,
                "denied": tally.denied,
                "undecided": tally.undecided,
                "no_rule": tally.no_rule,
                "late": tally.late,
                "evicted": tally.evicted,
                "rules": _rule_rows(tally),
                "most_throttled": throttled_rows(tally),
            }
        )
        return
    screen = console()
    screen.print(
        f"{reader.lines} lines ({reader.malformed} malformed), {tally.checks} checks: "
        f"{tally.allowed} allowed, {tally.denied} denied, {tally.undecided} undecided"
        + (f"; {tally.no_rule} met no rule" if tally.no_rule else "")
    )
    if tally.late:
        errors.print(
            f"{tally.late} lines stand after much later ones, by up to "
            f"{timedelta(seconds=tally.most_late_ns // NS_PER_SECOND)}; they were counted at the "
            "time of the latest line before them: sort the log by time first",
            style="yellow",
        )
    if tally.evicted:
        errors.print(
            f"{tally.evicted} counters in use were evicted, so too few checks were denied: use a "
            "larger --max-keys",
            style="yellow",
        )
    if tally.clients_dropped:
        errors.print(
            f"there are more than {KEPT_CLIENTS} clients: the counts of a client are minimums",
            style="yellow",
        )
    if tally.rules:
        screen.print()
        screen.print(_rules_table(tally))
    if tally.denied:
        screen.print()
        screen.print(throttled_table(tally))


def _rule_rows(tally: Tally) -> list[dict[str, object]]:
    return [
        {
            "rule": rule_place(each.rule),
            "checks": each.checks,
            "denied": each.denied,
            "shadow": each.rule.shadow,
        }
        for each in tally.rules_by_denials()
    ]


def _rules_table(tally: Tally) -> Table:
    """Format a table of the rules, the rule with the most denials first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rule", overflow="fold")
    table.add_column("limit")
    for heading in ("denied", "of checks"):
        table.add_column(heading, justify="right")
    for each in tally.rules_by_denials()[:_SHOWN]:
        assert each.rule.limit is not None
        denied = f"{each.denied} (shadow: only counted)" if each.rule.shadow else str(each.denied)
        table.add_row(
            printable(rule_place(each.rule) or ""),
            format_limit(each.rule.limit),
            denied,
            str(each.checks),
        )
    return table


def throttled_rows(tally: Tally) -> list[dict[str, str | int | None]]:
    """Return the clients with the most denials as JSON values."""
    return [
        {
            "client": each.client,
            "denied": each.denied,
            "checked": each.checked,
            "rule": rule_place(each.rule),
        }
        for each in tally.most_throttled(_SHOWN)
    ]


def throttled_table(tally: Tally) -> Table:
    """Return a table of the clients with the most denials."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("most throttled clients", overflow="fold")
    for heading in ("denied", "of checks"):
        table.add_column(heading, justify="right")
    table.add_column("by rule", overflow="fold")
    for each in tally.most_throttled(_SHOWN):
        place = printable(rule_place(each.rule) or "-")
        table.add_row(printable(each.client), str(each.denied), str(each.checked), place)
    return table
