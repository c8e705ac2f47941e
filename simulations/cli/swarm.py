"""Command `ringfence simulate swarm`: many seeds, each with its own faults."""

from typing import get_args

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from node.cli.common import as_json, console, json_option
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.generate import DRAWN
from simulations.scenarios.scenario import Level
from simulations.swarm import Batch, Finding, Run, pool, search, shrink

__all__ = ["swarm"]

_MARKS_FROM = 100
"""Smallest batch in which every rare event must happen."""
_SHRUNK = 5


@click.command()
@click.option(
    "--seeds", default=100, show_default=True, type=click.IntRange(1), help="Number of seeds."
)
@click.option("--from", "first", default=0, show_default=True, type=click.IntRange(0))
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Parallel runs.")
@click.option(
    "--level",
    type=click.Choice(get_args(Level)),
    help="Runtime; default: node, or the level of --scenario.",
)
@click.option(
    "--scenario",
    "name",
    type=click.Choice([DRAWN, *SCENARIOS]),
    default=DRAWN,
    show_default=True,
    help="Scenario to run with every seed; default: generate one from each seed.",
)
@click.option(
    "--marks/--no-marks",
    default=None,
    help=f"Fail if a rare event never happened; default from {_MARKS_FROM} generated seeds on.",
)
@click.option(
    "--least-parts",
    type=click.IntRange(1, 100),
    help="Minimum parts of each transfer; default: as the scenario or the seed says.",
)
@json_option
def swarm(
    seeds: int,
    first: int,
    jobs: int,
    level: Level | None,
    name: str,
    marks: bool | None,
    least_parts: int | None,
    json_: bool,
) -> None:
    """Search many seeds for violated invariants, and shrink each failing scenario.

    Every twentieth seed runs twice, and both histories must be equal.
    """
    if level is None:
        level = "node" if name == DRAWN else SCENARIOS[name].level
    screen = console(stderr=True)
    with (
        pool(jobs) as executor,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=screen,
            disable=json_ or not screen.is_terminal,
        ) as progress,
    ):
        bar = progress.add_task("seeds", total=seeds)

        def on_run(run: Run) -> None:
            progress.advance(bar)
            if run.violations:
                progress.print(f"seed {run.seed}: {run.violations[0][0]}: {run.violations[0][1]}")

        batch = search(executor, name, level, range(first, first + seeds), on_run, least_parts)
        failed = sorted(batch.failed, key=lambda run: run.seed)
        findings = [shrink(executor, name, level, run, least_parts) for run in failed[:_SHRUNK]]
    needs_marks = marks if marks is not None else name == DRAWN and seeds >= _MARKS_FROM
    missing = batch.missing if needs_marks else []
    _show(batch, findings, missing, json_)
    if batch.failed or batch.differed or missing:
        raise SystemExit(1)


def _show(batch: Batch, findings: list[Finding], missing: list[str], json_: bool) -> None:
    if json_:
        for finding in findings:
            as_json(
                {
                    "seed": finding.run.seed,
                    "violations": [list(each) for each in finding.run.violations],
                    "faults": [str(fault) for fault in finding.faults],
                    "command": finding.command,
                }
            )
        as_json(
            {
                "level": batch.level,
                "seeds": batch.runs,
                "failed": sorted(run.seed for run in batch.failed),
                "run_twice": batch.twice,
                "differed": sorted(batch.differed),
                "marks": dict(sorted(batch.marks.items())),
                "marks_missing": missing,
                "virtual_s": round(batch.virtual_s, 1),
                "cpu_s": round(batch.real_s, 1),
            }
        )
        return
    screen = console()
    screen.print(
        f"{batch.runs} seeds, {batch.virtual_s:,.0f} s of virtual time in {batch.real_s:,.0f} s of "
        f"computing; {len(batch.failed)} violated an invariant; {batch.twice} ran twice, "
        f"{len(batch.differed)} of them with different histories"
    )
    for finding in findings:
        property_, text = finding.run.violations[0]
        screen.print(f"\nseed {finding.run.seed}: {property_}: {text}", style="red")
        for fault in finding.faults:
            screen.print(f"    {fault}")
        screen.print(f"    {finding.command}")
    for run in sorted(batch.failed, key=lambda run: run.seed)[len(findings) :]:
        screen.print(f"seed {run.seed}: {run.violations[0][0]}", style="red")
    if batch.differed:
        screen.print(f"not repeatable: seeds {sorted(batch.differed)}", style="red")
    if missing:
        screen.print(f"never happened: {', '.join(missing)}", style="red")
