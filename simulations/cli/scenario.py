"""Command `ringfence simulate NAME`: one run of a scenario, with its figures and its report."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.cli.common import as_json, console, json_option
from ringfence.errors import ConfigError
from simulations.reporting.outcome import Outcome
from simulations.reporting.report import write_report
from simulations.running import run_scenario
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.fault_injection import VERBS
from simulations.scenarios.generate import DRAWN, generate_scenario
from simulations.scenarios.rule_changes import NAMES, apply_settings, parse_fault, validated
from simulations.scenarios.scenario import Level, Scenario

__all__ = ["scenario_command"]

_SHOWN = 10


def scenario_command(name: str, about: str) -> click.Command:
    """Create the command that runs one scenario."""

    @click.command(name=name, help=f"{about[0].upper()}{about[1:]}.")
    @click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
    @click.option(
        "--nodes",
        type=click.IntRange(1, 5000),
        help="Number of nodes in all data centers together.",
    )
    @click.option("--datacenters", type=click.IntRange(1, 30))
    @click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="NAME=VALUE",
        help=f"Change the scenario; NAME is {', '.join(NAMES)}. Repeatable.",
    )
    @click.option(
        "--fault",
        "faults",
        multiple=True,
        metavar="'VERB@AT-UNTIL NAME=VALUE ...'",
        help="Fault that replaces the scenario's faults, such as 'cut@8-25 node=n1,n2'; times are "
        f"seconds of load. VERB is {', '.join(VERBS)}. Repeatable.",
    )
    @click.option("--no-faults", is_flag=True, help="Remove all faults.")
    @click.option(
        "--keep",
        metavar="NUMBERS",
        help="Numbers of the scenario's faults to keep, counted from 0, such as 0,2, or none.",
    )
    @click.option(
        "--level", type=click.Choice(get_args(Level)), help="Runtime; default: the scenario's own."
    )
    @click.option(
        "--report",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Path of the HTML report; default: ringfence-NAME-SEED.html.",
    )
    @click.option("--no-report", is_flag=True, help="Write no report.")
    @json_option
    def command(
        seed: int,
        nodes: int | None,
        datacenters: int | None,
        changes: tuple[str, ...],
        faults: tuple[str, ...],
        no_faults: bool,
        keep: str | None,
        level: Level | None,
        report: Path | None,
        no_report: bool,
        json_: bool,
    ) -> None:
        original = generate_scenario(seed, level or "node") if name == DRAWN else SCENARIOS[name]
        counts = {"nodes": nodes, "datacenters": datacenters}
        words = [f"{each}={count}" for each, count in counts.items() if count is not None]
        scenario = apply_settings(original, [*words, *changes])
        if level is not None:
            scenario = replace(scenario, level=level)
        if (faults or no_faults) and keep is not None:
            raise ConfigError(
                "--keep must not be combined with --fault or --no-faults; remove one of them"
            )
        if faults or no_faults:
            scenario = replace(scenario, faults=tuple(parse_fault(text) for text in faults))
        if keep is not None:
            scenario = _with_kept(scenario, keep)
        path = None if no_report else report or Path(f"ringfence-{name}-{seed}.html")
        if path is not None and not path.parent.is_dir():
            # Raised before the run, which may take minutes.
            raise ConfigError(f"--report {path}: folder {path.parent} must exist; create it first")
        outcome = _run(validated(scenario), seed, original, is_quiet=json_)
        if path is not None:
            _write(outcome, path)
        _show(outcome, path, json_)
        if outcome.violations:
            raise SystemExit(1)

    return command


def _with_kept(scenario: Scenario, keep: str) -> Scenario:
    count = len(scenario.faults)
    words = [] if keep == "none" else keep.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) < count for word in words):
        raise ConfigError(
            f"--keep must be fault numbers below {count}, such as 0,2, or none, got {keep!r}"
        )
    return replace(scenario, faults=tuple(scenario.faults[int(word)] for word in words))


def _run(scenario: Scenario, seed: int, original: Scenario, *, is_quiet: bool) -> Outcome:
    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=screen,
        disable=is_quiet or not screen.is_terminal,
    ) as progress:
        bar = progress.add_task(f"{scenario.name}, seed {seed}", total=1.0)
        try:
            return run_scenario(
                scenario, seed, original, lambda part: progress.update(bar, completed=part)
            )
        except ValueError as error:
            raise ConfigError(f"{scenario.name}: {error}") from error


def _write(outcome: Outcome, path: Path) -> None:
    try:
        write_report(outcome, path)
    except OSError as error:
        raise ConfigError(f"cannot write the report {path}: {error.strerror}") from error


def _show(outcome: Outcome, report: Path | None, json_: bool) -> None:
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
                "figures": outcome.figures,
                "marks": dict(outcome.marks),
                "faults": [str(fault) for fault in outcome.faults],
                "report": None if report is None else str(report),
            }
        )
        return
    screen = console()
    held = "all invariants held" if not outcome.violations else "INVARIANT VIOLATED"
    screen.print(f"{outcome.scenario.name}: {outcome.scenario.about}")
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
    for violation in outcome.violations[:_SHOWN]:
        screen.print(f"{violation.at:8.2f} s  {violation.property}: {violation.text}", style="red")
    if len(outcome.violations) > _SHOWN:
        screen.print(f"and {len(outcome.violations) - _SHOWN} more", style="red")
    if report is not None:
        screen.print(f"\nreport: {report}")
    screen.print(f"again:  {outcome.command}")
