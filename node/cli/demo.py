"""`ringfence demo`: a cluster limits a real web server's log while one node is killed."""

import signal
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

import click
import trio
from msgspec.structs import asdict
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.cli.common import NumberRange, as_json, console, json_option, log_to_stderr
from node.cli.replay import throttled_rows, throttled_table
from node.demo.cluster import NAMES
from node.demo.shares import CLIENT, Share, total_of
from node.demo.show import Demo, DemoResult, run_demo
from ringfence.limiter import NS_PER_SECOND

__all__ = ["demo", "opening", "picture", "progress_line"]

_LINE_EVERY = 1.0
"""Seconds between two progress lines without a terminal."""
_NEXT = """\
What to try next, from the top of a checkout:
  ringfence node --name a --listen 127.0.0.1:7101 --rules examples/rules   # your own node
  ringfence check log client=203.0.113.7 --cluster ringfence://127.0.0.1:7101
  ringfence replay ACCESS.LOG --rules FILE --local   # your rules, your log
README.md goes on from there: three nodes by hand, FastAPI, Flask and Django, nginx and Envoy."""


@click.command()
@click.option(
    "--speed",
    default=12_000.0,
    show_default=True,
    type=NumberRange(100, 1_000_000),
    help="How many times as fast as the log's own pace; it spans three and a half days.",
)
@json_option
def demo(speed: float, json_: bool) -> None:
    """Start three nodes, replay a real log through them, kill one node and verify the counts."""
    screen = console()
    seen = Demo(speed)
    with log_to_stderr("error"):
        if json_:
            result = _run(seen, lambda: None)
        elif screen.is_terminal:
            result = _run_with_display(seen, screen)
        else:
            result = _run_with_log_lines(seen, screen)
    if json_:
        as_json(_row(result))
    else:
        _summarise(screen, result)
    if result.over_admitted or result.tally.undecided:
        raise SystemExit(1)


def _run_with_display(seen: Demo, screen: Console) -> DemoResult:
    """Run the demo and update a live display."""
    with Live(console=screen, auto_refresh=False) as live:
        result = _run(seen, lambda: live.update(picture(seen), refresh=True))
        live.update(picture(seen), refresh=True)
    return result


def _run_with_log_lines(seen: Demo, screen: Console) -> DemoResult:
    """Run the demo and print one line per step, for output to a pipe or a file."""
    last = -_LINE_EVERY
    is_announced = False

    def on_change() -> None:
        nonlocal last, is_announced
        if not is_announced:
            is_announced = True
            screen.print(opening(seen))
        if monotonic() - last >= _LINE_EVERY:
            last = monotonic()
            screen.print(progress_line(seen))
            screen.file.flush()

    return _run(seen, on_change)


def _run(seen: Demo, on_change: Callable[[], None]) -> DemoResult:
    result = trio.run(_run_until_signal, seen, on_change)
    if isinstance(result, DemoResult):
        return result
    click.echo(f"ringfence: ended by {signal.Signals(result).name}", err=True)
    raise SystemExit(128 + result)


async def _run_until_signal(seen: Demo, on_change: Callable[[], None]) -> DemoResult | int:
    """Run the demo until it ends or a signal arrives; remove its nodes and keys, and return the
    signal.

    SIGINT is received, too: a `KeyboardInterrupt` in the middle of a start would leave a node or a
    folder behind.
    """
    result: DemoResult | int = 0
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def handle_signal() -> None:
                nonlocal result
                async for number in signals:
                    result = number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(handle_signal)
            result = await run_demo(seen, on_change)
            nursery.cancel_scope.cancel()
    return result


def opening(seen: Demo) -> Text:
    """Return the introduction of the demo: what it does, and its rule."""
    text = Text("Three nodes on this host limit the log of a real web server.\n", style="bold")
    if seen.limit is None:
        return text
    span = timedelta(seconds=seen.span_ns // NS_PER_SECOND)
    took = seen.span_ns / NS_PER_SECOND / seen.speed
    period = seen.limit.period_ns / NS_PER_SECOND
    text.append(
        f"Rule: each client may make {seen.limit.amount} requests in any {period:g} s.\n"
        f"The {seen.total} requests of {span.days} days are replayed {seen.speed:g} times as\n"
        f"fast, in {took:.0f} s or more, so that clients meet the limit. Half way,\n"
        "the node with the most shards is killed.\n",
        style="not bold",
    )
    return text


def progress_line(seen: Demo) -> str:
    """Describe the progress of the demo in one line."""
    if seen.started_at is None:
        return f"starting nodes: {len(seen.up)} of {len(NAMES)} are up"
    total = total_of(seen.shares)
    killed = f"; node {seen.killed} was killed" if seen.killed else ""
    return (
        f"{seen.took:.0f} s: {total.checks} of {seen.total} requests, {total.allowed} allowed, "
        f"{total.denied} denied{killed}"
    )


def picture(seen: Demo) -> Group:
    """Return the current screen of the live display; its lines fit into 66 columns."""
    total = total_of(seen.shares)
    progress = Table.grid(padding=(0, 2), pad_edge=False)
    progress.add_row(
        ProgressBar(total=max(1, seen.total), completed=total.checks, width=30),
        Text(f"{total.checks} of {seen.total} requests", no_wrap=True),
    )
    return Group(
        opening(seen), progress, _latest_event(seen), _latency(seen), _nodes_table(seen, total)
    )


def _latest_event(seen: Demo) -> Text:
    if seen.killed and seen.is_over:
        return Text(f"node {seen.killed} was killed (SIGKILL) half way", style="red")
    if seen.killed:
        return Text(f"node {seen.killed} was killed (SIGKILL); checks go on", style="red")
    if seen.started_at is None:
        return Text(f"starting nodes: {len(seen.up)} of {len(NAMES)} are up", style="yellow")
    return Text("all nodes are up", style="green")


def _latency(seen: Demo) -> Text:
    if not seen.latencies or not seen.took:
        return Text()
    p50, p99 = seen.latency(0.5) * 1000, seen.latency(0.99) * 1000
    return Text(
        f"latency p50 {p50:.2f} ms, p99 {p99:.2f} ms at {len(seen.latencies) / seen.took:.0f} "
        "checks/s;\nthe client, three nodes and this screen share one host",
        style="dim",
    )


def _nodes_table(seen: Demo, total: Share) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=bool(total.checks))
    table.add_column("decided by", "all", no_wrap=True)
    table.add_column("shards", justify="right", no_wrap=True)
    for heading, number, style in [
        ("checks", total.checks, None),
        ("allowed", total.allowed, None),
        ("denied", total.denied, "yellow"),
        ("as standby", total.as_standby, None),
    ]:
        table.add_column(heading, str(number), justify="right", no_wrap=True, style=style)
    for name in [*NAMES, *sorted(seen.shares.keys() - set(NAMES))]:
        share = seen.shares.get(name, Share())
        numbers = [share.checks, share.allowed, share.denied, share.as_standby]
        style = "dim" if name == seen.killed else None
        table.add_row(_label(name), _shards(seen, name), *map(str, numbers), style=style)
    return table


def _label(name: str) -> str:
    return "client (cached)" if name == CLIENT else f"node {name}" if name in NAMES else name


def _shards(seen: Demo, name: str) -> Text:
    if name not in NAMES:
        return Text("")
    if name == seen.killed:
        return Text("killed", style="red")
    if name in seen.shards:
        return Text(str(seen.shards[name]))
    return Text("up", style="green") if name in seen.up else Text("starting", style="yellow")


def _summarise(screen: Console, result: DemoResult) -> None:
    tally = result.tally
    screen.print()
    screen.print(throttled_table(tally))
    screen.print()
    screen.print(
        f"{result.lines} lines, {tally.checks} checks: {tally.allowed} allowed, "
        f"{tally.denied} denied, {tally.undecided} undecided."
    )
    screen.print(
        f"Node {result.killed} was killed half way; its standbys decided in its place "
        f"({result.by_source.get('standby', 0)} checks) until they became the owners of its shards."
    )
    screen.print(
        f"An independent exact count over the {result.judged_keys} keys of the other nodes finds "
        f"{result.over_admitted} requests admitted beyond the limit.",
        style="red" if result.over_admitted else "green",
    )
    if tally.undecided:
        screen.print(
            f"{tally.undecided} checks were decided by no node in time, so this demo fails: the "
            "host is too busy; repeat with a lower --speed.",
            style="red",
        )
    screen.print()
    screen.print(_NEXT)


def _row(result: DemoResult) -> dict[str, object]:
    tally = result.tally
    return {
        "lines": result.lines,
        "malformed": result.malformed,
        "checks": tally.checks,
        "allowed": tally.allowed,
        "denied": tally.denied,
        "undecided": tally.undecided,
        "over_admitted": result.over_admitted,
        "judged_keys": result.judged_keys,
        "killed_node": result.killed,
        "decisions_by_source": result.by_source,
        "decisions_by_node": {name: asdict(share) for name, share in result.shares.items()},
        "latency_ms": {"p50": round(result.p50 * 1000, 3), "p99": round(result.p99 * 1000, 3)},
        "most_throttled": throttled_rows(tally),
        "nodes": [
            {"name": row.name, "alive": counters is not None, "counters": counters}
            for row, counters in result.rows
        ],
    }
