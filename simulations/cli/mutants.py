"""Command `ringfence simulate mutants`: tests whether the simulator's invariants detect planted
bugs.
"""

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from node.cli.common import as_json, console, json_option
from ringfence.errors import ConfigError
from simulations.mutants import MUTANTS
from simulations.mutants.runner import Result, as_row, run_mutants, summary

__all__ = ["mutants"]


@click.command()
@click.argument("names", nargs=-1, metavar="[MUTANT]...")
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1), help="Seeds per run."
)
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Parallel runs.")
@json_option
def mutants(names: tuple[str, ...], seeds: int, jobs: int, json_: bool) -> None:
    """Run each mutant and check that an invariant detects it. The default is all mutants.

    Exit status: 1 if a mutant survives, or if the shipped code violates an invariant.
    """
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        raise ConfigError(f"mutant must be one of {', '.join(MUTANTS)}, got {unknown[0]!r}")
    chosen = [MUTANTS[name] for name in names or MUTANTS]
    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        disable=json_ or not screen.is_terminal,
    ) as progress:
        bar = progress.add_task("running mutants", total=None)

        def on_progress(result: Result, done: int, of: int) -> None:
            progress.update(bar, completed=done, total=of)
            if json_:
                as_json(as_row(result))
            elif result.mutant is not None:
                console().print(_line(result))

        results = run_mutants(chosen, range(1, seeds + 1), jobs, on_progress)
    report = summary(results)
    if json_:
        as_json(report)
    else:
        _show(report)
    if report["survivors"] or report["false_alarms"]:
        raise SystemExit(1)


def _line(result: Result) -> str:
    assert result.mutant is not None
    kill = result.kill
    if kill is None:
        return f"SURVIVED {result.seeds} seeds: {result.name}: {result.mutant.about}"
    return f"{result.name}: {kill.violation} in {kill.scenario}, seed {kill.seed}"


def _show(report: dict[str, object]) -> None:
    screen = console()
    screen.print(f"\n{report['found']} of {report['applied']} mutants were detected")
    for title in ("survivors", "false_alarms"):
        rows = report[title]
        assert isinstance(rows, list)
        for row in rows:
            screen.print(f"{title}: {row}", style="red")
