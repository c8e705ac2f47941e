"""Command `ringfence simulate mutants`: tests whether the simulator's invariants detect planted
bugs.
"""

import click
from click.core import ParameterSource
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from node.cli.common import IntegerRange, NumberRange, as_json, console, json_option
from ringfence.errors import ConfigError
from simulations.cli.drawn_mutants import DEFAULT_MAP, Choice, draw, measure, record
from simulations.mutants import MUTANTS
from simulations.mutants.drawn import PACKAGES
from simulations.mutants.runner import Result, as_row, run_mutants, summary

__all__ = ["mutants"]


@click.command()
@click.argument("names", nargs=-1, metavar="[MUTANT]...")
@click.option("--seeds", default=3, show_default=True, type=IntegerRange(1), help="Seeds per run.")
@click.option("--jobs", default=1, show_default=True, type=IntegerRange(1), help="Parallel runs.")
@click.option(
    "--sample",
    default=0,
    show_default=True,
    type=IntegerRange(0),
    help="Number of mutants to draw at random from the packages; needs the extra `mutants`.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the sample.")
@click.option(
    "--package",
    "packages",
    multiple=True,
    type=click.Choice(PACKAGES),
    help="Package to draw from; default: all.",
)
@click.option(
    "--unit", is_flag=True, help="Test the drawn mutants by unit tests, not by the simulator."
)
@click.option(
    "--core-seeds",
    default=100,
    show_default=True,
    type=IntegerRange(0),
    help="Generated seeds at core level for each drawn mutant.",
)
@click.option(
    "--node-seeds",
    default=20,
    show_default=True,
    type=IntegerRange(0),
    help="Generated seeds at node level for each drawn mutant.",
)
@click.option(
    "--catalog/--no-catalog",
    default=None,
    help="Run the mutants that the developers wrote; default: not with --unit.",
)
@click.option(
    "--map",
    "map_file",
    default=DEFAULT_MAP,
    show_default=True,
    type=click.Path(dir_okay=False),
    help="File with the lines that each unit test runs.",
)
@click.option(
    "--record",
    "record_paths",
    multiple=True,
    metavar="PATH",
    help="Test file or folder whose lines to record in --map first.",
)
@click.option(
    "--at-least",
    type=NumberRange(0.0, 1.0),
    help="Smallest share of the drawn mutants that must be detected; default: no condition.",
)
@json_option
def mutants(
    names: tuple[str, ...],
    seeds: int,
    jobs: int,
    sample: int,
    seed: int,
    packages: tuple[str, ...],
    unit: bool,
    core_seeds: int,
    node_seeds: int,
    catalog: bool | None,
    map_file: str,
    record_paths: tuple[str, ...],
    at_least: float | None,
    json_: bool,
) -> None:
    """Run mutants and check that an invariant, or a unit test, detects each one.

    The default is all mutants that the developers wrote. --sample adds mutants that a mutation tool
    draws at random. MUTANT is a name from the catalog, or a name from the report of a sample.

    Exit status: 1 if a mutant of the catalog survives, if the shipped code violates an invariant,
    or if fewer drawn mutants are detected than --at-least demands.
    """
    drawn_names = tuple(name for name in names if ":" in name)
    written_names = tuple(name for name in names if ":" not in name)
    unknown = [name for name in written_names if name not in MUTANTS]
    if unknown:
        raise ConfigError(f"mutant must be one of {', '.join(MUTANTS)}, got {unknown[0]!r}")
    if not (sample or drawn_names):
        _refuse_unused(click.get_current_context())
    if record_paths:
        record(map_file, record_paths, jobs, json_=json_)
    if catalog is None:
        catalog = not unit and not record_paths
    drawn = None
    if sample or drawn_names:  # Errors of the sample precede the long run of the catalog.
        choice = Choice(sample, seed, packages or PACKAGES, drawn_names)
        drawn = draw(choice, map_file, needs_tests=unit)
    is_good = True
    if written_names or (catalog and not drawn_names):
        is_good = _run_catalog(written_names or tuple(MUTANTS), seeds, jobs, json_=json_)
    if drawn is not None:
        runs = None if unit else (1, core_seeds, node_seeds)
        is_good &= measure(drawn, runs, jobs, at_least, json_=json_)
    if not is_good:
        raise SystemExit(1)


def _refuse_unused(context: click.Context) -> None:
    """Reject options that only concern drawn mutants, which the command line does not ask for."""
    for name in ("seed", "packages", "core_seeds", "node_seeds", "at_least"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "--package" if name == "packages" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} must be used with --sample or with the name of a drawn mutant; add "
                "--sample N"
            )


def _run_catalog(names: tuple[str, ...], seeds: int, jobs: int, *, json_: bool) -> bool:
    """Run mutants of the catalog; return whether all were detected without a false alarm."""
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

        chosen = [MUTANTS[name] for name in names]
        results = run_mutants(chosen, range(1, seeds + 1), jobs, on_progress)
    report = summary(results)
    if json_:
        as_json(report)
    else:
        _show(report)
    return not (report["survivors"] or report["false_alarms"])


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
