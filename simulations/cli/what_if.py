"""Command `ringfence simulate what-if`: the user's rules applied to the user's access log."""

from pathlib import Path
from typing import get_args

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.cli.common import IntegerRange, NumberRange, as_json, console, json_option, printable
from node.cli.log_options import (
    descriptor_option,
    domain_option,
    log_figures,
    require_complete,
    show_problems,
    verify_shape,
)
from node.replay.logs import LogReader, read_log, sorted_by_time
from node.replay.tally import Shape
from ringfence.limiter import Algorithm
from ringfence.rules.loading.yaml_files import Defaults, load_path
from ringfence.rules.periods import format_period
from simulations.text_files import require_writable
from simulations.what_if.figures import RuleFigures
from simulations.what_if.page import write_what_if
from simulations.what_if.what_if import Routing, WhatIf, spread_ties, what_if

__all__ = ["what_if_command"]

_LATE = ("wrongly\nallowed", "wrongly\ndenied", "furthest\nover", "bound")
"""Headings of the effects of delayed counts, per rule."""
_SECONDS_END = len("2015-05-18T08:05:16")


@click.command("what-if")
@click.option(
    "--rules", required=True, type=click.Path(path_type=Path), help="Rule file or directory."
)
@click.option(
    "--log",
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="Access log, also gzip; - is standard input.",
)
@click.option(
    "--datacenters",
    default=1,
    show_default=True,
    type=IntegerRange(1, 30),
    help="With 2 or more, also show the effect of delayed counts between them.",
)
@click.option(
    "--rtt",
    default=80.0,
    show_default=True,
    type=NumberRange(0, 60_000),
    help="Round trip between two data centers, in ms.",
)
@click.option(
    "--interval",
    default=200.0,
    show_default=True,
    type=NumberRange(1, 60_000),
    help="Interval between messages with counts, in ms.",
)
@click.option("--exact", is_flag=True, help="Let one engine decide, without eventual consistency.")
@click.option(
    "--routing",
    type=click.Choice(get_args(Routing)),
    default="random",
    show_default=True,
    help="Send each request to a random data center, or all requests of a client to one.",
)
@click.option("--seed", default=1, show_default=True, type=IntegerRange(0))
@click.option(
    "--top", default=10, show_default=True, type=IntegerRange(1), help="Number of clients listed."
)
@domain_option
@descriptor_option
@click.option(
    "--default-algorithm",
    type=click.Choice([algorithm.value for algorithm in Algorithm]),
    default=Algorithm.SLIDING_WINDOW.value,
    show_default=True,
    help="Algorithm of rules that set none.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result as an HTML page to this file.",
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
    domain: str,
    descriptors: tuple[str, ...],
    default_algorithm: str,
    report: Path | None,
    json_: bool,
) -> None:
    """List the clients of an access log that rules would have throttled, with times and rules.

    With `--datacenters` above 1, one of several data centers decides each line, with delayed counts
    of the others. An exact limiter also decides each line. The difference is the cost of eventual
    consistency.
    """
    if report is not None:
        require_writable(report, "--report")
    shape = Shape.parse(descriptors, domain)
    loaded = load_path(rules, defaults=Defaults(algorithm=Algorithm(default_algorithm))).rules
    screen = console(stderr=True)
    verify_shape(shape, loaded, str(rules), screen)
    reader = read_log(log)
    entries = spread_ties(sorted_by_time(reader))
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
    if report is not None:
        write_what_if(answer, log.name, report)
    show_problems(reader, screen, json_=json_)
    if json_:
        as_json(log_figures(reader) | answer.to_json())
    else:
        _show(reader, answer)
        if report is not None:
            console().print(f"\nreport: {report}")
    require_complete(reader)


def _show(reader: LogReader, answer: WhatIf) -> None:
    screen = console()
    how = f"{answer.datacenters} data centers" if answer.datacenters > 1 else "one data center"
    how = "one engine" if answer.exact else how
    screen.print(
        f"{answer.requests} requests of {reader.lines} lines ({reader.malformed} malformed), "
        f"decided by {how}: {answer.denied} denied; exact counting denies {answer.denied_exact}"
    )
    if answer.staleness_ms:
        screen.print(
            f"counts of other data centers are up to {answer.staleness_ms:g} ms old "
            f"({answer.delay_ms:g} ms one way, sent every {answer.interval_ms:g} ms)"
        )
    screen.print()
    screen.print(_rules_table(answer))
    if answer.throttled:
        screen.print()
        screen.print(_clients_table(answer))
    screen.print()
    screen.print(_errors_table(answer))


def _table(title: str, *headings: str, caption: str = "") -> Table:
    table = Table(
        title=title,
        caption=caption,
        box=None,
        pad_edge=False,
        header_style="bold",
        title_justify="left",
        caption_justify="left",
    )
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _rules_table(answer: WhatIf) -> Table:
    is_late = answer.staleness_ms > 0
    # The line breaks keep columns narrow enough for a screen of 120 columns.
    table = _table(
        "rules",
        *("rule", "limit", "checks", "denied", "by exact\ncounting"),
        *(("counted", *_LATE) if is_late else ()),
        caption="\n".join(
            f"{rule.rule}: furthest over by {rule.worst.excess}, for {printable(rule.worst.client)}"
            for rule in answer.rules
            if rule.worst is not None and is_late
        ),
    )
    for rule in answer.rules:
        worst = rule.worst
        late = (
            rule.counted,
            str(rule.wrongly_allowed),
            str(rule.wrongly_denied),
            "-" if worst is None else str(worst.excess),
            "-" if worst is None else str(worst.bound),
        )
        table.add_row(
            *(rule.rule, _limit(rule)),
            *(str(count) for count in (rule.checks, rule.denied, rule.denied_exact)),
            *(late if is_late else ()),
        )
    return table


def _limit(rule: RuleFigures) -> str:
    return f"{rule.amount}/{format_period(rule.period_ns)}\n{rule.algorithm}"


def _clients_table(answer: WhatIf) -> Table:
    rows = answer.to_json()["throttled"]
    assert isinstance(rows, list)
    table = _table(
        "most throttled clients",
        *("client", "checks", "denied", "by exact\ncounting", "first (UTC)", "last (UTC)", "rule"),
    )
    for row in rows:
        table.add_row(
            printable(row["client"]),
            *(str(row[name]) for name in ("checks", "denied", "denied_exact")),
            *(str(row[name])[:_SECONDS_END].replace("T", " ") for name in ("first", "last")),
            row["rule"],
        )
    return table


def _errors_table(answer: WhatIf) -> Table:
    table = _table(
        "errors of these decisions",
        *("against", "requests", "wrongly allowed", "wrongly limited", "wrong"),
        *("mean difference", "near the limit", "counters over", "furthest over"),
        caption=(
            "mean difference: between the count used for a decision and the units actually "
            "admitted, relative to the latter;\nnear the limit: the same while at least half of "
            "the limit was used, since below that no decision changes;\nfurthest over: the "
            "largest excess of a counter, relative to its limit"
        ),
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
