"""Command `ringfence simulate swarm`: many seeds, each with its own faults."""

from pathlib import Path
from typing import get_args

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from node.cli.common import IntegerRange, as_json, console, json_option, reader_may_be_gone
from ringfence.errors import ConfigError
from simulations.cli.findings import finding_row, save_finding, show_finding
from simulations.cli.guided import run_guided
from simulations.judging.judged import as_row, sentence
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.generate import DRAWN
from simulations.scenarios.scenario import Level
from simulations.searching.shrink import MAX_RUNS, Finding
from simulations.swarm import Batch, Run, pool, search, shrink_seed

__all__ = ["swarm"]

_MARKS_FROM = 100
"""Smallest batch in which every rare event must happen."""
_PAIRS_FROM = 1000
"""Smallest batch in which every pair of features and faults must meet."""
_PAIRS_SHOWN = 20
_SHRUNK = 5


@click.command()
@click.option(
    "--seeds", default=100, show_default=True, type=IntegerRange(1), help="Number of seeds."
)
@click.option("--from", "first", default=0, show_default=True, type=IntegerRange(0))
@click.option("--jobs", default=1, show_default=True, type=IntegerRange(1), help="Parallel runs.")
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
    type=IntegerRange(1, 100),
    help="Minimum parts of each transfer; default: as the scenario or the seed says.",
)
@click.option(
    "--shrink-runs",
    default=MAX_RUNS,
    show_default=True,
    type=IntegerRange(0),
    help="Maximum runs to shrink a failing seed; 0 shrinks none.",
)
@click.option(
    "--cases",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    help="Folder of the case files of shrunk seeds; default: the current folder.",
)
@click.option(
    "--guided",
    is_flag=True,
    help="Also vary generated scenarios that reach new states, and compare this with plain "
    "drawing; takes up to twice as many runs.",
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
    shrink_runs: int,
    cases: Path,
    guided: bool,
    json_: bool,
) -> None:
    """Search many seeds for violated invariants, and shrink failing scenarios to a few events.

    Every twentieth seed runs twice, and both histories must be equal.
    """
    if level is None:
        level = "node" if name == DRAWN else SCENARIOS[name].level
    if guided:
        if name != DRAWN or least_parts is not None:
            raise ConfigError("--guided must be used without --scenario and --least-parts")
        run_guided(level, first, seeds, jobs, shrink_runs, cases, is_json=json_)
        return
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
        shrinking = [
            executor.submit(shrink_seed, name, level, run.seed, least_parts, shrink_runs)
            for run in (failed[:_SHRUNK] if shrink_runs else [])
        ]
        results = [future.result() for future in shrinking]
        findings = [save_finding(finding, cases) for finding in results if finding is not None]
    is_large = name == DRAWN and seeds >= _PAIRS_FROM
    pairs = batch.missing_pairs if name == DRAWN else []
    needs_marks = marks if marks is not None else name == DRAWN and seeds >= _MARKS_FROM
    missing = batch.missing if needs_marks else []
    with reader_may_be_gone():
        _show(batch, findings, missing, pairs, json_)
    if batch.failed or batch.differed or missing or (is_large and pairs):
        raise SystemExit(1)


def _show(
    batch: Batch,
    findings: list[tuple[Finding, str]],
    missing: list[str],
    pairs: list[str],
    json_: bool,
) -> None:
    """Print the results. `missing` are rare events, and `pairs` are pairs of features and faults
    that did not meet."""
    if json_:
        for finding, command in findings:
            as_json(finding_row(finding, command))
        as_json(
            {
                "level": batch.level,
                "seeds": batch.runs,
                "failed": sorted(run.seed for run in batch.failed),
                "run_twice": batch.twice,
                "differed": sorted(batch.differed),
                "marks": dict(sorted(batch.marks.items())),
                "marks_missing": missing,
                "pairs": len(batch.pairs),
                "pairs_missing": pairs,
                **as_row(batch.judged),
                "virtual_s": round(batch.virtual_s, 1),
                "cpu_s": round(batch.cpu_s, 1),
            }
        )
        return
    screen = console()
    screen.print(
        f"{batch.runs} seeds, {batch.virtual_s:,.0f} s of virtual time in {batch.cpu_s:,.0f} s of "
        f"processor time; {len(batch.failed)} violated an invariant; {batch.twice} ran twice, "
        f"{len(batch.differed)} of them with different histories"
    )
    screen.print(
        f"{100 * batch.judged.share:.1f} % of {batch.judged.decisions:,} decisions were "
        f"judged exactly; excused: {sentence(batch.judged)}"
    )
    for finding, command in findings:
        show_finding(screen, finding, command)
    for run in sorted(batch.failed, key=lambda run: run.seed)[len(findings) :]:
        screen.print(f"seed {run.seed}: {run.violations[0][0]}", style="red")
    if batch.differed:
        screen.print(f"not repeatable: seeds {sorted(batch.differed)}", style="red")
    if batch.pairs:
        screen.print(
            f"{len(batch.pairs)} pairs of features and faults met, {len(pairs)} did not"
            + (f": {', '.join(pairs[:_PAIRS_SHOWN])}" if pairs else "")
            + (" and more" if len(pairs) > _PAIRS_SHOWN else "")
        )
    if missing:
        screen.print(f"never happened: {', '.join(missing)}", style="red")
