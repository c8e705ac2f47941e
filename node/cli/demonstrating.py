"""`ringfence demo`: see a cluster limit a real web server's log, and lose a node."""

import signal
from collections.abc import Callable

import click
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.cli.common import as_json, console, json_option, log_to_stderr
from node.cli.replaying import throttled_rows, throttled_table
from node.demo.show import Demo, DemoResult, run_demo
from ringfence.wire import MemberRow

__all__ = ["demo", "picture"]


@click.command()
@click.option(
    "--speed",
    default=12_000.0,
    show_default=True,
    type=click.FloatRange(100, 1_000_000),
    help="How many times as fast as the log's own pace; it spans three and a half days.",
)
@json_option
def demo(speed: float, json_: bool) -> None:
    """Start three nodes, replay a real log through them, kill one midway, and judge the outcome."""
    screen = console()
    with log_to_stderr("error"):
        result = _watched(speed, None if json_ or not screen.is_terminal else screen)
    if json_:
        as_json(_row(result))
    else:
        _summarise(screen, result)
    if result.over_admitted or result.tally.errors:
        raise SystemExit(1)


def _watched(speed: float, screen: Console | None) -> DemoResult:
    """Run the demo, with a live picture where there is a screen."""
    seen = Demo()
    if screen is None:
        return _run(speed, seen, lambda: None)
    with Live(console=screen, refresh_per_second=4) as live:
        result = _run(speed, seen, lambda: live.update(picture(seen)))
        live.update(picture(seen))
    return result


def _run(speed: float, seen: Demo, on_change: Callable[[], None]) -> DemoResult:
    result = trio.run(_run_until_told, speed, seen, on_change)
    if isinstance(result, DemoResult):
        return result
    click.echo(f"ringfence: ended by {signal.Signals(result).name}", err=True)
    raise SystemExit(128 + result)


async def _run_until_told(
    speed: float, seen: Demo, on_change: Callable[[], None]
) -> DemoResult | int:
    """Run the demo, or return the number of the signal that ended it: nodes and keys go first."""
    result: DemoResult | int = 0
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def obey() -> None:
                nonlocal result
                async for number in signals:
                    result = number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(obey)
            result = await run_demo(speed, seen, on_change)
            nursery.cancel_scope.cancel()
    return result


def picture(seen: Demo) -> Group:
    """What the screen shows now; its lines fit into 60 columns."""
    progress = Table.grid(padding=(0, 2), pad_edge=False)
    progress.add_row(
        ProgressBar(total=max(1, seen.total), completed=seen.done, width=30),
        Text(f"{seen.done} of {seen.total} requests", no_wrap=True),
    )
    news = Text(f"node {seen.killed} was killed (SIGKILL), checks go on" if seen.killed else "")
    latency = Text()
    if seen.latencies:
        p50, p99 = seen.latency(0.5) * 1000, seen.latency(0.99) * 1000
        latency = Text(f"latency p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return Group(progress, news, latency, _nodes_table(seen.rows, seen.killed))


def _nodes_table(rows: list[tuple[MemberRow, dict[str, int] | None]], killed: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", no_wrap=True)
    columns = ("owned_shards", "checks", "allowed", "denied", "forwarded", "stood_in")
    for column in columns:
        heading = column.removeprefix("owned_").replace("_", " ")
        table.add_column(heading, justify="right", no_wrap=True)
    for row, counters in rows:
        if counters is None:
            state = "killed" if row.name == killed else "silent"
            table.add_row(row.name, Text(state, style="red"), *("-" for _ in columns[1:]))
        else:
            table.add_row(row.name, *(str(counters.get(column, 0)) for column in columns))
    return table


def _summarise(screen: Console, result: DemoResult) -> None:
    tally = result.tally
    screen.print()
    screen.print(throttled_table(tally))
    screen.print()
    screen.print(
        f"{result.lines} lines, {tally.checks} checks: {tally.allowed} allowed, "
        f"{tally.denied} denied, {tally.errors} undecided."
    )
    screen.print(
        f"Node {result.killed} was killed half way; its standbys decided in its place "
        f"({result.by_source.get('standby', 0)} checks) until its shards were theirs."
    )
    screen.print(
        f"An independent exact count over the {result.judged_keys} keys whose owner lived finds "
        f"{result.over_admitted} requests admitted beyond the limit."
    )


def _row(result: DemoResult) -> dict[str, object]:
    tally = result.tally
    return {
        "lines": result.lines,
        "malformed": result.malformed,
        "checks": tally.checks,
        "allowed": tally.allowed,
        "denied": tally.denied,
        "errors": tally.errors,
        "over_admitted": result.over_admitted,
        "judged_keys": result.judged_keys,
        "killed_node": result.killed,
        "decisions_by_source": result.by_source,
        "latency_ms": {"p50": round(result.p50 * 1000, 3), "p99": round(result.p99 * 1000, 3)},
        "most_throttled": throttled_rows(tally),
        "nodes": [
            {"name": row.name, "alive": counters is not None, "counters": counters}
            for row, counters in result.rows
        ],
    }
