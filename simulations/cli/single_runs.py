"""One run of a scenario in the terminal: progress, report, and outcome."""

from pathlib import Path
from time import process_time

import click
from msgspec.structs import asdict
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.cli.common import IntegerRange, as_json, console, reader_may_be_gone
from ringfence.errors import ConfigError
from simulations.cli.stories import show_story
from simulations.judging.judged import as_row
from simulations.reporting.explanations import explanations
from simulations.reporting.outcome import Nearby, Outcome
from simulations.reporting.report import write_report
from simulations.reporting.story import build_story
from simulations.running import run_scenario
from simulations.scenarios.scenario import Scenario
from simulations.searching.nearby import run_nearby
from simulations.text_files import require_writable

__all__ = ["nearby_option", "report_option", "report_path", "run_and_show"]

_SHOWN = 10

report_option = click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Path of the HTML report; default: ringfence-NAME-SEED.html.",
)
nearby_option = click.option(
    "--nearby",
    default=6,
    show_default=True,
    type=IntegerRange(0),
    help="After a violation, run at most this many similar runs for the report.",
)


def report_path(report: Path | None, name: str, seed: int, *, is_wanted: bool) -> Path | None:
    """Return the path of the report, or None. Raises `ConfigError` if it cannot be written, or if
    a path is given although no report is wanted.

    This is called before the run, which may take minutes.
    """
    if not is_wanted:
        if report is not None:
            raise ConfigError("--report must not be combined with --no-report; remove one of them")
        return None
    path = report or Path(f"ringfence-{name}-{seed}.html")
    require_writable(path, "--report")
    return path


def run_and_show(
    scenario: Scenario,
    seed: int,
    original: Scenario,
    path: Path | None,
    *,
    command: str | None = None,
    nearby: int = 0,
    is_json: bool,
) -> None:
    """Run a scenario, write its report, and print its outcome; exit with 1 after a violation.

    `command` repeats the run; the default lists the changes of `original`. The report of a run
    with a violation also has at most `nearby` similar runs.
    """
    began = process_time()
    outcome = _run(scenario, seed, original, is_quiet=is_json)
    cpu_s = process_time() - began
    if command is not None:
        outcome.command = command
    if path is not None:
        if outcome.violations and nearby:
            outcome.nearby = _run_nearby(scenario, seed, nearby, is_quiet=is_json)
        _write(outcome, path)
    with reader_may_be_gone():
        _show(outcome, path, cpu_s, is_json)
    if outcome.violations:
        raise SystemExit(1)


def _run(scenario: Scenario, seed: int, original: Scenario, *, is_quiet: bool) -> Outcome:
    with _progress(is_quiet=is_quiet) as progress:
        bar = progress.add_task(f"{scenario.name}, seed {seed}", total=1.0)
        try:
            return run_scenario(
                scenario, seed, original, lambda part: progress.update(bar, completed=part)
            )
        except ValueError as error:
            raise ConfigError(f"{scenario.name}: {error}") from error


def _run_nearby(scenario: Scenario, seed: int, most: int, *, is_quiet: bool) -> list[Nearby]:
    with _progress(is_quiet=is_quiet) as progress:
        bar = progress.add_task("nearby runs", total=most)
        return run_nearby(scenario, seed, most, lambda: progress.advance(bar))


def _progress(*, is_quiet: bool) -> Progress:
    screen = console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=screen,
        disable=is_quiet or not screen.is_terminal,
    )


def _write(outcome: Outcome, path: Path) -> None:
    try:
        write_report(outcome, path)
    except OSError as error:
        raise ConfigError(f"cannot write the report {path}: {error.strerror}") from error


def _show(outcome: Outcome, report: Path | None, cpu_s: float, json_: bool) -> None:
    if json_:
        as_json(
            {
                "scenario": outcome.scenario.name,
                "seed": outcome.seed,
                "level": outcome.scenario.level,
                "command": outcome.command,
                "violations": [
                    {"property": each.property, "at_s": round(each.at, 3), "text": each.text}
                    for each in outcome.violations
                ],
                "event_hash": outcome.event_hash,
                "virtual_s": round(outcome.virtual_s, 3),
                "real_s": round(outcome.real_s, 3),
                "cpu_s": round(cpu_s, 3),
                "figures": outcome.figures,
                "explained": [asdict(each) for each in explanations(outcome)],
                **as_row(outcome.judged),
                "marks": dict(outcome.marks),
                "faults": [str(fault) for fault in outcome.faults],
                "report": None if report is None else str(report),
            }
        )
        return
    screen = console()
    held = "all invariants held" if not outcome.violations else "INVARIANT VIOLATED"
    excess = [] if outcome.violations else explanations(outcome)
    if excess:
        held += "; the excess units are explained below"
    name, about = outcome.scenario.name, outcome.scenario.about
    screen.print(f"{name}: {about}" if about else name)
    screen.print(
        f"{held}; {outcome.virtual_s:.0f} s of virtual time in {outcome.real_s:.1f} s, "
        f"history {outcome.event_hash[:16]}\n"
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in outcome.figures.items():
        table.add_row(
            name.replace("_", " "), f"{value:,.10g}" if value % 1 == 0 else f"{value:.2f}"
        )
    screen.print(table)
    for each in excess:
        bound = "" if each.bound is None else f", {each.bound:g} are allowed"
        reasons = "; ".join(each.reasons) or "no key is above its bound"
        screen.print(f"\n{each.value:g} {each.figure}{bound}: {reasons}", highlight=False)
    for violation in outcome.violations[:_SHOWN]:
        screen.print(f"{violation.at:8.2f} s  {violation.property}: {violation.text}", style="red")
    if len(outcome.violations) > _SHOWN:
        screen.print(f"and {len(outcome.violations) - _SHOWN} more", style="red")
    if outcome.violations:
        show_story(screen, build_story(outcome))
    if report is not None:
        screen.print(f"\nreport: {report}")
    screen.print(f"again:  {outcome.command}")
