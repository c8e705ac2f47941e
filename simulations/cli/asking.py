"""`ringfence simulate what-if`: the user's own rules and log, in several data centers."""

from pathlib import Path
from typing import get_args

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.cli.common import as_json, console, json_option, printable
from node.replay.logs import LogReader, read_log, sorted_by_time
from node.replay.tally import Shape, need_domain
from ringfence.limiter import Algorithm
from ringfence.rules.load import Defaults, load_path
from simulations.what_if import Routing, WhatIf, spread_ties, what_if
from simulations.what_if_figures import RuleFigures

__all__ = ["what_if_command"]

_NS = 1e9


@click.command("what-if")
@click.option("--rules", required=True, type=click.Path(path_type=Path), help="File or directory.")
@click.option(
    "--log", required=True, type=click.Path(path_type=Path, allow_dash=True), help="Access log."
)
@click.option("--datacenters", default=3, show_default=True, type=click.IntRange(1, 30))
@click.option(
    "--rtt",
    default=80.0,
    show_default=True,
    type=click.FloatRange(0, 60_000),
    help="Round trip between two data centers, in ms.",
)
@click.option(
    "--interval",
    default=200.0,
    show_default=True,
    type=click.FloatRange(1, 60_000),
    help="How often they tell each other, in ms.",
)
@click.option("--exact", is_flag=True, help="Have one engine decide: no eventual consistency.")
@click.option(
    "--routing",
    type=click.Choice(get_args(Routing)),
    default="random",
    show_default=True,
    help="Each request to any data center, or all of a client to one.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), help="Clients named.")
@click.option(
    "--descriptor",
    "descriptors",
    multiple=True,
    default=("client",),
    show_default=True,
    help="Fields of a line that make a descriptor: client, method, path, status; repeatable.",
)
@click.option(
    "--default-algorithm",
    type=click.Choice([algorithm.value for algorithm in Algorithm]),
    default=Algorithm.SLIDING_WINDOW.value,
    show_default=True,
    help="For rules that name none.",
)
@json_option
def what_if_command(
    rules: Path,
    log: Path,
    datacenters: int,
    rtt: float,
    interval: float,
    exact: bool,
    routing: Routing,
    seed: int,
    top: int,
    descriptors: tuple[str, ...],
    default_algorithm: str,
    json_: bool,
) -> None:
    """Tell which clients of an access log would have been throttled, when, and by which rule.

    Every line is asked of one of several data centers, which hear of each other's counts late, and
    of one limiter that sees everything: the difference is the price of eventual consistency.
    Rules stand in domain `log`.
    """
    shape = Shape.parse(descriptors)
    loaded = load_path(rules, defaults=Defaults(algorithm=Algorithm(default_algorithm))).rules
    need_domain(loaded, str(rules))
    reader = read_log(log)
    entries = spread_ties(sorted_by_time(reader))
    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        disable=json_ or not screen.is_terminal,
    ) as progress:
        bar = progress.add_task("requests", total=len(entries))
        answer = what_if(
            loaded,
            entries,
            shape,
            datacenters=datacenters,
            delay_ms=rtt / 2,
            interval_ms=interval,
            seed=seed,
            spread=routing,
            exact=exact,
            top=top,
            on_progress=lambda done: progress.update(bar, completed=done),
        )
    if json_:
        for problem in reader.problems:
            as_json({"malformed_line": problem.line, "why": problem.why})
        as_json({"lines": reader.lines, "malformed": reader.malformed} | answer.to_json())
    else:
        _show(reader, answer)


def _show(reader: LogReader, answer: WhatIf) -> None:
    screen = console()
    for problem in reader.problems:
        screen.print(f"line {problem.line}: {problem.why}", style="yellow")
    how = "one engine" if answer.exact else f"{answer.datacenters} data centers"
    screen.print(
        f"{answer.requests} requests of {reader.lines} lines ({reader.malformed} malformed), "
        f"decided by {how}: {answer.denied} denied; exact counting denies {answer.denied_exact}"
    )
    if answer.staleness_ms:
        screen.print(
            f"counts of other data centers are up to {answer.staleness_ms:g} ms old "
            f"({answer.delay_ms:g} ms one way, told every {answer.interval_ms:g} ms)"
        )
    screen.print()
    screen.print(_rules_table(answer))
    if answer.throttled:
        screen.print()
        screen.print(_clients_table(answer))
    screen.print()
    screen.print(_errors_table(answer))


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _rules_table(answer: WhatIf) -> Table:
    table = _table(
        "rules",
        *("rule", "limit", "counted", "checks", "denied", "by exact counting"),
        *("wrongly allowed", "wrongly denied", "furthest over", "bound"),
    )
    for rule in answer.rules:
        worst = rule.worst
        table.add_row(
            rule.rule,
            _limit(rule),
            rule.counted,
            str(rule.checks),
            str(rule.denied),
            str(rule.denied_exact),
            str(rule.wrongly_allowed),
            str(rule.wrongly_denied),
            "-" if worst is None else f"{worst.excess} ({printable(worst.client)})",
            "-" if worst is None else str(worst.bound),
        )
    return table


def _limit(rule: RuleFigures) -> str:
    return f"{rule.amount} per {rule.period_ns / _NS:g} s, {rule.algorithm}"


def _clients_table(answer: WhatIf) -> Table:
    rows = answer.to_json()["throttled"]
    assert isinstance(rows, list)
    table = _table(
        "most throttled clients",
        *("client", "checks", "denied", "by exact counting", "first", "last", "rule"),
    )
    for row in rows:
        table.add_row(
            printable(row["client"]),
            *(str(row[name]) for name in ("checks", "denied", "denied_exact", "first", "last")),
            row["rule"],
        )
    return table


def _errors_table(answer: WhatIf) -> Table:
    table = _table(
        "errors of these decisions",
        *("against", "requests", "wrongly allowed", "wrongly limited", "wrong"),
        *("mean difference", "near the limit", "counters over", "furthest over"),
    )
    for errors in answer.errors:
        table.add_row(
            errors.against,
            str(errors.requests),
            str(errors.wrongly_allowed),
            str(errors.wrongly_limited),
            f"{100 * errors.wrong_share:.4f} %",
            f"{100 * errors.mean_difference:.2f} %",
            f"{100 * errors.near_mean_difference:.2f} %",
            str(errors.over),
            f"{100 * errors.max_over:.2f} %",
        )
    return table
